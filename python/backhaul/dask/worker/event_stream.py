"""Handling of a stream of messages: `Server.handle_stream` for Backhaul's comms.

Differences from Dask's method: all arrived messages are handled in one turn of the event loop, the
properties of a handler are looked up once, and the state machine of a worker gets consecutive
events in one call, as its interface allows: it handles them in order, and the worker performs the
instructions after the last event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from types import CodeType, MethodType
from typing import Any

from backhaul.dask.comm.comm import BackhaulComm
from backhaul.dask.compat.instance_patches import SERVER_STREAMS
from backhaul.dask.compat.names import (
    CommClosedError,
    ComputeTaskEvent,
    Server,
    Worker,
    iscoroutinefunction,
)
from backhaul.dask.compat.operations import RELEASES
from backhaul.dask.compat.patching import named_as
from backhaul.dask.worker.event_makers import compute_task_event
from backhaul.dask.worker.inline_results import tell_scheduler
from backhaul.dask.worker.item_state import ENDED
from backhaul.dask.worker.local_queue import local_queue_of, mark_announced
from backhaul.dask.worker.stream_sharing import share_inbox
from backhaul.dask.worker.thread_events import apply_completed

__all__ = ["handle_stream", "install_for_server"]

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
        The exception of a handler.
    """
    logger.info("Starting established connection to %s", comm.peer_address)
    tell_scheduler(server, comm)
    stream = _Stream(server.stream_handlers, comm, extra or {})
    is_worker = isinstance(server, Worker)
    inbox = share_inbox(server, comm, stream.handle_now) if is_worker else None
    try:
        while True:
            try:
                batches = await comm.read_arrived()
            except CommClosedError:
                logger.info("Connection to %s has been closed.", comm.peer_address)
                return
            for batch in batches:
                if comm.given_up():
                    # A handler closed it: the next read raises, and later messages are dropped.
                    break
                if not await stream.handle(batch):
                    return
            comm.handled_all()
            if comm.readable():
                # The next read would not wait, so other callbacks of the event loop run first.
                if inbox is not None:
                    inbox.rest()
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
        #: Handlers seen, and how each is called.
        self._known: dict[str, _Handler] = {}

    def handle_now(self, batch: Any) -> None:
        """Handle a batch whose messages have no coroutines as handlers."""
        if self._comm.given_up():
            return
        try:
            self.handle(batch).send(None)
        except StopIteration:
            return
        raise RuntimeError(f"cannot be handled at once: {batch!r}")

    async def handle(self, batch: Any) -> bool:
        """Handle one batch; tell whether the stream continues."""
        stimuli: list[Any] = []
        worker: Worker | None = None
        try:
            for message in batch if isinstance(batch, (tuple, list)) else (batch,):
                if message == "OK":
                    return True
                op = message.pop("op")
                if not op:
                    logger.error("odd message %s", message)
                    continue
                if op == "close-stream":
                    peer = self._comm.peer_address
                    logger.info("Received 'close-stream' from %s; closing.", peer)
                    return False
                handler = self._handlers[op]
                known = self._known.get(op)
                if known is None or known.function is not handler:
                    known = self._known[op] = _Handler(handler)
                if self._extra:
                    message = {**self._extra, **message}
                if known.event is not None:
                    assert known.worker is not None
                    worker = known.worker
                    is_task = known.event is compute_task_event
                    if is_task and _has_ended(worker, message, stimuli):
                        continue
                    stimuli.append(known.event(**message))
                    # A thread has begun the task, and may have ended it, so it goes before others
                    if is_task and mark_announced(worker, message["key"]):
                        _stimulate(worker, stimuli)
                    continue
                if worker is not None:
                    _stimulate(worker, stimuli)
                    worker = None
                for part in _events_in(message) if op == RELEASES else (message,):
                    result = handler(**part)
                    if known.is_awaited:
                        await result
        finally:
            if worker is not None:
                _stimulate(worker, stimuli)
        return True


def _events_in(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message for each key of a message by which a client releases keys.

    The client joins the messages that Dask sends for single keys
    (`backhaul.dask.client.outgoing_queue`). The scheduler handles each as an event, because keys
    that are released together go through other transitions, which plugins count.
    """
    for key in message["keys"]:
        yield {**message, "keys": [key]}


def _stimulate(worker: Worker, stimuli: list[Any]) -> None:
    if not stimuli:
        return
    events = tuple(stimuli)
    stimuli.clear()
    worker.handle_stimulus(*events)


class _Handler:
    """A handler, and its properties.

    Attributes
    ----------
    function : callable
        The handler.
    is_awaited : bool
        Whether the handler is a coroutine function.
    event : callable or None
        Makes the event, if the handler only makes an event of its arguments and passes the event to
        the state machine of a worker.
    worker : Worker or None
        That worker.
    """

    __slots__ = ("event", "function", "is_awaited", "worker")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.is_awaited = iscoroutinefunction(function)
        self.event: Callable[..., Any] | None = None
        self.worker: Worker | None = None
        if getattr(function, "__code__", None) in _STIMULUS_CODES:
            cells = dict(
                zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            )
            kind = cells["cls"].cell_contents
            self.event = compute_task_event if kind is ComputeTaskEvent else kind
            self.worker = cells["self"].cell_contents


def _has_ended(worker: Worker, message: dict[str, Any], stimuli: list[Any]) -> bool:
    """Report an ended early task to a state in Rust, after some events.

    Returns False if the task needs a separate event; the other events may be handled even so.
    """
    local_queue = local_queue_of(worker)
    if local_queue is None or local_queue.state_owner is None:
        return False
    item = local_queue.early_tasks.get(message["key"])
    if item is None or item.run_id != message["run_id"] or item.state is not ENDED:
        return False
    _stimulate(worker, stimuli)
    return apply_completed(local_queue, item, message)


#: The code of the handlers that `Worker._handle_remote_stimulus` makes.
_STIMULUS_CODES = frozenset(
    code
    for code in getattr(
        Worker._handle_remote_stimulus, "__code__", handle_stream.__code__
    ).co_consts
    if isinstance(code, CodeType) and code.co_name == "_"
)


def install_for_server(server: Server) -> None:
    """Let a server handle streams over Backhaul's comms by `handle_stream`; idempotent."""
    original = Server.handle_stream
    if type(server).handle_stream is original and "handle_stream" not in vars(server):
        method = MethodType(named_as(original, _draining(original)), server)
        SERVER_STREAMS.install(server, {"handle_stream": method})


def _draining(original: Callable[..., Any]) -> Callable[..., Any]:
    ours = handle_stream

    def make() -> Callable[..., Any]:
        async def handle_stream(self: Any, comm: Any, extra: dict[str, Any] | None = None) -> None:
            if isinstance(comm, BackhaulComm):
                await ours(self, comm, extra)
            else:
                await original(self, comm, extra)

        return handle_stream

    return make()
