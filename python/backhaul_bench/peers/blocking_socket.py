"""Peer: a plain blocking socket with a reused buffer, the least Python can add to TCP."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from backhaul_bench.driver import BlockingDriver
from backhaul_bench.peers import Peer, Variant

__all__ = ["PEER", "Driver", "make_driver"]

PEER = Peer("socket", [Variant("recv_into", "blocking")])


def make_driver(options: Mapping[str, Any], *, role: str) -> Driver:
    """Make one end."""
    return Driver(options, role=role)


class Driver(BlockingDriver):
    """One TCP connection without Nagle's delay."""

    _connection: socket.socket

    @property
    def lane(self) -> str:
        """The path the bytes take."""
        return "tcp"

    def listen(self) -> str:
        """Listen on a free port of loopback."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        return str(self._listener.getsockname()[1])

    def accept(self) -> None:
        """Wait for the client; no other peer is let in."""
        with self._listener:
            self._connection, _ = self._listener.accept()
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connect(self, address: str) -> None:
        """Connect to a port of loopback."""
        self._connection = socket.create_connection(("127.0.0.1", int(address)))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def sender(self, buffer: memoryview) -> Callable[[], object]:
        """Send all of it."""
        return partial(self._connection.sendall, buffer)

    def receiver(self, buffer: memoryview) -> Callable[[], object]:
        """Receive until the buffer is full."""
        receive_into, nbytes = self._connection.recv_into, len(buffer)

        def receive() -> None:
            received = receive_into(buffer)
            while received < nbytes:
                more = receive_into(buffer[received:])
                if more == 0:
                    raise ConnectionError(f"ended after {received} of {nbytes} bytes")
                received += more

        return receive

    def close(self) -> None:
        """Close the socket."""
        if hasattr(self, "_connection"):
            self._connection.close()
