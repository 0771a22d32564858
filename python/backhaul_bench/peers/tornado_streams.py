"""Peer: tornado's IOStream, which Dask's own tcp:// is made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from backhaul_bench.driver import AsyncDriver
from backhaul_bench.peers import Peer, Variant

__all__ = ["PEER", "Driver", "make_driver"]

PEER = Peer("tornado", [Variant("IOStream", "async")], packages=["tornado"])


def make_driver(options: Mapping[str, Any], *, role: str) -> Driver:
    """Make one end."""
    return Driver(options, role=role)


class Driver(AsyncDriver):
    """One IOStream without Nagle's delay."""

    _stream: Any

    @property
    def lane(self) -> str:
        """The path the bytes take."""
        return "tcp"

    async def listen(self) -> str:
        """Listen on a free port of loopback."""
        import asyncio

        from tornado.netutil import bind_sockets
        from tornado.tcpserver import TCPServer

        accepted = self._accepted = asyncio.get_running_loop().create_future()

        class Server(TCPServer):
            def handle_stream(self, stream: Any, address: Any) -> None:
                accepted.set_result(stream)

        self._server = Server()
        sockets = bind_sockets(0, "127.0.0.1")
        self._server.add_sockets(sockets)
        return str(sockets[0].getsockname()[1])

    async def accept(self) -> None:
        """Wait for the client; no other peer is let in."""
        self._stream = await self._accepted
        self._stream.set_nodelay(True)
        self._server.stop()

    async def connect(self, address: str) -> None:
        """Connect to a port of loopback."""
        from tornado.tcpclient import TCPClient

        self._stream = await TCPClient().connect("127.0.0.1", int(address))
        self._stream.set_nodelay(True)

    def sender(self, buffer: memoryview) -> Callable[[], Awaitable[object]]:
        """Write, until it is written out."""
        return partial(self._stream.write, buffer)

    def receiver(self, buffer: memoryview) -> Callable[[], Awaitable[object]]:
        """Read into the buffer until it is full."""
        return partial(self._stream.read_into, buffer)

    async def close(self) -> None:
        """Close the stream."""
        if hasattr(self, "_stream"):
            self._stream.close()
