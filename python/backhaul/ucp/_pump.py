"""Delivery of untagged messages and new peers to an event loop, without a task.

A *source* has one request of the fabric posted. Each event loop that waits for sources has a
`Pump`, which has the future of such a request call it. Futures, unlike tasks, may be left behind
when a loop is closed. Any number of loops and threads may watch a source; the one that sees its
request done first takes the result.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from backhaul._locks import RLock
from backhaul._native import Request
from backhaul.errors import BackhaulError, Cancelled

__all__ = ["Pump", "Source"]


class Source:
    """Requests of one kind, one at a time, and what is done with their results."""

    def __init__(self) -> None:
        # Entered again by what a result leads to.
        self._lock = RLock()
        self._request: Request[Any] | None = None
        self._is_over = False

    def post(self) -> Request[Any]:
        """Post the next request."""
        raise NotImplementedError

    def handle(self, result: Any) -> None:
        """Do what a result asks for."""
        raise NotImplementedError

    def handle_end(self, error: BackhaulError) -> None:
        """Do what has to be done when there are no more."""
        raise NotImplementedError

    def is_wanted(self) -> bool:
        """Tell whether a caller waits for it on any loop."""
        return False

    def drain(self) -> Request[Any] | None:
        """Handle what has come.

        Returns
        -------
        Request or None
            Request of the next result; None if there are no more.
        """
        with self._lock:
            while not self._is_over:
                try:
                    if self._request is None:
                        self._request = self.post()
                    if not self._request.done():
                        return self._request
                    request, self._request = self._request, None
                    result = request.result()
                except Cancelled:  # the task that awaited it is gone: it is asked for again
                    continue
                except BackhaulError as error:
                    # Also of a request that could not be posted, in a process forked from its own.
                    self._is_over = True
                    self.handle_end(error)
                else:
                    self.handle(result)
            return None

    def look(self) -> None:
        """Handle what has come, looking at the connection once."""
        request = self.drain()
        if request is None:
            return
        # Not yet, or the end, which `drain` sees.
        with contextlib.suppress(BackhaulError):
            request.wait(0)
        self.drain()


class Pump:
    """The sources that an event loop watches.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        The loop.
    sources : callable
        Gives all sources that there are.
    wants_all : callable
        Tells whether something waits that any source may bring.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sources: Callable[[], Iterable[Source]],
        wants_all: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._sources = sources
        self._wants_all = wants_all
        self._watched: dict[Source, Request[Any]] = {}
        #: A caller has waited here for a result that any source may bring.
        self.is_wide = False

    def widen(self) -> None:
        """Watch all sources, as long as something waits that any may bring; on the loop."""
        self.is_wide = True
        for source in self._sources():
            self.watch(source)

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> bool:
        """Call something on the loop, from any thread; false if the loop is closed."""
        try:
            if asyncio._get_running_loop() is self._loop:
                self._loop.call_soon(callback, *arguments)
            else:
                self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            return False
        return True

    def watch_soon(self, source: Source) -> bool:
        """Watch a source, from any thread; false if the loop is closed."""
        return self.call_soon(self.watch, source)

    def watch(self, source: Source) -> None:
        """Watch a source as long as it is wanted; on the loop. Once is enough."""
        if source not in self._watched:
            self._watch(source)

    def _watch(self, source: Source) -> None:
        # A source is looked at no longer than it is wanted: to begin a wait polls for a while.
        while (request := source.drain()) is not None and self._is_wanted(source):
            # Held already now, for what `drain` leads to may ask for the source to be watched.
            self._watched[source] = request
            try:
                future = next(request.__await__())
            except (StopIteration, BackhaulError):
                continue
            future.add_done_callback(lambda _: self._watch(source))
            return
        # The next request stays posted; a caller that wants the source looks at it again.
        self._watched.pop(source, None)

    def _is_wanted(self, source: Source) -> bool:
        return source.is_wanted() or (self.is_wide and self._wants_all())
