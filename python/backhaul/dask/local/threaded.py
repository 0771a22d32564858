"""Dask's threaded scheduler with resources: ``x.compute(scheduler=backhaul.dask.threaded.get)``."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import dask.threaded

from backhaul.dask.compat.names import CPU_COUNT
from backhaul.dask.local.resource_gate import Gate, asked_in, declared_for

__all__ = ["get"]

#: Most concurrent threads, of all graphs that are computed
_THREADS_MAX = 4096

_pool: ThreadPoolExecutor | None = None


def get(
    dsk: Any,
    keys: Any,
    cache: Any = None,
    num_workers: int | None = None,
    pool: Executor | None = None,
    *,
    resources: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Compute a graph in as many threads as there are cores, and units for each task.

    Parameters
    ----------
    dsk, keys, cache, num_workers, pool, **kwargs
        As for `dask.threaded.get`, which computes graphs that ask for nothing.
    resources : mapping, optional
        The resources, like ``{"GPU": [[0, 1], [2, 3]], "MEMORY": 64e9}``; by default the value of
        the key ``backhaul.resources``. ``CPU`` is the number of threads unless it is there; tasks
        that ask for no CPU get threads of their own.

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
        return dask.threaded.get(
            dsk, keys, cache=cache, num_workers=num_workers, pool=pool, **kwargs
        )
    num_workers = num_workers or dask.config.get("num_workers", None) or CPU_COUNT
    pool = pool or dask.config.get("pool", None)
    gate = Gate(declared_for(resources, cpus=num_workers), asked.needs, pool or _threads())
    try:
        return dask.threaded.get(
            asked.graph, keys, cache=cache, pool=gate, **{**kwargs, "chunksize": 1}
        )
    finally:
        gate.close()


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        # It starts a thread when none is idle, so it has as many as once ran together.
        _pool = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="backhaul-threaded")
    return _pool
