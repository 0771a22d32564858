"""Handling of a stream of messages: `Server.handle_stream` for our comms.

What differs from Dask's: all messages that have arrived are handled in one turn of the event loop,
and what is known of a handler is looked up once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from backhaul.dask.comm import BackhaulComm
from backhaul.dask.private import CommClosedError, iscoroutinefunction

__all__ = ["handle_stream"]

#: Dask's own log, for what Dask logs there.
logger = logging.getLogger("distributed.core")


async def handle_stream(server: Any, comm: BackhaulComm, extra: dict[str, Any] | None) -> None:
    """Call the server's stream handlers for each message until the stream ends.

    Parameters
    ----------
    server : distributed.core.Server
        Its ``stream_handlers`` are called with the fields of the message and `extra`.
    comm : BackhaulComm
        Closed at the end.
    extra : dict or None
        Arguments for every handler.

    Raises
    ------
    Exception
        What a handler raised.
    """
    logger.info("Starting established connection to %s", comm.peer_address)
    stream = _Stream(server.stream_handlers, comm, extra or {})
    try:
        while True:
            try:
                batches = await comm.read_arrived()
            except CommClosedError:
                logger.info("Connection to %s has been closed.", comm.peer_address)
                return
            for batch in batches:
                if comm.given_up():
                    # By a handler: the next read will say so, and the rest is not for us.
                    break
                if not await stream.handle(batch):
                    return
            if comm.readable():
                # The next read would not leave the event loop to others.
                await asyncio.sleep(0)
    finally:
        await comm.close()


class _Stream:
    """The handlers of one stream."""

    def __init__(
        self, handlers: dict[str, Callable[..., Any]], comm: BackhaulComm, extra: dict[str, Any]
    ) -> None:
        self._handlers = handlers
        self._comm = comm
        self._extra = extra
        #: Handlers seen, and whether they are to be awaited.
        self._known: dict[str, tuple[Callable[..., Any], bool]] = {}

    async def handle(self, batch: Any) -> bool:
        """Handle one batch; tells whether the stream goes on."""
        for message in batch if isinstance(batch, (tuple, list)) else (batch,):
            if message == "OK":
                return True
            op = message.pop("op")
            if not op:
                logger.error("odd message %s", message)
            elif op == "close-stream":
                peer = self._comm.peer_address
                logger.info("Received 'close-stream' from %s; closing.", peer)
                return False
            else:
                handler = self._handlers[op]
                known = self._known.get(op)
                if known is None or known[0] is not handler:
                    known = self._known[op] = handler, iscoroutinefunction(handler)
                result = handler(**{**self._extra, **message})
                if known[1]:
                    await result
        return True
