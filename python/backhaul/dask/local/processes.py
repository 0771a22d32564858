"""Dask's multiprocessing scheduler with resources, as `backhaul.dask.processes.get`."""

from __future__ import annotations

import multiprocessing.pool
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import dask.multiprocessing

from backhaul.dask.compat.names import (
    CPU_COUNT,
    GraphNode,
    MultiprocessingPoolExecutor,
    cloudpickle,
)
from backhaul.dask.compat.names import initialize_worker_process as initialize
from backhaul.dask.local.resource_gate import Gate, asked_in, declared_for
from backhaul.dask.resource_pools.requests import CPU, Needs, needs_of

__all__ = ["get"]

#: Most concurrent processes for tasks that ask for less than a CPU
_BESIDE_MAX = 32
#: Seed that Dask sets where none is set, so that hashes of strings are the same in all processes
_HASH_SEED = "6640"


def get(
    dsk: Any,
    keys: Any,
    num_workers: int | None = None,
    func_loads: Any = None,
    func_dumps: Any = None,
    optimize_graph: bool = True,
    pool: Any = None,
    initializer: Any = None,
    chunksize: int | None = None,
    *,
    resources: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Compute a graph in as many processes as there are cores, and units for each task.

    Parameters
    ----------
    dsk, keys, num_workers, func_loads, func_dumps, optimize_graph, pool, initializer, chunksize, \
**kwargs
        As for `dask.multiprocessing.get`, which computes graphs that ask for nothing. Where tasks
        ask for something each is sent alone, and where annotations say it none are fused.
    resources : mapping, optional
        Resources of all processes together, as for `backhaul.dask.threaded.get`. ``CPU`` is 1 for
        each process unless it is there; tasks that ask for no CPU get up to 32 processes more.

    Returns
    -------
    object
        The results, in the shape of `keys`.

    Raises
    ------
    ConfigError
        If a task asks for what can never be met. Names it, and what there is.
    """
    asked = asked_in(dsk)
    if asked is None:
        return dask.multiprocessing.get(
            dsk,
            keys,
            num_workers=num_workers,
            func_loads=func_loads,
            func_dumps=func_dumps,
            optimize_graph=optimize_graph,
            pool=pool,
            initializer=initializer,
            chunksize=chunksize,
            **kwargs,
        )
    num_workers = num_workers or dask.config.get("num_workers", None) or CPU_COUNT
    declared = declared_for(resources, cpus=num_workers)
    pool = pool or dask.config.get("pool", None)
    own: ProcessPoolExecutor | None = None
    if pool is None:
        beside = sum(needs.cpu < 1 for needs in asked.needs.values())
        amount = declared[CPU]
        assert isinstance(amount, float)
        pool = own = _processes(max(1, int(amount)) + min(beside, _BESIDE_MAX), initializer)
    elif isinstance(pool, multiprocessing.pool.Pool):
        pool = MultiprocessingPoolExecutor(pool)
    packing = _Packing(func_dumps or dask.config.get("func_dumps", None))
    try:
        gate = Gate(declared, asked.needs, pool, in_threads=False, needs_in=packing.needs_in)
        try:
            return dask.multiprocessing.get(
                asked.graph,
                keys,
                func_loads=func_loads,
                func_dumps=packing,
                optimize_graph=optimize_graph and not asked.is_annotated,
                pool=gate,
                chunksize=1,
                **kwargs,
            )
        finally:
            gate.close()
    finally:
        if own is not None:
            own.shutdown(cancel_futures=True)


def _processes(count: int, initializer: Any) -> ProcessPoolExecutor:
    """Make a pool as `dask.multiprocessing.get` does; processes start when none is idle."""
    if os.environ.get("PYTHONHASHSEED") in (None, "0"):
        os.environ["PYTHONHASHSEED"] = _HASH_SEED
    initializer = initializer or dask.config.get("multiprocessing.initializer", None)
    return ProcessPoolExecutor(
        count,
        mp_context=dask.multiprocessing.get_context(),
        initializer=partial(initialize, user_initializer=initializer),
    )


class _Packed(bytes):
    """A task and its data for another process, with what this one has to know of it."""

    needs: Needs | None
    dependencies: tuple[Any, ...]

    def __reduce__(self) -> Any:
        return bytes, (bytes(self),)


class _Packing:
    """Function that `dask.local.get_async` calls, here with tasks and data, there with results.

    Without `dumps`, objects become bytes as `dask.multiprocessing.get` makes them.
    """

    def __init__(self, dumps: Any = None) -> None:
        self._dumps = dumps

    def __call__(self, value: Any) -> bytes:
        dumps = self._dumps or _default_dumps
        task = value[0] if isinstance(value, tuple) and len(value) == 2 else None
        if not isinstance(task, GraphNode):
            return bytes(dumps(value))
        packed = _Packed(dumps(value))
        # Of a fused task these are what its parts ask for.
        packed.needs = needs_of(task)
        packed.dependencies = tuple(value[1])
        return packed

    @staticmethod
    def needs_in(packed: _Packed) -> tuple[Needs | None, Iterable[Any]]:
        """Say what a task asks for and depends on."""
        return packed.needs, packed.dependencies


def _default_dumps(value: Any) -> bytes:
    return bytes(cloudpickle.dumps(value, protocol=5))
