"""Peer: asyncio streams, what a Python developer reaches for first.

Streams have no receive into a buffer: ``readexactly`` returns new bytes, and that is what its
users pay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from backhaul_bench.driver import AsyncDriver
from backhaul_bench.peers import Peer, Variant

__all__ = ["PEER", "Driver", "make_driver"]

PEER = Peer("asyncio", [Variant("streams", "async")])

#: Received messages wait in the reader up to this many bytes before the peer is paused
_LIMIT_BYTES = 1 << 20


def make_driver(options: Mapping[str, Any], *, role: str) -> Driver:
    """Make one end."""
    return Driver(options, role=role)


class Driver(AsyncDriver):
    """A pair of streams."""

    # A copy that its users do not pay would be measured with it.
    fills_buffers = False

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter

    @property
    def lane(self) -> str:
        """The path the bytes take."""
        return "tcp"

    async def listen(self) -> str:
        """Listen on a free port of loopback."""
        self._accepted: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        self._accepted = asyncio.get_running_loop().create_future()
        self._server = await asyncio.start_server(
            lambda reader, writer: self._accepted.set_result((reader, writer)),
            "127.0.0.1",
            0,
            limit=_LIMIT_BYTES,
        )
        return str(self._server.sockets[0].getsockname()[1])

    async def accept(self) -> None:
        """Wait for the client; no other peer is let in."""
        self._reader, self._writer = await self._accepted
        self._server.close()

    async def connect(self, address: str) -> None:
        """Connect to a port of loopback."""
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", int(address), limit=_LIMIT_BYTES
        )

    def sender(self, buffer: memoryview) -> Callable[[], Awaitable[object]]:
        """Write and drain."""
        write, drain = self._writer.write, self._writer.drain

        def send() -> Awaitable[object]:
            write(buffer)
            return drain()

        return send

    def receiver(self, buffer: memoryview) -> Callable[[], Awaitable[object]]:
        """Read into new bytes; only the first is copied to the buffer, to be echoed and checked."""
        read = partial(self._reader.readexactly, len(buffer))
        copied = False

        async def receive() -> None:
            nonlocal copied
            received = await read()
            if not copied:
                buffer[:] = received
                copied = True

        return receive

    async def close(self) -> None:
        """Close the stream."""
        if hasattr(self, "_writer"):
            self._writer.close()
