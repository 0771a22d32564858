"""Messages that are matched across the connections of a context, in the order in which they came.

Forced tags and active messages do not belong to one connection, so the fabric cannot match them. It
brings their announcements; here each goes to the receive that has waited longest for its tag, or
waits for one. A `Waiter` fetches its payload itself, in its own loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

from backhaul._locks import RLock

if TYPE_CHECKING:
    from backhaul.ucp._connection import Connection

__all__ = ["Arrival", "Matcher", "Waiter"]


class Arrival(NamedTuple):
    """A message that was announced, and not received yet.

    Attributes
    ----------
    connection : Connection
        Connection that it came over.
    nbytes : int
        Its size, in bytes.
    payload : memoryview or None
        Its bytes, if they came with the announcement.
    number : int
        Else the number under which they can be fetched.
    on_device : bool
        Whether they were sent from a GPU.
    by_device : bool
        Whether they come from there, and not by way of the host.
    """

    connection: Connection
    nbytes: int
    payload: memoryview | None
    number: int
    on_device: bool = False
    by_device: bool = False


class Waiter:
    """A receive that waits for an arrival, on the event loop that made it.

    Parameters
    ----------
    key : hashable
        Key that it waits for.
    connection : Connection or None
        Whose end ends it; None if only that of the context does.
    is_wide : bool
        The arrival may come over any connection.
    """

    __slots__ = ("_future", "_loop", "arrival", "connection", "error", "is_wide", "key")

    def __init__(self, key: Hashable, connection: Connection | None, is_wide: bool) -> None:
        self.key = key
        self.connection = connection
        self.is_wide = is_wide
        self.arrival: Arrival | None = None
        self.error: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    async def wait(self) -> Arrival:
        """Wait for the arrival, or raise what ended the wait."""
        await self._future
        if self.error is not None:
            raise self.error
        assert self.arrival is not None, "a waiter is woken with an arrival or an error"
        return self.arrival

    def is_lost(self) -> bool:
        """Tell whether its loop is closed, so that nothing can wake it."""
        return self._loop.is_closed()

    def wake(self) -> bool:
        """Wake it from any thread; false if its loop is gone, and it with it."""
        try:
            if asyncio._get_running_loop() is self._loop:
                self._settle()
            else:
                self._loop.call_soon_threadsafe(self._settle)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _settle(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class Matcher:
    """Receives that wait, and arrivals that wait for one, by what they are matched by.

    All methods may be called from any thread.
    """

    def __init__(self) -> None:
        # Entered again by what garbage collection may run while it is held.
        self._lock = RLock()
        self._waiting: dict[Hashable, deque[Waiter]] = {}
        self._arrived: dict[Hashable, deque[Arrival]] = {}
        self._wide_waiting = 0

    def is_awaited(self, key: Hashable) -> bool:
        """Tell whether a receive waits for something."""
        return key in self._waiting

    def is_awaited_anywhere(self) -> bool:
        """Tell whether a receive waits for what any connection may bring."""
        return self._wide_waiting > 0

    def arrive(self, key: Hashable, arrival: Arrival, *, again: bool = False) -> None:
        """Hand an arrival to the waiter that has waited longest, or keep it.

        Parameters
        ----------
        key : hashable
            Key by which it is matched.
        arrival : Arrival
            The message.
        again : bool, optional
            It was taken, and comes back before all others.
        """
        with self._lock:
            waiting = self._waiting.get(key)
            while waiting:
                waiter = waiting.popleft()
                if not waiting:
                    del self._waiting[key]
                self._wide_waiting -= waiter.is_wide
                waiter.arrival = arrival
                if waiter.wake():
                    return
            arrived = self._arrived.setdefault(key, deque())
            if again:
                arrived.appendleft(arrival)
            else:
                arrived.append(arrival)

    def take(self, key: Hashable) -> Arrival | None:
        """Take the arrival that came first, if there is one."""
        with self._lock:
            arrived = self._arrived.get(key)
            if not arrived:
                return None
            arrival = arrived.popleft()
            if not arrived:
                del self._arrived[key]
            return arrival

    def has(self, key: Hashable) -> bool:
        """Tell whether an arrival waits."""
        with self._lock:
            return key in self._arrived

    def post(self, waiter: Waiter) -> Arrival | None:
        """Let a waiter wait, unless its arrival is there: then give the arrival immediately."""
        with self._lock:
            arrival = self.take(waiter.key)
            if arrival is None:
                self._waiting.setdefault(waiter.key, deque()).append(waiter)
                self._wide_waiting += waiter.is_wide
            return arrival

    def withdraw(self, waiter: Waiter) -> None:
        """End a wait; what was handed to the waiter goes to the next."""
        with self._lock:
            arrival, waiter.arrival = waiter.arrival, None
            if arrival is not None:
                self.arrive(waiter.key, arrival, again=True)
                return
            waiting = self._waiting.get(waiter.key)
            if waiting is not None and waiter in waiting:
                waiting.remove(waiter)
                self._wide_waiting -= waiter.is_wide
                if not waiting:
                    del self._waiting[waiter.key]

    def end(self, connection: Connection | None, error: BaseException) -> None:
        """Raise an error in the waiters of a connection; in all of them if it is None."""
        with self._lock:
            for key, waiting in list(self._waiting.items()):
                kept: deque[Waiter] = deque()
                for waiter in waiting:
                    if connection is not None and waiter.connection is not connection:
                        kept.append(waiter)
                    else:
                        self._wide_waiting -= waiter.is_wide
                        waiter.error = error
                        waiter.wake()
                if kept:
                    self._waiting[key] = kept
                else:
                    del self._waiting[key]

    def end_key(self, key: Hashable, error: BaseException) -> None:
        """Raise an error in all that wait for something."""
        with self._lock:
            for waiter in self._waiting.pop(key, ()):
                self._wide_waiting -= waiter.is_wide
                waiter.error = error
                waiter.wake()

    def forget_closed_loops(self) -> None:
        """Drop waiters whose loop was closed under them; they keep all that they wait with."""
        with self._lock:
            for key, waiting in list(self._waiting.items()):
                kept = deque(waiter for waiter in waiting if not waiter.is_lost())
                self._wide_waiting -= sum(waiter.is_wide for waiter in waiting)
                self._wide_waiting += sum(waiter.is_wide for waiter in kept)
                if kept:
                    self._waiting[key] = kept
                else:
                    del self._waiting[key]

    def forget(self, connection: Connection) -> None:
        """Drop arrivals of a connection that was closed here, which cannot be received any more.

        A message with a forced tag that is here whole is not its endpoint's, and stays.
        """
        with self._lock:
            if connection.peer is None:
                self._arrived.pop(connection.active_key, None)
            for key, arrived in list(self._arrived.items()):
                kept = deque(
                    one
                    for one in arrived
                    if one.connection is not connection or one.payload is not None
                )
                if kept:
                    self._arrived[key] = kept
                else:
                    del self._arrived[key]
