"""`as_completed` of many futures with one watcher, rather than a task of asyncio's for each.

Dask's has a coroutine for each future, which waits for its state by two others, and wakes whoever
iterates. Here the states of a whole list wake one watcher, in whichever thread they are set; a
callback of the event loop then hands on all that are there. Their order is that in which they came,
as ever. Where results are to come along, those that the client holds
(`backhaul.dask.client.result_cache`) do; any other future is Dask's from there, as are actors'
futures and what has failed or was cancelled.
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
            # Actors' futures, or an error.
            original(self, futures)
            return
        with self.lock:
            for future in futures:
                self.futures[future] += 1
            if futures:
                self.loop.add_callback(_Watcher(self).watch, futures)

    return update


class _Watcher:
    """Hands futures on that are finished, failed or cancelled.

    Parameters
    ----------
    completed : distributed.as_completed
        Where to. Its event loop runs whatever has no other thread in its documentation.
    """

    def __init__(self, completed: as_completed) -> None:
        self._completed = completed
        #: Those that are over, oldest first, and whether the event loop is to look at them
        self._over: deque[_Watched] = deque()
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
            # Whoever set it meanwhile may not have seen this one.
            if event.is_set():
                watched.wake()

    def hear(self, watched: _Watched) -> None:
        """Hear that a future is over, perhaps again; called by any thread."""
        self._over.append(watched)
        if not self._is_due:
            self._is_due = True
            self._completed.loop.add_callback(self._hand_on)

    async def _hand_on(self) -> None:
        """Hand on what there is, and wake who waits for it."""
        # Before it looks: one that comes from here on is seen, or comes in another turn.
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
        """Give what the iteration is to give; None if that takes more than a look."""
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
        """Hear that the state is there; again, if it is there again. Called by any thread."""
        self._watcher.hear(self)
