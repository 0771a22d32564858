"""Edges of a simulated worker: an event loop, a connection, the native lookout and a pool's queue.

All wait in a schedule of `tests.dask.schedules`, and use its time.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from backhaul.dask.comm import inbox
from backhaul.dask.comm.inbox import SharedInbox
from tests.dask.schedules import Schedule

__all__ = ["Endpoint", "Lookout", "Loop", "Pending", "new_inbox"]

#: Sizes of messages
SHORT_BYTES = 100
LONG_BYTES = 2 << 20


class Promise:
    """A result that a coroutine awaits on a `Loop`."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.is_set = False

    def set(self) -> None:
        if not self.is_set:
            self.is_set = True
            self._loop.call_soon(self._loop.resume)

    def __await__(self) -> Generator[None]:
        while not self.is_set:
            yield


class Timer(NamedTuple):
    at_s: float
    call: Callable[[], object]


class Loop:
    """An event loop that runs one coroutine, and callbacks, in a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._ready: deque[Callable[[], object]] = deque()
        self._timers: list[Timer] = []
        self._main: Any = None
        self.asyncio_loop = self

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._main is not None

    def create_future(self) -> Promise:
        return Promise(self)

    def call_soon(self, function: Any, *args: Any, context: Any = None) -> None:
        context = context or contextvars.copy_context()
        self._ready.append(partial(context.run, function, *args))

    def call_soon_threadsafe(self, function: Any, *args: Any, context: Any = None) -> None:
        self._schedule.step()
        self.call_soon(function, *args, context=context)

    def call_later(self, delay_s: float, function: Any, *args: Any) -> Timer:
        timer = Timer(self._schedule.now_s + delay_s, partial(function, *args))
        self._timers.append(timer)
        return timer

    def resume(self) -> None:
        try:
            self._main.send(None)
        except StopIteration:
            self._main = None

    async def turn(self) -> None:
        promise = self.create_future()
        promise.set()
        await promise

    def run(self, main: Any) -> None:
        asyncio._set_running_loop(self)  # type: ignore[arg-type]
        try:
            self._main = main
            self.call_soon(self.resume)
            while self._main is not None:
                self._run_once()
        finally:
            asyncio._set_running_loop(None)
            main.close()

    def _run_once(self) -> None:
        self._schedule.step(
            lambda: self._ready, lambda: min((timer.at_s for timer in self._timers), default=None)
        )
        for timer in [each for each in self._timers if each.at_s <= self._schedule.now_s]:
            self._timers.remove(timer)
            self._ready.append(timer.call)
        for _ in range(len(self._ready)):
            self._ready.popleft()()


class Request:
    """A receive."""

    def __init__(self) -> None:
        self.frames: list[Any] | None = None
        self.error: Exception | None = None
        self.lookout: Lookout | None = None

    def done(self) -> bool:
        return self.frames is not None or self.error is not None

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.frames

    def complete(self) -> None:
        if self.lookout is not None:
            self.lookout.wake()


class Endpoint:
    """The end of a connection, with messages in order."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._arrived: deque[Any] = deque()
        self._pending: deque[Request] = deque()
        self._error: Exception | None = None

    def recv_frames(self) -> Request:
        request = Request()
        if self._arrived:
            request.frames = self._arrived.popleft()
        else:
            request.error = self._error
            self._pending.append(request)
        return request

    def deliver(self, batch: Any) -> None:
        self._schedule.step()
        # Only the event loop decodes a long message.
        nbytes = LONG_BYTES if self._schedule.chance.random() < 0.05 else SHORT_BYTES
        frames = [SimpleNamespace(nbytes=nbytes, batch=batch)]
        if not self._pending:
            self._arrived.append(frames)
            return
        request = self._pending.popleft()
        request.frames = frames
        request.complete()

    def end(self) -> None:
        self._error = ConnectionError()
        for request in self._pending:
            request.error = self._error
            request.complete()


class Lookout:
    """`backhaul._native.Lookout`, as `crates/python/src/lookout.rs` does the same."""

    def __init__(self, schedule: Schedule, loop: Loop) -> None:
        self._schedule = schedule
        self._loop = loop
        self.is_manned = self._is_roused = self._is_closed = False
        self._callback: Callable[[], None] | None = None

    def watch(self, request: Request) -> bool:
        if request.done():
            return False
        request.lookout = self
        return True

    def expect(self, request: Request, callback: Callable[[], None]) -> bool:
        self._schedule.step()
        if request.done():
            return False
        self._callback = callback
        self._schedule.step()
        if request.done():
            self._callback = None
            return False
        return True

    def disregard(self) -> None:
        self._callback = None

    def wait(self, request: Request, timeout: float, *, awake: bool = False) -> bool:
        self._schedule.step()
        assert not self.is_manned, "another thread is on the lookout"
        self.is_manned = True
        until_s = self._schedule.now_s + timeout
        self._schedule.step(
            lambda: request.done() or self._is_roused or self._is_closed, lambda: until_s
        )
        is_roused = self._is_roused
        self.is_manned = self._is_roused = False
        return is_roused or request.done()

    def rouse(self, or_next: bool = False) -> bool:
        self._schedule.step()
        if not self.is_manned and not or_next:
            return False
        self._is_roused = True
        return True

    def close(self) -> None:
        self._is_closed = True

    def call(self, within_s: float = 0.0) -> None:
        self._schedule.step()
        callback = self._callback
        if callback is not None:
            self._loop.call_later(within_s, self._call, callback)

    def _call(self, callback: Callable[[], None]) -> None:
        if callback is self._callback:
            self._callback = None
            callback()

    def wake(self) -> None:
        if not self.rouse():
            self.call()


class Pending(queue.SimpleQueue[Any]):
    """The queue of a pool, as `WorkQueue`, which waits in a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.local_queue: Any = None
        self.reader: Any = None
        #: Number of threads that wait for items only
        self.waiting = 0

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._schedule.step()
        self.reader.put(super().put, item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return self.reader.get(self._get, timeout)

    def _get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block:
            assert timeout is not None
            until_s = self._schedule.now_s + timeout
            self.waiting += 1
            self._schedule.step(lambda: not self.empty(), lambda: until_s)
            self.waiting -= 1
        return super().get_nowait()


def new_inbox(
    endpoint: Endpoint,
    loop: Loop,
    monkeypatch: pytest.MonkeyPatch,
    handle: Callable[[Any], None] | None = None,
) -> SharedInbox:
    """Make the inbox of an endpoint that a loop reads."""
    monkeypatch.setattr(inbox, "bridge_of", lambda _: None)
    monkeypatch.setattr(inbox, "settle", lambda promise: promise.set)
    monkeypatch.setattr(inbox, "_decode", lambda frames, _: frames[0].batch)
    asyncio._set_running_loop(loop)  # type: ignore[arg-type]
    try:
        return SharedInbox(endpoint, deserialize=True, handle=handle)  # type: ignore[arg-type]
    finally:
        asyncio._set_running_loop(None)
