"""Protocols of the items of a worker's local queue."""

from __future__ import annotations

from typing import Any, Protocol

from backhaul.dask.worker.item_state import ItemState

__all__ = ["EarlyItem", "EarlyTasks", "Item"]


class EarlyTasks:
    """Early execution of the tasks of a worker, for its local queue; this class begins none.

    Attributes
    ----------
    state_owner : StateOwner or None
        Moves the state between Python and Rust.
    lock : threading.RLock or None
        The lock of the inbox, taken before that of the local queue.
    waits : Waits or None
        Waits for items of the queue of the pool, and for messages.
    """

    state_owner: Any = None
    lock: Any = None
    waits: Any = None

    def begin_next(self) -> Item | None:
        """Begin the next task that has arrived, for this thread; the queue's lock is held."""
        return None

    def go_on(self) -> None:
        """Note that this thread goes from one task to the next."""

    def catch_up(self) -> bool:
        """Handle the messages of early tasks; False if the event loop is doing that already."""
        return False

    def on_reported(self) -> None:
        """Note that the event loop has handled the reports of threads."""

    def validate(self) -> None:
        """Check the invariants; the queue's lock is held."""

    def fail(self, error: Exception) -> None:
        """End the stream with an error of a report."""
        raise error


class Item(Protocol):
    """A queued or running task."""

    task_state: Any
    #: Owner and progress of the task
    state: ItemState
    #: Whether the report to the state machine may wait: the thread has taken another task, or has
    #: reported to the scheduler
    is_deferred: bool

    def claim(self) -> None:
        """Note that a thread has taken the task; called by that thread."""

    def tell_ahead(self, *, is_last: bool) -> bool:
        """Report the end to the scheduler before the state machine has started the task.

        False if that is not possible: the event loop then reports the end. Unless `is_last`, the
        report may wait to be sent with others of the thread. Called by the thread of the task; the
        lock of the local queue is held.
        """

    def finish(self) -> None:
        """Report the end to the state machine; called by the event loop."""


class EarlyItem(Item, Protocol):
    """An early task: a thread has begun it before the event loop has its message."""

    run_id: int
    #: Whether the state machine has the task
    is_announced: bool

    def adopt(self, task_state: Any) -> None:
        """Join the task to the state machine's task; called by the event loop."""

    def ending(self) -> Any:
        """Return the outcome; None if the task is running, or has not succeeded."""

    def settle(self, prefix: str, span_id: str | None, inputs: Any) -> None:
        """Finish the item after the report to a state in Rust; called by the event loop."""

    def settle_in(self, sums: Any, prefix: str, span_id: str | None, inputs: Any) -> None:
        """Finish the item as `settle` does, with metrics in `sums`; called by any thread."""

    def wake(self) -> None:
        """Wake the thread if the task waits for its start."""

    def disown(self) -> None:
        """Abandon the task, because the state machine does not want it; its end is ignored."""

    def value(self) -> tuple[Any, ...]:
        """Return the result alone; empty while the task runs, or if it raised."""
