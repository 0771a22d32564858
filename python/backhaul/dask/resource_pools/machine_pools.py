"""Pools of a worker that its machine knows: GPUs, cores and NICs, and which are near to each other.

The machine defines the ids of three pools. ``GPU``: numbers of devices as this
process sees them. ``CORE``: CPUs, as the kernel numbers them. ``NIC``: network interfaces that are
up, Ethernet or InfiniBand, numbered in the order of ``backhaul topology``; RDMA devices on a
machine without such an interface. A worker that has two of them lends units that are near to
each other, and one that declares ``"all"`` of one has the units that this process may use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from backhaul.dask.resource_pools.declarations import ALL, IDS_MAX, Declared, checked, groups_of
from backhaul.dask.resource_pools.leases import CORE, GPU, NIC, device_of
from backhaul.errors import ConfigError
from backhaul.topology import Gpu, Machine, discover

__all__ = ["Coupled", "coupled_by", "coupled_here", "resolved", "visible_gpus"]

#: Ids of other pools that are near to an id, and seconds a byte takes to ids of its own:
#: ``{"GPU": {0: {"CORE": [0, 1], "NIC": [1], "GPU": {1: 5e-11}}}}``
Coupled: TypeAlias = "dict[str, dict[int, dict[str, list[int] | dict[int, float]]]]"

_KINDS: Final = (GPU, CORE, NIC)
_NIC_KINDS: Final = ("ethernet", "infiniband")


def resolved(declared: Declared, *, look: Callable[[], Machine] = discover) -> Declared:
    """Give the ids for each pool of which a worker is said to have all.

    GPUs are in groups that NVLink connects, cores in groups of a NUMA node. `look` describes the
    machine, and is called only if there is such a pool.

    Raises
    ------
    ConfigError
        If the machine has none of it.
    """
    names = [name for name, value in declared.items() if value == ALL]
    if not names:
        return declared
    machine = look()
    found = dict(declared)
    for name in names:
        groups = _all_of(name, machine)
        if not any(groups):
            raise ConfigError(f"{name}={ALL!r}, but {machine.name} has no {name} for this process")
        found[name] = groups
    return checked(found)


def coupled_here(declared: Declared, *, look: Callable[[], Machine] = discover) -> Coupled:
    """Tell which units of a worker of this process are near to each other, as `coupled_by` does.

    `look` describes the machine, and is called only if two pools that it knows are declared by ids,
    or several GPUs are.
    """
    ids = _ids(declared)
    if sum(name in ids for name in _KINDS) < 2 and sum(map(len, ids.get(GPU, ()))) < 2:
        return {}
    machine = look()
    return coupled_by(machine, declared, visible_gpus(machine))


def coupled_by(machine: Machine, declared: Declared, gpus: Sequence[Gpu]) -> Coupled:
    """Tell which units of a worker are near to each other on a machine.

    Returns for each GPU and each NIC the cores that are near to it, and for each GPU the NICs to
    which its way is the shortest, and what a byte takes to each other GPU. Ids that the machine
    does not have are near to nothing. The GPUs are in the order in which the process numbers them.
    """
    groups = _ids(declared)
    ids = {name: [unit for group in each for unit in group] for name, each in groups.items()}
    cores = set(ids.get(CORE, ()))
    nics = {number: nic for number, nic in enumerate(_nics(machine)) if number in ids.get(NIC, ())}
    coupled: Coupled = {}
    devices = {unit: device_of(unit, groups[GPU], len(gpus)) for unit in ids.get(GPU, ())}
    known = {unit: gpus[device] for unit, device in devices.items() if device is not None}
    for unit, gpu in known.items():
        near: dict[str, list[int] | dict[int, float]] = {}
        if found := sorted(cores & gpu.place.cpus):
            near[CORE] = found
        ways_s = {
            number: machine.distance(f"gpu{gpu.index}", nic.name).latency_s
            for number, nic in nics.items()
        }
        nearest_s = min(ways_s.values(), default=0.0)
        if any(way_s > nearest_s for way_s in ways_s.values()):
            near[NIC] = [number for number, way_s in ways_s.items() if way_s == nearest_s]
        if ways := {other: _byte_s(machine, gpu, known[other]) for other in known if other != unit}:
            near[GPU] = ways
        if near:
            coupled.setdefault(GPU, {})[unit] = near
    for number, nic in nics.items():
        if found := sorted(cores & nic.place.cpus):
            coupled.setdefault(NIC, {})[number] = {CORE: found}
    return coupled


def _byte_s(machine: Machine, one: Gpu, other: Gpu) -> float:
    """Say how many seconds a byte takes from one GPU to another one; none if it is the same."""
    if one.index == other.index:
        return 0.0
    return 1.0 / machine.distance(f"gpu{one.index}", f"gpu{other.index}").bandwidth_bytes_per_s


def visible_gpus(machine: Machine, visible: str | None = None) -> list[Gpu]:
    """List the GPUs of a machine in the order in which a process numbers them.

    `visible` are numbers or UUIDs with commas between them; by default ``CUDA_VISIBLE_DEVICES`` of
    this process. As in CUDA, what follows the first that is not there is not seen. Numbers are
    taken as NVML's, which are those of the PCI bus.
    """
    if visible is None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return list(machine.gpus)
    by_name: dict[str, Gpu] = {}
    for gpu in machine.gpus:
        by_name[str(gpu.index)] = gpu
        for uuid in (gpu.uuid, *(instance.uuid for instance in gpu.instances)):
            if uuid:
                by_name[uuid] = gpu
    found = []
    for name in visible.split(","):
        seen = by_name.get(name.strip())
        if seen is None:
            break
        found.append(seen)
    return found


def _ids(declared: Declared) -> dict[str, list[list[int]]]:
    """Give the ids of each pool by group, also of those that only count them."""
    counted = {
        name: [list(range(value))]
        for name, value in declared.items()
        if isinstance(value, int) and 0 < value <= IDS_MAX
    }
    return {**counted, **groups_of(declared)}


def _all_of(name: str, machine: Machine) -> list[list[int]]:
    if name == GPU:
        return _islands(machine, visible_gpus(machine))
    if name == NIC:
        return [list(range(len(_nics(machine))))]
    # Also those of a process that was pinned since the machine was looked at
    allowed = machine.allowed_cpus & os.sched_getaffinity(0)
    groups = [sorted(allowed & node.cpus) for node in machine.nodes]
    rest = sorted(allowed.difference(*groups))
    return [group for group in (*groups, rest) if group]


def _islands(machine: Machine, gpus: Sequence[Gpu]) -> list[list[int]]:
    """Put GPUs together that NVLink connects, directly or by way of others."""
    numbers: dict[int, list[int]] = {gpu.index: [] for gpu in gpus}
    for number, gpu in enumerate(gpus):
        numbers[gpu.index].append(number)
    island = {index: {index} for index in numbers}
    for link in machine.nvlinks:
        if all(index in island for index in link.gpus):
            joined: set[int] = set().union(*(island[index] for index in link.gpus))
            for index in joined:
                island[index] = joined
    distinct = {min(each): each for each in island.values()}
    return [
        sorted(number for index in each for number in numbers[index])
        for _, each in sorted(distinct.items())
    ]


def _nics(machine: Machine) -> Sequence[Any]:
    up = [nic for nic in machine.nics if nic.up and nic.kind in _NIC_KINDS]
    return up or list(machine.rdma)
