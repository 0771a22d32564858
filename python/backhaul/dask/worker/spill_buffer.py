"""The store of a worker's results: one lock, and what threads may ask of the results in memory.

`distributed.spill.SpillBuffer` has mappings of zict on top of each other, each with a lock; they
get one lock here, which guards the state of the worker as well.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from zict import LRU

from backhaul._locks import RLock
from backhaul.dask.compat.instance_patches import STORE_LOCK
from backhaul.dask.compat.names import SpillBuffer, Worker
from backhaul.dask.worker.lazy_collections import data_of

__all__ = [
    "has_room",
    "in_memory",
    "install_for_worker",
    "leave_room",
    "may_be_guarded",
    "share_lock",
    "store_lock",
    "touch",
]

#: Share of ``memory.target`` that results have, whatever else the process has
_RESULTS_SHARE_MIN: Final = 0.25


def install_for_worker(worker: Worker) -> None:
    """Give the store of a worker one lock, if the store is Dask's and empty."""
    data = data_of(worker)
    if isinstance(data, SpillBuffer) and not data:
        share_lock(data)


def share_lock(data: SpillBuffer) -> None:
    """Give a store one lock for its three mappings; no thread uses the store yet.

    The lock also guards the state of the worker (`backhaul.dask.worker.local_queue`). So a
    finalizer or a pickled value may read the state in a thread that has the lock of the store,
    while another thread changes the state and uses the store. zict releases the lock while it reads
    and writes files, as before.
    """
    lock = RLock()
    for mapping in (data, data.fast, data.slow):
        STORE_LOCK.install(mapping, {"lock": lock})


def leave_room(data: Any, unmanaged_bytes: float, spill_bytes: float) -> None:
    """Bound the results in memory by what the rest of the process leaves of it.

    Dask bounds results by ``memory.target``, and looks five times a second whether the process
    exceeds ``memory.spill``. Results that are read from disk before a task, or come from peers,
    exceed it sooner. Here a new result makes others go as soon as the process has no room for it
    below ``memory.spill``.

    Parameters
    ----------
    data : mapping
        The store of a worker's results; has no effect unless it is Dask's.
    unmanaged_bytes : float
        Memory of the process that is no result.
    spill_bytes : float
        Memory of the process above which Dask spills.
    """
    if type(data) is not SpillBuffer or type(fast := data.fast) is not LRU:
        return
    # zict keeps the weights and this below `n`.
    missing_bytes = fast.n - max(0.0, spill_bytes - unmanaged_bytes)
    fast.offset = min(max(0.0, missing_bytes), fast.n * (1 - _RESULTS_SHARE_MIN))


def touch(data: Any, keys: Collection[Any]) -> float | None:
    """Mark results as the most recently used ones, in this order.

    Returns
    -------
    float or None
        Sum of their bytes; None, without any effect, if one is not in memory, or the store is not
        Dask's.
    """
    if type(data) is not SpillBuffer or type(fast := data.fast) is not LRU:
        return None
    with fast.lock:
        if not all(key in fast.d for key in keys):
            return None
        return _touched(fast, keys)


def _touched(fast: LRU[Any, Any], keys: Collection[Any]) -> float:
    """Mark results as the most recently used ones, and sum their bytes; the lock is held."""
    order, weights = fast.order._d, fast.weights
    nbytes = 0.0
    for key in keys:
        del order[key]
        order[key] = None
        nbytes += weights[key]
    return nbytes


def has_room(data: Any, nbytes: float) -> bool:
    """Tell whether a worker's store would keep a result of a size in memory, without spilling.

    False for a store that is neither a dict nor Dask's, because such a store may do anything.
    """
    if type(data) is dict:
        return True
    if type(data) is not SpillBuffer or type(fast := data.fast) is not LRU:
        return False
    has_it: bool = nbytes <= fast.n and fast.total_weight + nbytes + fast.offset <= fast.n
    return has_it


def in_memory(data: Any, keys: Collection[Any]) -> list[Any] | None:
    """Look up results that are about to be released, if no disk is needed for that.

    Called by a thread that keeps the lock of the store's memory until the results are released.

    Returns
    -------
    list or None
        The results, with None for missing ones. None for all if one may be on disk, if the store is
        spilling any result, or if the store is neither a dict nor Dask's.

    Notes
    -----
    `zict.LRU.evict` (3.0) raises `KeyError` if a result that it has just written is released while
    it waits for its lock again.
    """
    if type(data) is dict:
        return [data.get(key) for key in keys]
    if type(data) is not SpillBuffer or type(fast := data.fast) is not LRU:
        return None
    values = fast.d
    if fast._cancel_evict or not all(key in values for key in keys):
        return None
    return [values.get(key) for key in keys]


def store_lock(data: Any) -> Any:
    """Return the one lock of a worker's store, which guards the state too; None if none does."""
    if not isinstance(data, SpillBuffer):
        return None
    slow: Any = data.slow
    return data.lock if data.lock is data.fast.lock is slow.lock else None


def may_be_guarded(data: Any) -> bool:
    """Tell whether the lock of a state cannot be in conflict with the locks of a store of Dask."""
    return not isinstance(data, SpillBuffer) or store_lock(data) is not None
