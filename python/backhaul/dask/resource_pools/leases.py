"""Lease of the task that runs here: which GPU is its own, and how much of which resource.

A worker, or a local scheduler, lends units to a task when it begins and puts the lease into a
context variable; it is there in the thread of the task, and in what copies its context.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final

from backhaul.dask.resource_pools.requests import CPU, Needs, declared_name
from backhaul.errors import ResourceError

__all__ = [
    "CORE",
    "GPU",
    "NIC",
    "Lease",
    "context_without_lease",
    "current_lease",
    "device_of",
    "get_resources",
    "lay_down",
    "resource_id",
    "take_up",
]

#: Name of the resource of which the ids are devices of CUDA
GPU: Final = "GPU"
#: Names of those of which the ids are CPUs and network interfaces
CORE: Final = "CORE"
NIC: Final = "NIC"


class Lease:
    """Units that one task holds, of a lease with a number in its pools.

    `held` has units by name, or the amount of a sum; `groups` has the units of each pool by group.
    """

    __slots__ = ("cpus_before", "groups", "has_device", "held", "is_over", "needs", "number")

    def __init__(
        self,
        needs: Needs,
        number: int,
        held: Mapping[str, tuple[int, ...] | float],
        groups: Mapping[str, list[list[int]]],
    ) -> None:
        self.needs = needs
        self.number = number
        self.held = held
        self.groups = groups
        #: Whether it was given back, as by a task that has seceded
        self.is_over = False
        #: Whether libraries for GPUs have their current device
        self.has_device = False
        #: CPUs that the thread of the task may use when it has ended, if it may use others now
        self.cpus_before: set[int] | None = None

    def begin_again(self, number: int, held: Mapping[str, tuple[int, ...] | float]) -> None:
        """Hold something again, that need not be what it was before."""
        self.number, self.held = number, held
        self.has_device = False
        self.is_over = False

    @property
    def units(self) -> dict[str, tuple[int, ...]]:
        """Units by name, without amounts."""
        return {name: held for name, held in self.held.items() if isinstance(held, tuple)}


#: The lease of the task that runs in this context
current_lease: ContextVar[Lease | None] = ContextVar("backhaul-lease", default=None)


def context_without_lease() -> Context:
    """Copy the context for what holds nothing, whatever led to it."""
    context = copy_context()
    context.run(current_lease.set, None)
    return context


def resource_id(name: str) -> int | tuple[int, ...]:
    """Tell which units of a resource the task that calls this holds.

    Parameters
    ----------
    name : str
        Name of the resource.

    Returns
    -------
    int or tuple of int
        The id of its unit, also of the one that it has a share of; if it asked for more than one,
        their ids in order.

    Raises
    ------
    ResourceError
        Outside of a task, or if the task holds no unit of that name: it did not ask for any, the
        worker has an amount of it and no ids, or they were given back by ``secede``.
    """
    lease = current_lease.get()
    if lease is None:
        raise ResourceError(
            f"resource_id({name!r}) is for tasks that ask for resources, and none is running here"
        )
    if lease.is_over:
        raise ResourceError(f"resource_id({name!r}): the task gave back all it held")
    # A local scheduler has no other names than users have.
    held = lease.held.get(declared_name(name), lease.held.get(name))
    if held is None:
        asked = ", ".join({**lease.needs.resources, CPU: lease.needs.cpu})
        raise ResourceError(f"the task did not ask for {name}, only for {asked}")
    if not isinstance(held, tuple):
        raise ResourceError(f"{name} has no ids: the task holds an amount of it, {held:g}")
    if not lease.has_device:
        set_current_device(lease)
    return held[0] if len(held) == 1 else held


def get_resources() -> dict[str, tuple[int, ...] | float]:
    """Tell what the task that calls this holds.

    Returns
    -------
    dict of str to tuple of int or float
        By name, ids of units, or an amount: ``{"GPU": (3,), "CPU": 0.0}``. Outside of a task that
        asks for resources it is empty.
    """
    lease = current_lease.get()
    if lease is None or lease.is_over:
        return {}
    return {**lease.held, CPU: lease.needs.cpu}


def take_up(lease: Lease) -> None:
    """Apply a lease to the code that runs in this thread, until `lay_down`.

    The first GPU becomes the current device of libraries that are loaded, and the thread, with
    those that it starts, runs on the cores of the lease alone, where it holds any.
    """
    set_current_device(lease)
    cores = lease.held.get(CORE)
    if isinstance(cores, tuple):
        # Not its own to use, such as ids that stand for something else: it runs where it did.
        with contextlib.suppress(OSError):
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, cores)
            lease.cpus_before = before


def lay_down(lease: Lease) -> None:
    """Let the thread of a task that has ended run where it did before."""
    if lease.cpus_before is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, lease.cpus_before)
        lease.cpus_before = None


def set_current_device(lease: Lease) -> None:
    """Make libraries for GPUs use the first GPU of a lease in this thread, where they are loaded.

    An id is the number of a device of this process. Where there are more ids than devices, and as
    many groups as devices, several ids stand for one device, and the number of the group is that of
    the device.
    """
    lease.has_device = True
    ids = lease.held.get(GPU)
    if not isinstance(ids, tuple):
        return
    groups = lease.groups.get(GPU, [])
    # Each only if the task could use it: importing one here would cost seconds, and start CUDA.
    for name, count_devices, use in _LIBRARIES:
        library = sys.modules.get(name)
        if library is None:
            continue
        # A library that is there but has no device, or no driver, leaves the task to itself.
        with contextlib.suppress(Exception):
            device = device_of(ids[0], groups, count_devices(library))
            if device is not None:
                use(library, device)


def device_of(unit: int, groups: Sequence[Sequence[int]], devices: int) -> int | None:
    """Return the number of the device that a unit of ``GPU`` stands for; None if there is none."""
    if devices == len(groups) and sum(map(len, groups)) > devices:
        return next((number for number, ids in enumerate(groups) if unit in ids), None)
    return unit if 0 <= unit < devices else None


def _use_cupy(cupy: Any, device: int) -> None:
    cupy.cuda.Device(device).use()


def _use_numba(cuda: Any, device: int) -> None:
    cuda.select_device(device)


def _use_torch(torch: Any, device: int) -> None:
    torch.cuda.set_device(device)


def _use_runtime(runtime: Any, device: int) -> None:
    runtime.cudaSetDevice(device)


#: Libraries by the module that is there once they are used, how they count devices and choose one
_LIBRARIES: tuple[tuple[str, Any, Any], ...] = (
    ("cupy", lambda cupy: cupy.cuda.runtime.getDeviceCount(), _use_cupy),
    ("numba.cuda", lambda cuda: len(cuda.gpus), _use_numba),
    ("torch", lambda torch: torch.cuda.device_count(), _use_torch),
    # The driver's own Python, CUDA Python: (error, count)
    ("cuda.bindings.runtime", lambda runtime: runtime.cudaGetDeviceCount()[1], _use_runtime),
)
