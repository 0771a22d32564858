"""Clusters with one worker for each GPU, in the words of dask-cuda's users."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from backhaul.dask.launch.cluster import PlannedCluster
from backhaul.dask.launch.gpu_options import sort_gpu_options
from backhaul.dask.launch.options import refuse_beside_plan, sort_options
from backhaul.dask.launch.planning import choose_machine, choose_plan, read_plan
from backhaul.errors import ConfigError
from backhaul.topology import Machine, Plan

__all__ = ["DGX", "CUDACluster", "LocalCUDACluster", "devices"]


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
    device_memory_limit : int, float, str or None
        Most memory of its GPU that the results of a worker may take; beyond it, those that were not
        used for longest move to the host. Bytes, a fraction of the GPU's memory like 0.8, or a size
        like ``"5GB"``; ``"default"`` is 0.8; None, 0 and ``"auto"`` are no limit.
    log_spilling : bool
        Log what moves between GPU and host, in ``distributed.worker``.
    rmm_pool_size : int, float, str or None
        Initial size of a pool of device memory, as above, if workers shall allocate from one. By
        default the configuration's ``distributed-ucxx.rmm.pool-size``.
    rmm_maximum_pool_size : int, float, str or None
        Largest size of the pool.
    rmm_managed_memory : bool
        Allocate memory that moves between host and GPU by itself; not together with `rmm_async`.
    rmm_async : bool
        Allocate from CUDA's own pool, in the order of streams.
    rmm_release_threshold : int, float, str or None
        Free memory above which that pool gives back what it has; needs `rmm_async`.
    rmm_allocator_external_lib_list : str or list of str, optional
        Libraries that shall allocate from the same: ``"cupy"``, ``"torch"``.
    rmm_log_directory : path, optional
        Where each worker logs what it allocates; needs a pool, `rmm_managed_memory` or `rmm_async`.
    rmm_track_allocations : bool
        Count what is allocated, for the dashboard.
    enable_tcp_over_ucx, enable_infiniband, enable_nvlink, enable_rdmacm : bool, optional
        As the keys ``tcp``, ``infiniband``, ``nvlink`` and ``rdmacm`` of the configuration, for
        workers.
    pre_import : str or list of str, optional
        Modules that workers import as they start.
    machine, plan
        As for `LocalCluster`.
    name : str, optional
        Name of the cluster.
    **options
        As for `LocalCluster`: `protocol`, `interface`, `dashboard_address`, `silence_logs`, ….

    Raises
    ------
    ConfigError
        If there is no GPU, or not the one asked for; says where was looked. If an option is not
        understood, contradicts another, or needs RMM where there is none; names option and value.
        As `LocalCluster` too.

    Notes
    -----
    ``docs/guides/from-dask-cuda.md`` compares it with ``LocalCUDACluster``, and says what has been
    run on a GPU.
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
        gpu_options, others = sort_gpu_options(options)
        settings = sort_options(others)
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
        workers = gpu_options.of_workers(settings.workers, plan)
        settings = replace(settings, workers=workers)
        super().__init__(
            plan=plan, settings=settings, n_workers=n_workers, overcommit=overcommit, name=name
        )


class LocalCUDACluster(CUDACluster):
    """Starts a worker for each GPU, with dask-cuda's defaults: programs change only their imports.

    Parameters
    ----------
    CUDA_VISIBLE_DEVICES, n_workers, threads_per_worker, memory_limit, device_memory_limit
        As for `CUDACluster`, in dask-cuda's order, and with its default for `device_memory_limit`.
    **options
        As for `CUDACluster`.

    Raises
    ------
    ConfigError
        As `CUDACluster`.
    """

    def __init__(
        self,
        CUDA_VISIBLE_DEVICES: str | int | Sequence[int | str] | None = None,
        n_workers: int | None = None,
        threads_per_worker: int = 1,
        memory_limit: float | str | None = "auto",
        device_memory_limit: float | str | None = "default",
        **options: Any,
    ) -> None:
        super().__init__(
            CUDA_VISIBLE_DEVICES,
            n_workers=n_workers,
            threads_per_worker=threads_per_worker,
            memory_limit=memory_limit,
            device_memory_limit=device_memory_limit,
            **options,
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


def _device(text: str, parts: Sequence[object]) -> int | str:
    if text.isdecimal():
        return int(text)
    if text.startswith(("GPU-", "MIG-")):
        return text
    raise ConfigError(
        f"CUDA_VISIBLE_DEVICES={','.join(map(str, parts))!r}: {text!r} is neither a number nor a "
        "UUID like GPU-… or MIG-…"
    )
