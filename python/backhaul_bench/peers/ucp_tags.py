"""Peer: the UCX-Py API over our lanes: Backhaul, with what that API adds to each message."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from backhaul_bench.driver import BlockingDriver, TaskDriver
from backhaul_bench.pair import Contender, ProcessPair
from backhaul_bench.peers import Interpreter, Peer, Variant

__all__ = ["PEER", "AsyncUcp", "BlockingUcp", "make_driver"]

#: Names of UCX for our lanes
_TRANSPORTS = {"shm": "posix", "tcp": "tcp"}


def _start(variant: Variant, _: Interpreter) -> Contender:
    # Our own interpreter, as those of peers need not have the native module.
    return ProcessPair(
        __name__, variant.options, python=sys.executable, environment=variant.environment
    )


PEER = Peer(
    "ucp",
    [
        Variant(lane, api, {"api": api}, {"UCX_TLS": transport})
        for lane, transport in _TRANSPORTS.items()
        for api in ("async", "blocking")
    ],
    install="it comes with backhaul",
    start_variant=_start,
)


def make_driver(options: Mapping[str, Any], *, role: str) -> AsyncUcp | BlockingUcp:
    """Make one end with the API that the options name."""
    kind = AsyncUcp if options["api"] == "async" else BlockingUcp
    return kind(options, role=role)


class AsyncUcp(TaskDriver):
    """One endpoint of ``backhaul.ucp``."""

    _endpoint: Any = None

    @property
    def lane(self) -> str:
        """The lane that the handshake chose."""
        return str(self._endpoint.lane)

    async def listen(self) -> str:
        """Listen on a free port."""
        import backhaul.ucp as ucp

        self._accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._listener = ucp.create_listener(self._accepted.set_result)
        return str(self._listener.port)

    async def accept(self) -> None:
        """Wait for the client; no other peer is let in."""
        self._endpoint = await self._accepted
        self._listener.close()

    async def connect(self, address: str) -> None:
        """Connect to a port of loopback."""
        import backhaul.ucp as ucp

        self._endpoint = await ucp.create_endpoint("127.0.0.1", int(address))

    def sender(self, buffer: memoryview) -> Callable[[], Awaitable[object]]:
        """Send without a tag."""
        return partial(self._endpoint.send, buffer)

    def receiver(self, buffer: memoryview) -> Callable[[], Awaitable[object]]:
        """Receive without a tag."""
        return partial(self._endpoint.recv, buffer)

    async def close(self) -> None:
        """Abort: nothing is in flight, and the other end leaves too."""
        if self._endpoint is not None:
            self._endpoint.abort()
            self._endpoint = None


class BlockingUcp(BlockingDriver):
    """One endpoint of ``backhaul.ucp.blocking``."""

    _endpoint: Any = None

    @property
    def lane(self) -> str:
        """The lane that the handshake chose."""
        return str(self._endpoint.asynchronous.lane)

    def listen(self) -> str:
        """Listen on a free port."""
        from backhaul.ucp import blocking

        self._listener = blocking.create_listener()
        return str(self._listener.port)

    def accept(self) -> None:
        """Wait for the client; no other peer is let in."""
        self._endpoint = self._listener.accept()
        self._listener.close()

    def connect(self, address: str) -> None:
        """Connect to a port of loopback."""
        from backhaul.ucp import blocking

        self._endpoint = blocking.create_endpoint("127.0.0.1", int(address))

    def sender(self, buffer: memoryview) -> Callable[[], object]:
        """Send without a tag and wait."""
        return partial(self._endpoint.send, buffer)

    def receiver(self, buffer: memoryview) -> Callable[[], object]:
        """Receive without a tag and wait."""
        return partial(self._endpoint.recv, buffer)

    def close(self) -> None:
        """Abort: nothing is in flight, and the other end leaves too."""
        if self._endpoint is not None:
            self._endpoint.abort()
            self._endpoint = None
