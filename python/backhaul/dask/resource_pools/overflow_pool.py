"""Threads for tasks that take less than one: beside those of a worker, as many as are needed.

A worker's own pool has a thread for each task that takes one, and no more. Tasks that ask for no
CPU, because they wait for a GPU or a disk, run here.
"""

from __future__ import annotations

import threading
from typing import Any

from backhaul.dask.compat.names import ThreadPoolExecutor, pool_thread_state, threads_lock
from backhaul.dask.resource_pools.rejoin import RejoinLock

__all__ = ["BESIDE", "OverflowThreadPoolExecutor"]

#: Name of the executor among those of a worker
BESIDE = "backhaul-beside"

#: Threads that may be idle, besides as many as are busy
_SPARE = 8
#: How often to look whether the pool is being shut down, in seconds
_PATIENCE_S = 0.05


class OverflowThreadPoolExecutor(ThreadPoolExecutor):
    """A pool with a thread for each task in it, and few more.

    Notes
    -----
    `grow` and `shrink` are called by one thread, that of the worker's event loop, before a task is
    submitted and after it has ended. `Worker.execute` knows by the name of the class that context
    variables reach its threads.
    """

    def __init__(self) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            1, thread_name_prefix="Dask-Backhaul-Beside"
        )
        self._rejoin_lock: Any = RejoinLock(self._rejoin_lock)
        #: Threads that have to leave, and have not; changed, with their set, under the lock
        self._leaving = 0
        self._leaving_lock = threading.Lock()

    def grow(self, tasks: int) -> None:
        """Allow a thread for each of so many tasks, once they are submitted."""
        with self._leaving_lock:
            # Threads that have to leave count until they have, and run nothing more.
            threads = tasks + self._leaving
        if threads > self._max_workers:
            self._max_workers = threads

    def shrink(self, tasks: int) -> None:
        """Send threads away if far more are there than tasks."""
        with self._leaving_lock:
            surplus = len(self._threads) - self._leaving - 2 * tasks - _SPARE
            self._leaving += max(0, surplus)
        if surplus > 0:
            self._max_workers = max(1, tasks)
            for _ in range(surplus):
                self._work_queue.put(_Leave(self))

    def left(self) -> None:
        """Note that a thread has left; called by it."""
        while not threads_lock.acquire(timeout=_PATIENCE_S):
            if self._shutdown:
                # It is held by who waits for this thread to end.
                return
        try:
            with self._leaving_lock:
                self._threads.discard(threading.current_thread())
                self._leaving -= 1
        finally:
            threads_lock.release()


class _Leave:
    """Ends the thread that takes it from the queue."""

    def __init__(self, executor: OverflowThreadPoolExecutor) -> None:
        self._executor = executor

    def run(self) -> None:
        """As a work item of the pool."""
        pool_thread_state.proceed = False
        self._executor.left()
