"""Messages that threads of a worker have read, and that the event loop has not taken.

Batches of messages are numbered from the first of the connection. The class has no lock, and calls
nothing: `early_reader` calls it with the lock of the local queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from backhaul.dask.comm.inbox import ALL, ALL_QUOTA, BATCHES, NONE, PARTS, Quota, messages_of
from backhaul.dask.worker.item_state import ENDED
from backhaul.dask.worker.transitions import State, set_transitions

__all__ = ["BEHIND_S", "CLOSED", "HELD", "LEFT_S", "OPEN", "Access", "EarlyMessages"]

#: Longest delay of the event loop behind the threads, in seconds
BEHIND_S: Final = 0.010

#: Longest time that tasks wait for threads that run other early tasks, in seconds
LEFT_S: Final = 0.050

#: Messages that threads may act on
_FOR_THREADS: Final = frozenset({"compute-task", "free-keys"})

#: Most freed keys that are kept, besides those whose messages the event loop has not handled
_FREED_MAX: Final = 256


class Access(State):
    """Permission of threads to begin with the oldest message that they have read."""

    #: A thread may begin with the message, and read later ones
    OPEN = "open"
    #: The message is a task that waits until the event loop has handled reports
    HELD = "held"
    #: The event loop takes messages first, up to the batch `blocked_to`
    CLOSED = "closed"


OPEN, HELD, CLOSED = Access

set_transitions({OPEN: (HELD, CLOSED), HELD: (OPEN, CLOSED), CLOSED: (OPEN,)})


class EarlyMessages:
    """Messages that threads have read.

    Attributes
    ----------
    access : Access
        The state.
    is_closed : bool
        Whether the state is `CLOSED`.
    taken : int
        Number of batches that the event loop has taken, or that threads have handled for it.
    seen : int
        Number of batches that threads have read; less than `taken` if threads have read no recent
        ones.
    blocked_to : int
        Number up to the last batch that the event loop has to take first. More than `taken` in the
        state `CLOSED`, and only then.
    waiting : deque of tuple
        Messages that no thread has begun with, oldest first, with the numbers of their batches:
        from `taken` to `seen`. Not empty in the state `HELD`.
    returns : bool
        Whether a thread has no task left, and reads messages next. A hint: a thread may change it
        without the lock.
    """

    __slots__ = (
        "_came",
        "_freed",
        "_parted_s",
        "_unseen_s",
        "access",
        "blocked_to",
        "is_closed",
        "returns",
        "seen",
        "taken",
        "waiting",
    )

    def __init__(self) -> None:
        self.access = OPEN
        self.is_closed = False
        self.taken = self.seen = self.blocked_to = 0
        self.waiting: deque[tuple[int, dict[str, Any]]] = deque()
        self.returns = False
        #: Arrival time of each batch that threads have read and the event loop has not taken, with
        #: its number
        self._came: deque[tuple[int, float]] = deque()
        #: Freed keys of messages that the event loop may not have taken, with the batch numbers
        self._freed: dict[Any, int] = {}
        #: Arrival time of a message that no thread has read; 0 if there is none
        self._unseen_s = 0.0
        #: Last time at which the event loop took a part of a batch
        self._parted_s = 0.0

    # Called by threads

    def read(self, batches: list[Any], now_s: float, *, is_last: bool) -> bool:
        """Read batches that have arrived; tell whether there are any.

        Parameters
        ----------
        batches : list of object
            All batches that neither the event loop has taken nor threads have read.
        now_s : float
            Current time, in seconds.
        is_last : bool
            Whether threads can read no batch after these before the event loop takes some.
        """
        if self.is_closed:
            # Not read now: the event loop may leave these to threads when it has taken the others.
            return bool(batches)
        number = max(self.seen, self.taken)
        self.seen = number + len(batches)
        if is_last:
            self.block()
        if not batches or self.is_closed:
            return bool(batches)
        self._unseen_s = 0.0
        news = []
        for batch in batches:
            for message in batch if isinstance(batch, (list, tuple)) else (batch,):
                if type(message) is not dict or message.get("op") not in _FOR_THREADS:
                    self.block()
                    return True
                news.append((number, message))
            self._came.append((number, now_s))
            number += 1
        self.waiting.extend(news)
        return True

    def first(self) -> dict[str, Any] | None:
        """Return the oldest message, which requests a task, or None; note freed keys before it."""
        waiting = self.waiting
        while waiting:
            number, message = waiting[0]
            if message["op"] != "free-keys":
                return message
            self._freed.update(dict.fromkeys(message["keys"], number))
            waiting.popleft()
        return None

    def begin(self) -> None:
        """Note that a thread has begun with the oldest message."""
        self.waiting.popleft()
        if self.access is HELD:
            self._enter(OPEN)

    def is_freed(self, key: Any) -> bool:
        """Tell whether an earlier message that the event loop may not have taken frees a key."""
        return key in self._freed

    def hold(self) -> None:
        """Let the oldest message wait until the event loop has handled reports."""
        if self.access is OPEN:
            self._enter(HELD)

    def block(self) -> None:
        """Let the event loop take all messages that threads have read, before they read more."""
        self.blocked_to = max(self.blocked_to, self.seen)
        if self.blocked_to > self.taken and not self.is_closed:
            self._enter(CLOSED)

    # Called by the event loop

    def on_reported(self) -> bool:
        """Note that reports are handled; tell whether to wake a thread for a held message."""
        if self.access is not HELD:
            return False
        self._enter(OPEN)
        return True

    def on_taken(self, taken: int) -> None:
        """Drop the batches that the event loop has taken; `taken` is the number of all taken."""
        self.taken = taken
        self._unseen_s = 0.0
        waiting, came = self.waiting, self._came
        if waiting and waiting[0][0] < taken:
            # The event loop took a task that no thread has begun; that comes before all others.
            waiting.clear()
            came.clear()
            self.seen = taken
        while came and came[0][0] < taken:
            came.popleft()
        if self._freed and (self.seen <= taken or len(self._freed) > _FREED_MAX):
            self._freed = {key: at for key, at in self._freed.items() if at >= taken}
        if (self.is_closed and self.blocked_to <= taken) or (self.access is HELD and not waiting):
            self._enter(OPEN)

    def quota(
        self,
        batches: list[Any],
        early: Mapping[Any, Any],
        now_s: float,
        *,
        is_waited_for: bool,
        reports_here: Callable[[], bool],
    ) -> Quota:
        """Return which messages the event loop may take.

        While threads go from task to task, the event loop takes the batches whose tasks have ended.
        When the next batch is `BEHIND_S` old, the event loop takes its ended tasks, and leaves the
        others to the threads until `LEFT_S`. The event loop takes all batches if no task has ended
        since it last took a part.

        Parameters
        ----------
        batches : list of object
            All batches that have arrived and that the event loop has not taken.
        early : mapping
            Early tasks by key.
        now_s : float
            Current time, in seconds.
        is_waited_for : bool
            Whether a thread waits for messages.
        reports_here : callable
            Tells whether threads may report tasks to the state machine.
        """
        if self.is_closed or not all(
            map(_is_for_threads, batches[max(0, self.seen - self.taken) :])
        ):
            return ALL_QUOTA
        came = self._came
        if came and reports_here():
            # A thread will report the task to the state machine, together with others.
            left_s = came[0][1] + BEHIND_S - now_s
            if left_s > 0:
                return Quota(NONE, later_s=left_s)
        count, ended = _count_ended(batches, early)
        while came and came[0][0] < self.taken + count:
            came.popleft()
        if count == len(batches):
            return ALL_QUOTA
        wakes = False
        if not came:
            # No thread has read the batch, and a thread that is about to wait might miss it.
            self._unseen_s = self._unseen_s or now_s
            wakes = is_waited_for
        came_s = came[0][1] if came else self._unseen_s
        left_s = max(came_s, self._parted_s) + BEHIND_S - now_s
        if wakes:
            # The woken thread begins these tasks sooner than the event loop could.
            left_s += LEFT_S - BEHIND_S
        if left_s <= 0 and not count:
            if ended and came and now_s - came_s < LEFT_S:
                self._parted_s = now_s
                return Quota(PARTS, ended)
            self.returns = False
            return Quota(ALL, wakes=wakes)
        # The waiting thread may have tried to read while the event loop was at work.
        wakes |= is_waited_for and bool(self.waiting)
        if count:
            return Quota(BATCHES, count, wakes=wakes)
        # At most `BEHIND_S`, for batches that a thread reads meanwhile.
        return Quota(NONE, later_s=min(left_s, BEHIND_S), wakes=wakes)

    def _enter(self, access: Access) -> None:
        assert access in self.access.following, f"{self.access} is followed by {access}"
        self.access = access
        self.is_closed = access is CLOSED

    def validate(self) -> None:
        """Check the invariants."""
        waiting = [number for number, _ in self.waiting]
        came = [number for number, _ in self._came]
        for numbers in (waiting, came):
            assert numbers == sorted(numbers)
            assert not numbers or self.taken <= numbers[0] <= numbers[-1] < self.seen
        assert self.is_closed == (self.blocked_to > self.taken)
        assert self.waiting or self.access is not HELD


def _is_for_threads(batch: Any) -> bool:
    return all(message.get("op") in _FOR_THREADS for message in messages_of(batch))


def _count_ended(batches: list[Any], early: Mapping[Any, Any]) -> tuple[int, int]:
    """Count the first batches whose tasks have ended, and the first such messages of the next."""
    for count, batch in enumerate(batches):
        for ended, message in enumerate(messages_of(batch)):
            if message.get("op") != "free-keys":
                item = early.get(message.get("key"))
                if item is None or item.state is not ENDED:
                    return count, ended
    return len(batches), 0
