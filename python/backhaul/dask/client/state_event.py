"""The event of a future, which wakes threads as well as tasks of the event loop.

A thread that waits for a future (`backhaul.dask.client.thread_wait`) and `as_completed` add
themselves to the event; coroutines await it as they await Dask's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from backhaul._locks import RLock
from backhaul.dask.compat.names import FutureState

__all__ = ["StateEvent", "Waiter"]

#: Held while the event of a future is made
_making = RLock()


class _Waiter:
    """A coroutine that waits for a state."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        event_loop = self.future.get_loop()
        if asyncio._get_running_loop() is event_loop:
            self._go_on()
            return
        # A closed event loop has no task that waits.
        with contextlib.suppress(RuntimeError):
            event_loop.call_soon_threadsafe(self._go_on)

    def _go_on(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Waiter(Protocol):
    """A thread or coroutine that waits for a state."""

    def wake(self) -> None:
        """Hear that the state is there; again, if it is there again. Called by any thread."""


class StateEvent:
    """An `asyncio.Event` of a future that any thread may set, and that wakes threads, too."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[Waiter] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Wake all who wait, tasks for the next turn of the event loop; called by any thread."""
        self._is_set = True
        # A copy: a thread that is woken takes itself out. Also if it was set before: the thread
        # that set it may have been interrupted.
        for waiter in tuple(self._waiters):
            waiter.wake()

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> bool:
        if not self._is_set:
            waiter = _Waiter()
            self._waiters.append(waiter)
            try:
                # A thread may have set it since, and woken those who were there.
                if not self._is_set:
                    await waiter.future
            finally:
                self._waiters.remove(waiter)
        return True

    def add(self, waiter: Waiter) -> None:
        """Wake a waiter from now on; it must look after this whether the event is set."""
        self._waiters.append(waiter)

    def discard(self, waiter: Waiter) -> None:
        """Wake a waiter no longer."""
        try:  # noqa: SIM105 - for each result that a thread waits for
            self._waiters.remove(waiter)
        except ValueError:
            pass


def shared_event(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `FutureState._get_event` whose events are `StateEvent`."""

    def _get_event(self: FutureState) -> Any:
        event: Any = self._event
        if event is None:
            # A thread that waits may make it, too.
            with _making:
                event = self._event
                if event is None:
                    event = StateEvent()
                    self._event = event
        return event

    return _get_event
