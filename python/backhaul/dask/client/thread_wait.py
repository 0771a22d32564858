"""Wait of a program's thread for futures, without the event loop of the client.

The thread acquires a lock that the event loop of the client, or another thread, releases when it
has set the states. While the thread waits, it may read the scheduler's messages
(`backhaul.dask.client.reader_thread`), if no other thread reads them; then it waits for messages
instead of the lock, and `ThreadReports.rouse` wakes it.

Every second the thread checks whether the event loop runs: one that has ended wakes no thread. No
wake-up depends on that (`tests/dask/test_client_schedules.py`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from backhaul.dask.client.reader_thread import ThreadReports, reports_of
from backhaul.dask.client.state_event import StateEvent
from backhaul.dask.compat.names import Client, FutureState

__all__ = ["wait_in_thread"]

logger = logging.getLogger(__name__)

#: How often a thread that waits checks the states, in seconds
_LOOK_S: Final = 1.0
#: How often a thread checks that waits in a signal handler, which interrupted its own read
_NESTED_LOOK_S: Final = 0.001


def wait_in_thread(
    client: Client, states: Sequence[FutureState], timeout_s: float | None, *, awake: bool = False
) -> bool:
    """Block this thread until all states are finished, or one fails or is cancelled.

    The event loop of the client runs in another thread. With `awake` the answer may arrive soon, so
    this thread polls for it before it sleeps. Returns False after the time-out; True also if this
    thread should not wait here, because the event loop has ended, or because a state has an event
    of another class than `StateEvent`.
    """
    pending = []
    for state in states:
        event: Any = state._event or state._get_event()
        if type(event) is not StateEvent:
            return True
        if not event.is_set():
            pending.append((event, state))
        elif state.status != "finished":
            return True
    if not pending:
        return True
    waiting = _Waiting(client, len(pending), awake)
    awaited = [_Awaited(waiting, state) for _, state in pending]
    for (event, _), each in zip(pending, awaited, strict=True):
        event.add(each)
        if event.is_set():
            # The thread that set the event may have missed this waiter.
            each.wake()
    try:
        return waiting.wait(awaited, timeout_s)
    finally:
        for (event, _), each in zip(pending, awaited, strict=True):
            event.discard(each)


class _Awaited:
    """One state that a thread waits for."""

    __slots__ = ("_waiting", "state")

    def __init__(self, waiting: _Waiting, state: FutureState) -> None:
        self._waiting = waiting
        self.state = state

    def is_over(self) -> bool:
        """Tell whether the state has ended, as this thread reads it."""
        return bool(self.state.done())

    def wake(self) -> None:
        if self.state.status != "finished":
            self._waiting.end()
        else:
            self._waiting.count(self)


class _Waiting:
    """A thread that waits for states."""

    __slots__ = (
        "_client",
        "_counted",
        "_is_awake",
        "_lock",
        "_reports",
        "_states",
        "_thread",
        "is_over",
    )

    def __init__(self, client: Client, states: int, awake: bool) -> None:
        self._client = client
        #: Whether the thread polls before its first sleep
        self._is_awake = awake
        self._states = states
        #: The finished states; a set, because two threads may report the same state
        self._counted: set[_Awaited] = set()
        self.is_over = False
        self._thread = threading.get_ident()
        #: Released to wake this thread
        self._lock = threading.Lock()
        self._lock.acquire()
        #: The reader of messages that this thread waits in; None while it does not
        self._reports: ThreadReports | None = None

    def count(self, one: _Awaited) -> None:
        """Count a finished state; the last one ends the wait."""
        self._counted.add(one)
        if len(self._counted) >= self._states:
            self.end()

    def end(self) -> None:
        """End the wait."""
        self.is_over = True
        self.nudge()

    def nudge(self) -> None:
        """Wake the thread, so that it checks whether its wait has ended."""
        if threading.get_ident() == self._thread:
            # This thread handled the message itself, and checks next.
            return
        reports = self._reports
        if reports is not None:
            reports.rouse()
        # Another thread may have released the lock already.
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def wait(self, awaited: Sequence[_Awaited], timeout_s: float | None) -> bool:
        """Block until `end`; return False if the time-out passes first."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while not self.is_over:
            until = monotonic() + _LOOK_S
            if deadline is not None:
                until = min(until, deadline)
            reports = reports_of(self._client)
            if reports is None:
                self._sleep(until)
            else:
                self._read(reports, until)
            if self.is_over or monotonic() < until:
                continue
            if self._should_leave(awaited):
                return True
            if until == deadline:
                return False
        return True

    def _read(self, reports: ThreadReports, until: float) -> None:
        """Block until a time or a wake-up; read messages meanwhile if no other thread does."""
        try:
            reports.threads.append(self)
            if reports.become_reader(self):
                may_read = True
                try:
                    self._reports = reports
                    awake, self._is_awake = self._is_awake, False
                    may_read = reports.read(self, until, awake=awake)
                finally:
                    self._reports = None
                    reports.stop_reading(self, pass_on=may_read)
                if may_read or reports.may_read():
                    return
            elif reports.look_for_leader():
                until = min(until, monotonic() + _NESTED_LOOK_S)
            self._sleep(until)
        finally:
            try:  # noqa: SIM105 - for each result
                reports.threads.remove(self)
            except ValueError:
                pass

    def _sleep(self, until: float) -> None:
        # Nothing wakes a thread that has handled the last message itself.
        if not self.is_over:
            self._lock.acquire(timeout=max(0.0, until - monotonic()))

    def _should_leave(self, awaited: Sequence[_Awaited]) -> bool:
        """Tell whether the event loop has ended or a wake-up was missed; logs the latter."""
        event_loop: Any = self._client.loop
        if not event_loop.asyncio_loop.is_running():
            return True
        over = [each.state for each in awaited if each.is_over()]
        if len(over) == len(awaited) or any(state.status != "finished" for state in over):
            logger.warning(
                "A thread was not woken for %d futures that it waits for, the first of them %s, %r",
                len(over),
                over[0].status,
                over[0].key,
            )
            return True
        return False
