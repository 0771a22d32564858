"""Short ways through a worker's store, for what stays in memory.

`distributed.spill.SpillBuffer` is four mappings of zict's on top of each other, each with its lock:
to store a small result, look whether it is there and let go of it takes 12 µs in them, more than
any other part of a small task. Here the same is done in the dictionaries that they keep, where
nothing is on disk or on its way, and nothing has to go there. Whatever else comes, and every store
that somebody has derived, is Dask's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zict import LRU, Cache

from backhaul.dask.private import SpillBuffer

__all__ = ["quick_contains", "quick_delitem", "quick_setitem"]


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
            # What is on disk, or being written
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
