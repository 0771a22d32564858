"""Clusters with one worker for each GPU, in the words of dask-cuda's users."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from backhaul.dask.launch.cluster import PlannedCluster
from backhaul.dask.launch.options import refuse_beside_plan, sort_options
from backhaul.dask.launch.planning import choose_machine, choose_plan, read_plan
from backhaul.errors import ConfigError
from backhaul.topology import Machine, Plan

__all__ = ["DGX", "CUDACluster", "cuda_options", "devices"]

_LANES = "lanes are chosen for each pair of workers; there are none over UCX yet"
_RMM = (
    "memory pools of the GPU are the program's choice; give preload= a module that calls "
    "rmm.reinitialize"
)
#: Options of dask-cuda that mean something else here, with the values that ask for nothing
_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "device_memory_limit": (
        (None, 0, "0", "default", "auto"),
        "GPU memory is not spilled by Backhaul; set env={'CUDF_SPILL': 'on'} for cuDF",
    ),
    "enable_cudf_spill": ((None, False), "set env={'CUDF_SPILL': 'on'}"),
    "cudf_spill_stats": ((None, 0), "set env={'CUDF_SPILL_STATS': '1'}"),
    "jit_unspill": ((None, False), "it is gone from dask-cuda too, since 2026"),
    "log_spilling": ((None, False), "GPU memory is not spilled by Backhaul"),
    "shared_filesystem": ((None, False, True), "only jit_unspill used it"),
    "rmm_pool_size": ((None,), _RMM),
    "rmm_maximum_pool_size": ((None,), _RMM),
    "rmm_managed_memory": ((None, False), _RMM),
    "rmm_async": ((None, False), _RMM),
    "rmm_allocator_external_lib_list": ((None,), _RMM),
    "rmm_release_threshold": ((None,), _RMM),
    "rmm_log_directory": ((None,), _RMM),
    "rmm_track_allocations": ((None, False), _RMM),
    "enable_tcp_over_ucx": ((None, False), _LANES),
    "enable_infiniband": ((None, False), _LANES),
    "enable_nvlink": ((None, False), _LANES),
    "enable_rdmacm": ((None, False), _LANES),
}


class CUDACluster(PlannedCluster):
    """A cluster on this machine with one worker for each GPU.

    Each worker has the CPUs, the NUMA node and the network interface that are nearest to its GPU,
    finds that GPU first in ``CUDA_VISIBLE_DEVICES``, and has the Dask resource ``GPU: 1``.

    Parameters
    ----------
    CUDA_VISIBLE_DEVICES : str or sequence of int or str, optional
        GPUs to use, by number or UUID: ``"0,1"`` or ``[0, 1]``. By default those of the environment
        variable, or all.
    n_workers : int, optional
        How many of them to start a worker for, the first ones.
    threads_per_worker : int
        Threads of each worker.
    memory_limit : str, float, int or None
        Host memory of each worker, as for Dask; ``"auto"`` is the plan's share.
    device_memory_limit, rmm_pool_size, jit_unspill, …
        As in dask-cuda. What Backhaul does not do is refused, with what to do instead.
    pre_import : str, optional
        Modules that workers import as they start, comma-separated.
    machine, plan
        As for `LocalCluster`.
    name : str, optional
        Name of the cluster.
    **options
        As for `LocalCluster`: `protocol`, `interface`, `dashboard_address`, `silence_logs`, ….

    Raises
    ------
    ConfigError
        If there is no GPU, or not the one asked for; says where was looked. As `LocalCluster` too.
    """

    def __init__(
        self,
        CUDA_VISIBLE_DEVICES: str | int | Sequence[int | str] | None = None,
        *,
        n_workers: int | None = None,
        threads_per_worker: int = 1,
        machine: Machine | str | os.PathLike[str] | None = None,
        plan: Plan | str | os.PathLike[str] | None = None,
        overcommit: bool = False,
        name: str | None = None,
        **options: Any,
    ) -> None:
        settings = sort_options(cuda_options(options))
        if plan is None:
            found = choose_machine(machine)
            if not found.gpus:
                looked = "; ".join((f"looked at {', '.join(found.sources)}", *found.notes))
                raise ConfigError(
                    f"no GPU on {found.name!r} ({looked}); LocalCluster needs none, and machine= "
                    "takes one that was recorded"
                )
            plan = choose_plan(
                found,
                policy="per-gpu",
                threads_per_worker=threads_per_worker,
                gpus=devices(CUDA_VISIBLE_DEVICES),
                interface=settings.interface_prefix,
            )
        else:
            refuse_beside_plan(CUDA_VISIBLE_DEVICES=CUDA_VISIBLE_DEVICES, machine=machine)
            plan = read_plan(plan)
        super().__init__(
            plan=plan, settings=settings, n_workers=n_workers, overcommit=overcommit, name=name
        )


def DGX(
    interface: str = "ib",
    dashboard_address: str | None = ":8787",
    threads_per_worker: int = 1,
    silence_logs: Any = True,
    CUDA_VISIBLE_DEVICES: str | Sequence[int | str] | None = None,
    **kwargs: Any,
) -> CUDACluster:
    """Start a cluster on a DGX, each worker beside its GPU, CPUs and InfiniBand card.

    Parameters
    ----------
    interface : str
        Prefix of the network interfaces, often ``ib`` or ``bond``. Which of them a worker has is
        read from the machine, not counted.
    dashboard_address : str, optional
        Address of the scheduler's dashboard.
    threads_per_worker : int
        Threads of each worker.
    silence_logs : bool or int
        Whether to keep Dask's log quiet, or from which level on it is not.
    CUDA_VISIBLE_DEVICES : str or sequence of int or str, optional
        Like ``"0,1,2,3"`` or ``[0, 1, 2, 3]``, to use these GPUs only.
    **kwargs
        As for `CUDACluster`.

    Returns
    -------
    CUDACluster
        With one worker for each GPU.

    Raises
    ------
    ConfigError
        As `CUDACluster`, and if there is no network interface of that prefix.
    """
    return CUDACluster(
        CUDA_VISIBLE_DEVICES,
        interface=interface,
        dashboard_address=dashboard_address,
        threads_per_worker=threads_per_worker,
        silence_logs=silence_logs,
        **kwargs,
    )


def devices(given: str | int | Sequence[int | str] | None) -> list[int | str] | None:
    """Read a list of GPUs, as ``CUDA_VISIBLE_DEVICES`` has them.

    Parameters
    ----------
    given : str, int, or sequence of int or str, optional
        Numbers or UUIDs; without it, the environment variable.

    Returns
    -------
    list of int or str, or None
        None for all GPUs.

    Raises
    ------
    ConfigError
        If one is named twice, or is neither a number nor a UUID.
    """
    if given is None:
        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        if given is None:
            return None
    if isinstance(given, int):
        given = [given]
    parts = given.split(",") if isinstance(given, str) else list(given)
    found: list[int | str] = []
    for part in parts:
        device = _device(str(part).strip(), parts)
        if device in found:
            raise ConfigError(f"CUDA_VISIBLE_DEVICES={given!r} names GPU {device!r} twice")
        found.append(device)
    return found


def cuda_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Take dask-cuda's options out of those of a cluster.

    Parameters
    ----------
    options : mapping
        As users of dask-cuda write them.

    Returns
    -------
    dict
        For `sort_options`.

    Raises
    ------
    ConfigError
        If one asks for what Backhaul does not do; says what to do instead.
    """
    left = dict(options)
    for option, (harmless, reason) in _REFUSED.items():
        value = left.pop(option, None)
        if not any(value is allowed or value == allowed for allowed in harmless):
            raise ConfigError(
                f"{option}={value!r} is an option of dask-cuda, not of this: {reason}"
            )
    modules = left.pop("pre_import", None)
    if modules:
        preload = left.get("preload") or []
        left["preload"] = [
            *([preload] if isinstance(preload, str) else preload),
            *(module.strip() for module in str(modules).split(",")),
        ]
    return left


def _device(text: str, parts: Sequence[object]) -> int | str:
    if text.isdecimal():
        return int(text)
    if text.startswith(("GPU-", "MIG-")):
        return text
    raise ConfigError(
        f"CUDA_VISIBLE_DEVICES={','.join(map(str, parts))!r}: {text!r} is neither a number nor a "
        "UUID like GPU-… or MIG-…"
    )
