"""Peer: the same streams as asyncio's, on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from backhaul_bench.peers import Peer, Variant
from backhaul_bench.peers.asyncio_streams import Driver as StreamsDriver

__all__ = ["PEER", "Driver", "make_driver"]

PEER = Peer("uvloop", [Variant("streams", "async")], packages=["uvloop"])


def make_driver(options: Mapping[str, Any], *, role: str) -> Driver:
    """Make one end."""
    return Driver(options, role=role)


class Driver(StreamsDriver):
    """A pair of streams on another loop."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """Make uvloop's loop."""
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
