"""The queue of a worker's thread pool: one written in C, in the place of Python's."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable
from typing import Any, Final, Protocol

from backhaul.dask.compat.instance_patches import WORK_QUEUES
from backhaul.dask.compat.names import Worker, threads_lock
from backhaul.dask.worker.local_queue import LocalQueue, flushing_handle_stimulus, runs_are_on

__all__ = ["WAKE", "Waits", "WorkQueue", "install_work_queue"]


class Waits(Protocol):
    """Waits for items of a queue, and other things."""

    def put(self, put: Callable[[Any], None], item: Any) -> None:
        """Add an item by `put`, or give it to a thread that waits."""

    def get(self, get: Callable[..., Any], timeout_s: float) -> Any:
        """Take an item by `get`, or something else; `queue.Empty` if there is none in time."""


class WorkQueue(queue.SimpleQueue[Any]):
    """A queue written in C, with the one thing that `Worker.close` asks of Python's."""

    #: Local queue, from which the threads of the pool take tasks without this one
    local_queue: LocalQueue | None = None
    #: Waits for other things as well
    reader: Waits | None = None

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item; never waits."""
        if self.reader is None:
            super().put(item)
        else:
            self.reader.put(super().put, item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take an item; `queue.Empty` if there is none in time."""
        if self.reader is None or not block or timeout is None:
            return super().get(block, timeout)
        return self.reader.get(super().get, timeout)

    @property
    def queue(self) -> WorkQueue:
        """The object that `Worker.close` clears."""
        return self

    def clear(self) -> None:
        """Forget all that waits."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.get_nowait()


class _Wake:
    """An item for a thread that waits for items only: the thread waits for messages again."""

    def run(self) -> None:
        """Do nothing."""


WAKE: Final = _Wake()


def install_work_queue(
    worker: Worker,
    executor_name: str,
    make_local_queue: Callable[[Worker, Any], LocalQueue],
) -> None:
    """Give a thread pool that has no thread yet such a queue; others keep theirs.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    executor_name : str
        One of its pools.
    make_local_queue : callable
        Makes the local queue that threads of the worker's default pool take tasks from.
    """
    executor: Any = worker.executors[executor_name]
    if isinstance(executor._work_queue, WorkQueue) or executor._threads:
        return
    # The event loop must not wait for this lock: a thread that leaves its pool holds it while it
    # starts another thread, and `shutdown` holds it until all threads of a pool have ended.
    if not threads_lock.acquire(blocking=False):
        return
    try:
        with executor._shutdown_lock:
            if not executor._shutdown and not executor._threads and executor._work_queue.empty():
                work_queue = WorkQueue()
                ours: dict[str, Any] = {f"executors[{executor_name}]._work_queue": work_queue}
                has_local_queue = runs_are_on(worker, executor)
                if has_local_queue:
                    ours["handle_stimulus"] = flushing_handle_stimulus(worker)
                if WORK_QUEUES.install(worker, ours) and has_local_queue:
                    work_queue.local_queue = make_local_queue(worker, executor)
                    work_queue.reader = work_queue.local_queue.early.waits
    finally:
        threads_lock.release()
