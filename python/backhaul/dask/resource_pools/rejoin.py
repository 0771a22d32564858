"""A task that has seceded, and rejoins: it holds again what it asks for, and then gets a thread.

Dask's ``rejoin`` waits for a thread of the pool. Units that a task has returned by ``secede`` are
lent to others meanwhile, so a task waits for them too, and before: a task that waits for a lease
must not keep a thread from those that hold it. Programs have ``rejoin`` by name already, and Dask
calls it where a task computes another graph; all of them take a lock of the pool first, which is
where we stand.
"""

from __future__ import annotations

import threading
from typing import Any

from distributed.core import Status

from backhaul.dask.compat.names import pool_thread_state, thread_state
from backhaul.dask.resource_pools.leases import Lease, current_lease, lay_down, take_up
from backhaul.dask.resource_pools.start_tasks import start_more
from backhaul.errors import ResourceError

__all__ = ["RejoinLock"]

#: How often to look whether the worker is still there, in seconds
_PATIENCE_S = 1.0
_ENDING = frozenset((Status.closing, Status.closed, Status.failed))


class RejoinLock:
    """The lock of a pool for those that rejoin, before which a task takes a lease again."""

    __slots__ = ("_lock",)

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> bool:
        # Threads of the pool come here, too, between two tasks.
        if not pool_thread_state.proceed:
            lease = current_lease.get()
            # It need not be over yet: the event loop may still have to handle the secede.
            if lease is not None:
                _take_again(lease)
        return bool(self._lock.__enter__())

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _take_again(lease: Lease) -> None:
    """Wait until a lease holds again what it held, or as much of the same.

    Raises
    ------
    ResourceError
        If the worker ends, or has less by now than the task asks for.
    """
    worker, key = thread_state.execution_state["worker"], thread_state.key
    told = threading.Event()
    try:
        worker.loop.asyncio_loop.call_soon_threadsafe(_ask, worker, key, lease, told.set)
        while not told.wait(_PATIENCE_S):
            if worker.status in _ENDING or worker.loop.asyncio_loop.is_closed():
                break
    except RuntimeError:
        # The event loop has been closed.
        pass
    if lease.is_over:
        why = f"has less by now than {lease.needs!r} asks for" if told.is_set() else "is ending"
        raise ResourceError(f"{key!r} cannot rejoin: worker {worker.address} {why}")
    lay_down(lease)
    take_up(lease)


def _ask(worker: Any, key: Any, lease: Lease, tell: Any) -> None:
    """Ask for a lease again; called by the event loop of the worker."""
    worker.state.constrained.slots.take_again(worker.state.tasks.get(key), lease, tell)
    start_more(worker)
