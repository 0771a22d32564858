"""Results that several workers hold, for Dask's active memory manager while the core has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backhaul.dask.compat.names import (
    ActiveMemoryManagerExtension,
    ReduceReplicas,
    RetireWorker,
    TaskState,
)

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["may_look", "only_reduces", "snapshots"]


def only_reduces(manager: ActiveMemoryManagerExtension) -> bool:
    """Tell whether a manager only drops superfluous replicas."""
    return type(manager) is ActiveMemoryManagerExtension and all(
        type(policy) is ReduceReplicas for policy in manager.policies
    )


def may_look(manager: ActiveMemoryManagerExtension) -> bool:
    """Tell whether a manager only reads single tasks, and lets the scheduler change the state."""
    return type(manager) is ActiveMemoryManagerExtension and all(
        type(policy) in (ReduceReplicas, RetireWorker) for policy in manager.policies
    )


def snapshots(live: LiveCore) -> set[Any]:
    """Make a snapshot of each replicated result: a task with the attributes that the policy reads.

    The snapshots show one moment. Suggestions of the policy refer to tasks by key, and reach the
    core by `request_remove_replicas`.
    """
    workers = live.scheduler.workers
    waiting: dict[str, Any] = {}
    found = set()
    for one in live.core.replicated_tasks():
        ts = _task(live, one.key, "memory")
        ts.nbytes, ts.actor = one.nbytes, one.actor
        ts.who_has = {workers[address] for address in one.who_has}
        ts.waiters = set()
        for waiter, worker in one.waiters:
            if waiter not in waiting:
                waits = _task(live, waiter, "processing" if worker else "waiting")
                waits.processing_on = None if worker is None else workers[worker]
                waiting[waiter] = waits
            ts.waiters.add(waiting[waiter])
        found.add(ts)
    return found


def _task(live: LiveCore, text: str, state: str) -> Any:
    ts: Any = TaskState.__new__(TaskState)
    ts.key = live.texts.key(text)
    ts._hash = hash(ts.key)
    ts._state = state
    return ts
