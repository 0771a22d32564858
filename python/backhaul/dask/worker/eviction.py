"""Choice of the result that a worker spills next.

Dask spills the result that was used least recently. A graph that reads results in the order in
which they were made uses just these next, so that each is read from disk, and another one is
written in its place. Here the result that no task on this worker needs goes first, the least
recently used of them; then the one whose first task comes latest by its priority. Tasks of other
workers, and those that the scheduler has not assigned yet, are not known. While Python has the
worker's state, Dask's choice holds.

Results that are references to files have to stay in memory: a class says so by the attribute
``stays_in_memory``.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from distributed import Worker
from zict import LRU

from backhaul._native import WorkerCore
from backhaul.dask.compat.instance_patches import EVICTION
from backhaul.dask.compat.names import SpillBuffer
from backhaul.dask.worker.lazy_collections import data_of
from backhaul.dask.worker.local_queue import local_queue_of

__all__ = ["Eviction", "install", "install_for_worker"]

#: Results that are looked at, half of them the least recently used ones, half the most
_LOOKED_AT_MAX: Final = 128


class Eviction:
    """An `LRU.evict` for the results in memory of one store.

    Parameters
    ----------
    fast : zict.LRU
        The results in memory.
    core : callable, optional
        Returns the state of the worker while Rust has it, else None.
    """

    #: That results which have to stay in memory are never chosen
    spares_references: Final = True

    def __init__(
        self, fast: LRU[Any, Any], core: Callable[[], WorkerCore | None] | None = None
    ) -> None:
        self._fast = fast
        self._core = core
        self._original: Callable[..., Any] = fast.evict

    def __call__(self, *key: Any) -> Any:
        """Evict a result, one of its choice if no key is given.

        Raises
        ------
        KeyError
            If there is no result that may be evicted.
        """
        while not key:
            with self._fast.lock:
                chosen = self._chosen()
            if chosen is None:
                raise KeyError("evict(): all results stay in memory")
            try:
                return self._original(*chosen)
            except KeyError:
                # The result was released meanwhile.
                if chosen[0] in self._fast.d:
                    raise
        return self._original(*key)

    def _chosen(self) -> tuple[Any] | None:
        """Choose a result; the lock of the store is held."""
        fast = self._fast
        # Results that are larger than all memory for results go first, as Dask has it.
        if fast.heavy:
            found = self._first(fast.heavy)
            if found is not None:
                return found
        core = self._core() if self._core is not None else None
        if core is not None:
            keys = self._looked_at()
            # An event that is being handled may store a result; the state cannot be read then.
            with contextlib.suppress(RuntimeError):
                index = core.latest_needed(keys)
                if index is not None:
                    return (keys[index],)
        return self._first(fast.order)

    def _first(self, keys: Any) -> tuple[Any] | None:
        return next(((key,) for key in keys if self._may_go(key)), None)

    def _may_go(self, key: Any) -> bool:
        fast = self._fast
        return key not in fast._cancel_evict and not getattr(
            type(fast.d[key]), "stays_in_memory", False
        )

    def _looked_at(self) -> list[Any]:
        order = self._fast.order
        keys = [key for key in islice(order, _LOOKED_AT_MAX // 2) if self._may_go(key)]
        if len(order) > _LOOKED_AT_MAX // 2:
            left = min(_LOOKED_AT_MAX // 2, len(order) - _LOOKED_AT_MAX // 2)
            newest = [key for key in islice(reversed(order._d), left) if self._may_go(key)]
            keys += reversed(newest)
        return keys


def install_for_worker(worker: Worker) -> None:
    """Let a worker choose what it spills; again costs nothing."""
    # Its results may be kept for longer than the worker.
    found = weakref.ref(worker)

    def core() -> WorkerCore | None:
        known = found()
        line = None if known is None else local_queue_of(known)
        state_owner = None if line is None else line.state_owner
        return None if state_owner is None else state_owner.core

    install(data_of(worker), core)


def install(data: Any, core: Callable[[], WorkerCore | None] | None = None) -> None:
    """Let a store choose by the worker's tasks, if the store is Dask's.

    Parameters
    ----------
    data : mapping
        The store of a worker's results.
    core : callable, optional
        As for `Eviction`.
    """
    # A subclass may have another way to the disk.
    if not isinstance(data, SpillBuffer) or type(data).evict is not SpillBuffer.evict:
        return
    fast = data.fast
    if type(fast) is LRU and not isinstance(fast.evict, Eviction):
        ours = {"fast.evict": Eviction(fast, core), "evict": _never_raising(data.evict)}
        EVICTION.install(data, ours)


def _never_raising(original: Callable[[], int]) -> Callable[[], int]:
    """Make a `SpillBuffer.evict` that fails where all results have to stay."""

    def evict() -> int:
        try:
            return original()
        except KeyError:
            return -1

    return evict
