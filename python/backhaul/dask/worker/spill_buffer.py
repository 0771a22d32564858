"""Short ways through a worker's store, for what stays in memory.

`distributed.spill.SpillBuffer` is four mappings of zict's on top of each other, each with its lock:
to store, look up and release a small result takes 12 µs in them, more than any other part of a
small task. Here the same changes are made directly in their dictionaries, if the result is not on
disk, is not being written, and needs not be spilled. Dask's methods handle all other cases, and
all stores of a subclass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from zict import LRU, Cache

from backhaul.dask.compat.names import SpillBuffer, context_meter

__all__ = [
    "has_room",
    "in_memory",
    "quick_contains",
    "quick_delitem",
    "quick_getitem",
    "quick_setitem",
    "read_all",
    "store_lock",
    "touch",
]


def quick_getitem(original: Callable[[SpillBuffer, Any], object]) -> Callable[..., object]:
    """Make a `__getitem__` without contexts for what is in memory."""

    def __getitem__(self: SpillBuffer, key: Any) -> object:
        fast = self.fast
        if key not in fast:
            return original(self, key)
        nbytes = fast.weights[key]
        _count_reads(self, 1, nbytes)
        return fast[key]

    __getitem__.reads_all = True  # type: ignore[attr-defined]
    return __getitem__


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
        and type(data) is SpillBuffer
        and type(fast := data.fast) is LRU
        # Otherwise `__getitem__` is not the patch above.
        and hasattr(SpillBuffer.__getitem__, "reads_all")
    ):
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
    """Return the lock of the memory of a worker's store; None if the store is not Dask's."""
    if type(data) is not SpillBuffer or type(fast := data.fast) is not LRU:
        return None
    return fast.lock


def _count_reads(data: SpillBuffer, count: int, nbytes: float) -> None:
    totals = data.cumulative_metrics
    totals["memory-read", "count"] += count
    totals["memory-read", "bytes"] += nbytes
    context_meter.digest_metric("memory-read", count, "count")
    context_meter.digest_metric("memory-read", nbytes, "bytes")


def quick_setitem(
    original: Callable[[SpillBuffer, Any, object], None],
) -> Callable[[SpillBuffer, Any, object], None]:
    """Make a `__setitem__` for a new key whose value fits beside all others."""

    def __setitem__(self: SpillBuffer, key: Any, value: object) -> None:
        slow, fast = self.slow, self.fast
        if (
            type(self) is SpillBuffer
            and type(fast) is LRU
            and type(slow) is Cache
            and not self._cancel_restore
            # The result is on disk, or is being written
            and key not in slow._last_updated
        ):
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
        original(self, key, value)

    return __setitem__


def quick_delitem(
    original: Callable[[SpillBuffer, Any], None],
) -> Callable[[SpillBuffer, Any], None]:
    """Make a `__delitem__` for what is in memory."""

    def __delitem__(self: SpillBuffer, key: Any) -> None:
        fast = self.fast
        if type(self) is SpillBuffer and type(fast) is LRU and not self._cancel_restore:
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
        original(self, key)

    return __delitem__


def quick_contains(
    original: Callable[[SpillBuffer, object], bool],
) -> Callable[[SpillBuffer, object], bool]:
    """Make a `__contains__` that looks into the memory first."""

    def __contains__(self: SpillBuffer, key: object) -> bool:
        fast = self.fast
        if type(fast) is LRU and key in fast.d:
            return True
        return original(self, key)

    return __contains__
