"""`as_completed` of many futures with one watcher, rather than a task of asyncio for each.

Dask's class runs a coroutine for each future, which waits for the state by two others and then
wakes the iterating thread or task. Here the states of a whole list wake one watcher, in the thread
that sets them; a callback of the event loop then queues all finished futures, in the order in which
they finished. With ``with_results``, the watcher adds the result of a future that the client has in
its cache (`backhaul.dask.client.result_cache`). Dask's coroutine handles all other futures:
those without a cached result, those that failed or were cancelled, and those of actors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from distributed import as_completed

from backhaul.dask.client.result_cache import held_by
from backhaul.dask.client.state_event import StateEvent
from backhaul.dask.compat.names import Client, Future

__all__ = ["watched_update"]


def watched_update(original: Callable[..., Any]) -> Callable[..., None]:
    """Make an `as_completed.update` that has one watcher for the futures of a call."""

    def update(self: as_completed, futures: Iterable[Any]) -> None:
        if type(self) is not as_completed or "_track_future" in vars(self):
            original(self, futures)
            return
        futures = list(futures)
        if not all(type(future) is Future for future in futures):
            # Futures of actors, or an error.
            original(self, futures)
            return
        with self.lock:
            for future in futures:
                self.futures[future] += 1
            if futures:
                self.loop.add_callback(_Watcher(self).watch, futures)

    return update


class _Watcher:
    """Queues futures of an `as_completed` that are finished, failed or cancelled.

    Its event loop calls all methods whose docstring names no thread.
    """

    def __init__(self, completed: as_completed) -> None:
        self._completed = completed
        #: Futures that have ended, oldest first
        self._over: deque[_Watched] = deque()
        #: Whether a callback that handles `_over` is scheduled
        self._is_due = False

    def watch(self, futures: list[Future[Any]]) -> None:
        """Begin to watch futures."""
        for future in futures:
            state: Any = future._state
            event: Any = None if state is None else state._get_event()
            if type(event) is not StateEvent:
                self._leave_to_dask(future)
                continue
            watched = _Watched(self, future, event)
            if not event.is_set():
                event.add(watched)
            # The thread that set the event meanwhile may have missed this waiter.
            if event.is_set():
                watched.wake()

    def hear(self, watched: _Watched) -> None:
        """Note that a future has ended, perhaps again; any thread may call this."""
        self._over.append(watched)
        if not self._is_due:
            self._is_due = True
            self._completed.loop.add_callback(self._hand_on)

    async def _hand_on(self) -> None:
        """Queue the futures that have ended, and wake as many iterators."""
        # Cleared before the loop, which sees a later future, or a new callback does.
        self._is_due = False
        completed = self._completed
        items = []
        while self._over:
            watched = self._over.popleft()
            if watched.is_handed_on:
                continue
            watched.is_handed_on = True
            watched.event.discard(watched)
            item = self._item(watched.future)
            if item is None:
                self._leave_to_dask(watched.future)
            else:
                items.append((watched.future, item))
        handed_on = 0
        with completed.lock:
            for future, item in items:
                if future in completed.futures:
                    completed.futures[future] -= 1
                    if not completed.futures[future]:
                        del completed.futures[future]
                    completed.queue.put_nowait(item)
                    handed_on += 1
        if handed_on:
            async with completed.condition:
                completed.condition.notify(handed_on)
            with completed.thread_condition:
                completed.thread_condition.notify(handed_on)

    def _item(self, future: Future[Any]) -> Any:
        """Return the item of the iteration; None if Dask has to fetch the result."""
        if not self._completed.with_results:
            return future
        client: Any = future._client
        if type(client) is not Client or client.futures.get(future.key) is not future._state:
            return None
        held = held_by(client)
        found = held.value_of(future.key) if held is not None else ()
        return (future, found[0]) if found else None

    def _leave_to_dask(self, future: Future[Any]) -> None:
        self._completed.loop.add_callback(self._completed._track_future, future)


class _Watched:
    """A future that is watched."""

    __slots__ = ("_watcher", "event", "future", "is_handed_on")

    def __init__(self, watcher: _Watcher, future: Future[Any], event: StateEvent) -> None:
        self._watcher = watcher
        self.event = event
        self.future = future
        #: Set by the event loop
        self.is_handed_on = False

    def wake(self) -> None:
        """Note that the state has ended, perhaps again; any thread may call this."""
        self._watcher.hear(self)
