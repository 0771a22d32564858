"""One bridge to the native engine for each event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from weakref import WeakKeyDictionary

from backhaul._native import LoopBridge

__all__ = ["bridge_of", "settle"]

_bridges: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopBridge] = WeakKeyDictionary()


def bridge_of(loop: asyncio.AbstractEventLoop) -> LoopBridge:
    """Give the bridge of a loop, made and watched on first use.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        The running loop. It must have ``add_reader``, which all loops on Linux have.

    Returns
    -------
    LoopBridge
        The bridge; it lives as long as the loop.
    """
    bridge = _bridges.get(loop)
    if bridge is None:
        bridge = LoopBridge()
        loop.add_reader(bridge.fileno(), bridge.drain)
        _bridges[loop] = bridge
    return bridge


def settle(future: asyncio.Future[None]) -> Callable[[], None]:
    """Give a callback that settles a future unless it was cancelled meanwhile."""
    return functools.partial(_settle, future)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
