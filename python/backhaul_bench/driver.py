"""Interface of a measured peer: one connection, and operations bound to a buffer.

An operation is prepared once for a buffer and then called with no argument, so that the measuring
loop adds nothing of its own (a ``functools.partial`` of the peer's own function is best).
Standard library only: it runs in the interpreters of the peers.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

__all__ = ["AsyncDriver", "BlockingDriver", "Driver", "TaskDriver"]


class Driver(ABC):  # noqa: B024 - its two kinds have the abstract methods
    """One end of a connection; the other process holds the other end."""

    #: Whether each receive fills its buffer; else only the first one does
    fills_buffers = True

    def __init__(self, options: Mapping[str, Any], *, role: str) -> None:
        self.options = options
        #: ``server`` listens and echoes, ``client`` connects and measures
        self.role = role

    @property
    def lane(self) -> str:
        """The path the bytes take, as far as the peer tells."""
        return ""

    @property
    def on_host(self) -> bool:
        """Tell whether the host may write to the buffers of `place`."""
        return True

    def place(self, buffer: memoryview) -> Any:
        """Give memory with these bytes, of the kind that is measured."""
        return buffer

    def read(self, placed: Any) -> Any:
        """Give what is in memory that `place` gave, for the host to look at."""
        return placed


class BlockingDriver(Driver):
    """A connection whose operations block until they are complete."""

    @abstractmethod
    def listen(self) -> str:
        """Listen on loopback; returns what :meth:`connect` of the other process needs."""

    @abstractmethod
    def accept(self) -> None:
        """Wait for the other process, after :meth:`listen`."""

    @abstractmethod
    def connect(self, address: str) -> None:
        """Connect to the address that the other process listens on."""

    @abstractmethod
    def sender(self, buffer: memoryview) -> Callable[[], object]:
        """Prepare to send the buffer."""

    @abstractmethod
    def receiver(self, buffer: memoryview) -> Callable[[], object]:
        """Prepare to receive exactly the buffer's size into it."""

    def send_many(self, buffer: memoryview, *, count: int, window: int) -> None:
        """Send the buffer `count` times with up to `window` sends in flight."""
        send = self.sender(buffer)
        for _ in range(count):
            send()

    def receive_many(self, buffers: Sequence[memoryview], *, count: int) -> None:
        """Receive `count` messages into the buffers in turn, one receive in flight for each."""
        receives = [self.receiver(buffer) for buffer in buffers]
        for index in range(count):
            receives[index % len(receives)]()

    @abstractmethod
    def close(self) -> None:
        """End the connection; idempotent."""


class AsyncDriver(Driver):
    """A connection whose operations are awaited."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """Make the event loop that everything else runs on."""
        return asyncio.new_event_loop()

    @abstractmethod
    async def listen(self) -> str:
        """Listen on loopback; returns what :meth:`connect` of the other process needs."""

    @abstractmethod
    async def accept(self) -> None:
        """Wait for the other process, after :meth:`listen`."""

    @abstractmethod
    async def connect(self, address: str) -> None:
        """Connect to the address that the other process listens on."""

    @abstractmethod
    def sender(self, buffer: memoryview) -> Callable[[], Awaitable[object]]:
        """Prepare to send the buffer."""

    @abstractmethod
    def receiver(self, buffer: memoryview) -> Callable[[], Awaitable[object]]:
        """Prepare to receive exactly the buffer's size into it."""

    async def send_many(self, buffer: memoryview, *, count: int, window: int) -> None:
        """Send the buffer `count` times with up to `window` sends in flight."""
        send = self.sender(buffer)
        for _ in range(count):
            await send()

    async def receive_many(self, buffers: Sequence[memoryview], *, count: int) -> None:
        """Receive `count` messages into the buffers in turn, one receive in flight for each."""
        receives = [self.receiver(buffer) for buffer in buffers]
        for index in range(count):
            await receives[index % len(receives)]()

    @abstractmethod
    async def close(self) -> None:
        """End the connection; idempotent."""


class TaskDriver(AsyncDriver):
    """A connection whose operations are coroutines: several are in flight as a task each."""

    async def send_many(self, buffer: memoryview, *, count: int, window: int) -> None:
        """Keep up to `window` sends in flight, each in a task."""
        send = self.sender(buffer)
        pending: deque[asyncio.Future[object]] = deque()
        for _ in range(count):
            if len(pending) == window:
                await pending.popleft()
            pending.append(asyncio.ensure_future(send()))
        await asyncio.gather(*pending)

    async def receive_many(self, buffers: Sequence[memoryview], *, count: int) -> None:
        """Keep a receive in flight for each buffer, each in a task."""
        receives = [self.receiver(buffer) for buffer in buffers]
        pending: deque[asyncio.Future[object]] = deque()
        for index in range(count):
            if len(pending) == len(receives):
                await pending.popleft()
            pending.append(asyncio.ensure_future(receives[index % len(receives)]()))
        await asyncio.gather(*pending)
