"""What a worker's line holds: tasks that threads take by themselves, and have ended."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["ForetoldItem", "Item"]


class Item(Protocol):
    """A task that is laid out, or that runs."""

    task_state: Any
    #: Whether a thread has taken it before the state machine named it
    is_claimed: bool
    #: Whether the thread that ended it went on at once, or has told the scheduler, so that the
    #: report may wait
    is_deferred: bool

    def claim(self) -> None:
        """Note that a thread has taken it; called by that thread."""

    def tell_ahead(self, *, is_last: bool) -> bool:
        """Tell the scheduler that it has ended, if that may be; called by its thread.

        What is not the last the thread has to tell for now may wait for others.
        """

    def is_over_ahead(self) -> bool:
        """Note that it has ended, which the event loop sees when it hears of it.

        False if it has heard of it; the lock of the line is held.
        """

    def finish(self) -> None:
        """Tell the state machine how it ended; called by the event loop."""


class ForetoldItem(Item, Protocol):
    """A task that a thread has begun before the event loop heard of it."""

    run_id: int
    #: Whether the state machine has heard that there is such a task
    is_heard: bool

    def adopt(self, task_state: Any) -> None:
        """Belong to what the state machine has made of it; called by the event loop."""

    def is_over(self) -> bool:
        """Tell whether it has ended and the scheduler knows."""

    def ending(self) -> Any:
        """Say how it ended; None if it is under way, or has not ended well."""

    def settle(self, prefix: str, span_id: str | None, inputs: Any) -> None:
        """Be done with it: the state machine goes through it later; called by the event loop."""

    def settle_in(self, sums: Any, prefix: str, span_id: str | None, inputs: Any) -> None:
        """Be done with it, as `settle`, but for the worker's metrics; called by any thread."""

    def disown(self) -> None:
        """Belong to nothing: the event loop has heard of it, and wants none."""

    def value(self) -> tuple[Any, ...]:
        """Give what it came to, alone; nothing while it runs, or if it raised."""
