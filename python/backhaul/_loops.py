"""One bridge to the native engine for each event loop."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Callable

from backhaul._native import LoopBridge

__all__ = ["bridge_of", "settle"]

# Weak on both sides: the loop keeps its bridge, by the reader, until it is closed. A bridge leads
# to its loop by way of the futures, so a strong one here would keep a loop for ever that was
# closed with something pending.
_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[LoopBridge]] = (
    weakref.WeakKeyDictionary()
)


def bridge_of(loop: asyncio.AbstractEventLoop) -> LoopBridge:
    """Give the bridge of a loop, made and watched on first use.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        The running loop. It must have ``add_reader``, which all loops on Linux have.

    Returns
    -------
    LoopBridge
        The bridge. Its descriptors are closed with the loop.
    """
    known = _bridges.get(loop)
    bridge = None if known is None else known()
    if bridge is None:
        bridge = LoopBridge()
        loop.add_reader(bridge.fileno(), bridge.reader())
        _bridges[loop] = weakref.ref(bridge)
    return bridge


def settle(future: asyncio.Future[None]) -> Callable[[], None]:
    """Give a callback that settles a future unless it was cancelled meanwhile."""
    return functools.partial(_settle, future)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
