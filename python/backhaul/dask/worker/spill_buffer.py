"""Class of a worker's store: a short path for results in memory, and one lock.

`distributed.spill.SpillBuffer` has four mappings of zict on top of each other, each with a lock:
to store, look up and release a small result takes 12 µs in them, more than any other part of a
small task. Here the same changes are made directly in their dictionaries, if the result is not on
disk, is not being written, and needs not be spilled. Dask's methods handle all other cases, and
all stores of a subclass.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from zict import LRU, Cache

from backhaul._locks import RLock
from backhaul.dask.compat.instance_patches import STORE_CLASS, STORE_LOCK
from backhaul.dask.compat.names import SpillBuffer, Worker, context_meter
from backhaul.dask.worker.lazy_collections import data_of

__all__ = [
    "STORES",
    "QuickSpillBuffer",
    "has_room",
    "in_memory",
    "install_for_worker",
    "may_be_guarded",
    "read_all",
    "share_lock",
    "store_lock",
    "touch",
]


class QuickSpillBuffer(SpillBuffer):
    """A `SpillBuffer` that has a short path for results in memory, and one lock.

    The class of the store of a worker; `install_for_worker` sets it.
    """

    def __getitem__(self, key: Any) -> object:
        fast = self.fast
        if key not in fast:
            return super().__getitem__(key)
        nbytes = fast.weights[key]
        _count_reads(self, 1, nbytes)
        return fast[key]

    def __setitem__(self, key: Any, value: object) -> None:
        # Short for a new key whose value fits beside all others
        fast: Any = self.fast
        slow: Any = self.slow
        # Otherwise the result is on disk, or is being written or read
        if not self._cancel_restore and key not in slow._last_updated:
            weight = fast.weight(key, value)
            with fast.lock:
                if (
                    key not in fast.d
                    and not fast._cancel_evict
                    and weight <= fast.n
                    and fast.total_weight + weight + fast.offset <= fast.n
                ):
                    fast.d[key] = value
                    fast.order._d[key] = None
                    fast.weights[key] = weight
                    fast.total_weight += weight
                    is_stored = True
                else:
                    is_stored = False
            if is_stored:
                self.logged_pickle_errors.discard(key)
                return
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        fast = self.fast
        if not self._cancel_restore:
            with fast.lock:
                is_here = key in fast.d and not fast._cancel_evict
                if is_here:
                    del fast.d[key]
                    del fast.order._d[key]
                    fast.heavy._d.pop(key, None)
                    fast.total_weight -= fast.weights.pop(key)
            if is_here:
                self.logged_pickle_errors.discard(key)
                return
        super().__delitem__(key)

    def __contains__(self, key: object) -> bool:
        return key in self.fast.d or super().__contains__(key)


# As programs see it
QuickSpillBuffer.__name__ = QuickSpillBuffer.__qualname__ = SpillBuffer.__name__

#: Stores whose dictionaries have the results in memory
STORES: Final = frozenset({SpillBuffer, QuickSpillBuffer})


def install_for_worker(worker: Worker) -> None:
    """Give the store of a worker that class and one lock, if the store is Dask's and empty."""
    data = data_of(worker)
    if isinstance(data, SpillBuffer) and not data:
        share_lock(data)
        if type(data) is SpillBuffer and type(data.fast) is LRU and type(data.slow) is Cache:
            STORE_CLASS.install(data, {"__class__": QuickSpillBuffer})


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


def read_all(data: Any, keys: Collection[Any]) -> dict[Any, Any]:
    """Look up results in a worker's store, one after another.

    Of those that are in memory, if all are, metrics are digested together.

    Raises
    ------
    KeyError
        If one is not there.
    """
    if (
        len(keys) > 1
        # Dask's own measures each read.
        and type(data) is QuickSpillBuffer
    ):
        fast = data.fast
        found: dict[Any, Any] | None = None
        nbytes = 0.0
        with fast.lock:
            values = fast.d
            if all(key in values for key in keys):
                found = {key: values[key] for key in keys}
                nbytes = _touched(fast, found)
        if found is not None:
            _count_reads(data, len(found), nbytes)
            return found
    return {key: data[key] for key in keys}


def touch(data: Any, keys: Collection[Any]) -> float | None:
    """Mark results as the most recently used ones, in this order.

    Returns
    -------
    float or None
        Sum of their bytes; None, without any effect, if one is not in memory, or the store is not
        Dask's.
    """
    if type(data) not in STORES or type(fast := data.fast) is not LRU:
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
    if type(data) not in STORES or type(fast := data.fast) is not LRU:
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
    if type(data) not in STORES or type(fast := data.fast) is not LRU:
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


def _count_reads(data: SpillBuffer, count: int, nbytes: float) -> None:
    totals = data.cumulative_metrics
    totals["memory-read", "count"] += count
    totals["memory-read", "bytes"] += nbytes
    context_meter.digest_metric("memory-read", count, "count")
    context_meter.digest_metric("memory-read", nbytes, "bytes")
