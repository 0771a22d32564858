"""The thread of a pool that waits for messages of the scheduler as well as for items.

The class has no lock, and calls nothing: `early_reader` calls it with a lock.
"""

from __future__ import annotations

from typing import Any

from backhaul.dask.worker.transitions import State, set_transitions

__all__ = ["ABSENT", "HANDED", "WAITING", "IdleThread", "Wait"]


class Wait(State):
    """Wait of a thread for messages."""

    #: No thread waits for messages
    ABSENT = "absent"
    #: One thread waits for messages and for items
    WAITING = "waiting"
    #: The waiting thread has been given an item, and is about to leave
    HANDED = "handed"


ABSENT, WAITING, HANDED = Wait

set_transitions({ABSENT: (WAITING,), WAITING: (HANDED, ABSENT), HANDED: (ABSENT,)})


class IdleThread:
    """State of the wait, with the item that the waiting thread was given.

    Attributes
    ----------
    state : Wait
        The state.
    item : object
        The item, if the state is `HANDED`; None otherwise.
    only_items : bool
        Whether a thread waits only for items, because no thread may read messages. The event loop
        wakes the thread with an item when messages may be read again. Independent of `state`,
        because another thread may come meanwhile.
    """

    __slots__ = ("item", "only_items", "state")

    def __init__(self) -> None:
        self.state = ABSENT
        self.item: Any = None
        self.only_items = False

    def come(self) -> None:
        """Note that a thread waits from now on."""
        assert self.state is ABSENT, "two threads wait for messages"
        self.state = WAITING

    def offer(self, item: Any) -> tuple[bool, bool]:
        """Offer an item; return whether to queue it, and whether to wake the waiting thread.

        The waiting thread has to read the queue for None, which ends threads, and for a second
        item.
        """
        if self.state is ABSENT:
            return True, False
        if self.state is WAITING and item is not None:
            self.state = HANDED
            self.item = item
            return False, True
        return True, True

    def leave(self, found: Any) -> tuple[Any, Any]:
        """End the wait; return the item that the thread runs, and the one to queue, or None.

        `found` is a task that the thread has found itself, or None. An item that was handed
        meanwhile then goes to another thread.
        """
        handed, self.item = self.item, None
        assert self.state is not ABSENT, "no thread waits for messages"
        self.state = ABSENT
        return (handed, None) if found is None else (found, handed)

    def may_read_again(self) -> bool:
        """Note that messages may be read again; tell whether to wake a thread."""
        wakes, self.only_items = self.only_items, False
        return wakes

    def validate(self) -> None:
        """Check the invariants."""
        assert (self.item is not None) == (self.state is HANDED)
