"""Reads values in threads before they are asked for. No I/O by itself, and no Dask.

Threads: any. Locks: `Prefetch._lock` guards the table of what was begun; no value is read and no
future is waited for under it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
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
        # Those that stay whatever is wanted
        self._kept: set[Any] = set()
        self._threads: ThreadPoolExecutor | None = None

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
        if begun is None:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, "backhaul-read-ahead")
            # No thread can be started, or the interpreter ends: the values are read when they are
            # asked for.
            with contextlib.suppress(RuntimeError):
                begun = self._begun[key] = self._threads.submit(self._read, key)
        return begun

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
        """Drop all values, and end the threads."""
        with self._lock:
            self._begun.clear()
            self._kept.clear()
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
