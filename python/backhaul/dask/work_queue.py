"""The queue of a worker's thread pool: one written in C, in the place of Python's."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable
from typing import Any

from backhaul.dask.instance_patches import EXECUTOR_QUEUE
from backhaul.dask.private import ThreadPoolExecutor, threads_lock
from backhaul.dask.runs import Line

__all__ = ["WorkQueue", "quicken"]


class WorkQueue(queue.SimpleQueue[Any]):
    """A queue written in C, with the one thing that `Worker.close` asks of Python's."""

    #: What the threads of the pool take without it
    line: Line | None = None

    @property
    def queue(self) -> WorkQueue:
        """What `Worker.close` clears."""
        return self

    def clear(self) -> None:
        """Forget all that waits."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.get_nowait()


def quicken(executor: ThreadPoolExecutor, make_line: Callable[[], Line | None]) -> None:
    """Give a thread pool that has no thread yet such a queue; others keep theirs.

    Parameters
    ----------
    executor : distributed.threadpoolexecutor.ThreadPoolExecutor
        The pool.
    make_line : callable
        Makes the line that its threads are to take tasks from, or gives None.
    """
    if isinstance(executor._work_queue, WorkQueue) or executor._threads:
        return
    # This lock is held while a thread leaves its pool and starts another in its place, and for as
    # long as somebody waits for the end of a pool: do not wait for it on the event loop.
    if not threads_lock.acquire(blocking=False):
        return
    try:
        with executor._shutdown_lock:
            if not executor._shutdown and not executor._threads and executor._work_queue.empty():
                work_queue = WorkQueue()
                if EXECUTOR_QUEUE.install(executor, work_queue):
                    work_queue.line = make_line()
    finally:
        threads_lock.release()
