"""Reads values in threads before they are asked for. No I/O by itself, and no Dask.

Threads: any. Reading threads begin with the first value and end with the last one. Locks:
`Prefetch._lock` guards the table of what was begun and the number of threads; no value is read and
no future is waited for under it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

__all__ = ["Prefetch"]

T = TypeVar("T")

#: One more than a disk needs to have a next request
_THREADS: Final = 2


class Prefetch(Generic[T]):
    """Values that are read ahead, by key.

    Parameters
    ----------
    read : callable
        Reads the value of a key; called by a thread.
    bytes_max : int
        Most bytes that are read ahead and not taken.
    """

    def __init__(self, read: Callable[[Any], T], bytes_max: int) -> None:
        self._read = read
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._begun: dict[Any, Future[T]] = {}
        # Keys of values that stay whatever is wanted
        self._kept: set[Any] = set()
        # Reads that no thread has begun, and the number of threads
        self._pending: deque[tuple[Any, Future[T]]] = deque()
        self._threads = 0

    def want(self, sizes: Mapping[Any, int], free_bytes: Callable[[], float]) -> None:
        """Read values ahead, and give up the ones that were wanted before and are not any more.

        Parameters
        ----------
        sizes : mapping
            Bytes by key, the most urgent one first. Reading ends before the first one that exceeds
            the bound, or for which there is no memory.
        free_bytes : callable
            Returns how much memory there is; asked if a value is not begun.
        """
        with self._lock:
            for key in self._begun.keys() - sizes.keys() - self._kept:
                self._begun.pop(key).cancel()
            left = self._bytes_max
            free = None
            for key, nbytes in sizes.items():
                left -= nbytes
                if left < 0:
                    break
                if key not in self._begun:
                    free = (free_bytes() if free is None else free) - nbytes
                    if free < 0:
                        break
                    self._begin(key)

    def keep(self, key: Any) -> Future[T] | None:
        """Read a value that stays until it is taken or discarded.

        Returns
        -------
        concurrent.futures.Future or None
            None if the system has no thread left.
        """
        with self._lock:
            begun = self._begin(key)
            if begun is not None:
                self._kept.add(key)
            return begun

    def _begin(self, key: Any) -> Future[T] | None:
        """Begin to read a value, if that is not begun; the lock is held."""
        begun = self._begun.get(key)
        if begun is not None:
            return begun
        if self._threads < _THREADS:
            thread = threading.Thread(target=self._run, name="backhaul-read-ahead", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The system has no thread left: the value is read when it is asked for.
                return None
            self._threads += 1
        begun = self._begun[key] = Future()
        self._pending.append((key, begun))
        return begun

    def _run(self) -> None:
        """Read values until none is left to be read."""
        while True:
            with self._lock:
                if not self._pending:
                    self._threads -= 1
                    return
                key, begun = self._pending.popleft()
            if begun.set_running_or_notify_cancel():
                try:
                    value = self._read(key)
                except BaseException as error:
                    begun.set_exception(error)
                else:
                    begun.set_result(value)
                    del value
            del key, begun

    def take(self, key: Any) -> Future[T] | None:
        """Return what was begun for a key, once.

        Returns
        -------
        concurrent.futures.Future or None
            A running or finished one; None if the caller has to read the value.
        """
        with self._lock:
            begun = self._pop(key)
        return None if begun is None or begun.cancel() else begun

    def discard(self, key: Any) -> None:
        """Drop the value of a key, which is another one from now on."""
        with self._lock:
            begun = self._pop(key)
        if begun is not None:
            begun.cancel()

    def keys(self) -> list[Any]:
        """List the keys of values that are read and not taken."""
        with self._lock:
            return list(self._begun)

    def _pop(self, key: Any) -> Future[T] | None:
        self._kept.discard(key)
        return self._begun.pop(key, None)

    def close(self) -> None:
        """Drop all values; threads end after the reads that they have begun."""
        with self._lock:
            begun = list(self._begun.values())
            self._begun.clear()
            self._kept.clear()
        for each in begun:
            each.cancel()
