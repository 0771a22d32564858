"""One connection of the fabric as the UCX-Py API uses it, and the messages that only we see.

Messages of an endpoint are tagged messages of the fabric, and none of this module's business. What
else the API has travels as untagged messages: a greeting, announcements of active messages and of
messages with forced tags, and a farewell. A payload too long to be copied follows its announcement
as a tagged message under a number of its own, straight into the memory of its receiver.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import struct
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from backhaul import _native
from backhaul._native import Request
from backhaul.errors import BackhaulError, EndpointClosed
from backhaul.ucp._arr import DeviceView
from backhaul.ucp._matching import Arrival
from backhaul.ucp._pump import Source
from backhaul.ucp._tags import PAYLOAD_TAG

if TYPE_CHECKING:
    from backhaul.ucp._context import ApplicationContext

__all__ = ["Connection", "Farewell", "Greeting", "staged", "wait_for_lingering"]

logger = logging.getLogger("ucx")

#: Kind of message, and three numbers: for announcements the tag, the number and the size.
_HEAD = struct.Struct("<BQQQ")
_GREETING, _SHUTDOWN, _ABORT, _ACTIVE, _FORCED = range(5)
#: Flags of the kind of an announcement: the message belongs on a GPU, and it comes from one.
_ON_DEVICE, _BY_DEVICE = 0x10, 0x20
#: Version of these messages; it goes with the greeting.
_VERSION = 1
#: Bytes of an id of a context.
ID_BYTES = 16

_TO_ENDPOINT, _TO_WORKER = range(2)


class Greeting(NamedTuple):
    """The first message of the side that connects.

    Attributes
    ----------
    to_worker : bool
        It came by the address of a worker, whose program gets no endpoint.
    sender : bytes
        Id of the context that connects.
    target : bytes
        Id of the context meant; empty for any context that listens.
    """

    to_worker: bool
    sender: bytes
    target: bytes


class Farewell(NamedTuple):
    """The last message of a side.

    Attributes
    ----------
    in_order : bool
        The program closed the endpoint, and wants what it has sent to be received.
    sent : int
        How many messages it has sent to the endpoint.
    """

    in_order: bool
    sent: int


class Connection(Source):
    """A connection of the fabric and what its untagged messages have told.

    Parameters
    ----------
    context : ApplicationContext
        Whose it is.
    native : backhaul.Endpoint
        The connection.
    peer : bytes, optional
        Id of the peer's context, for a connection to a worker.
    on_greeting : callable, optional
        Called with the connection and its `Greeting`, once that comes. None on the side that
        sends it.
    """

    def __init__(
        self,
        context: ApplicationContext,
        native: _native.Endpoint,
        *,
        peer: bytes | None = None,
        on_greeting: Callable[[Connection, Greeting], None] | None = None,
    ) -> None:
        super().__init__()
        self.context = context
        self.native = native
        self.peer = peer
        self.farewell: Farewell | None = None
        #: Messages for the peer's endpoint that the program has sent. Those with forced tags are
        #: for no endpoint.
        self.sent = 0
        #: Whether memory of GPUs reaches the peer, and its ours.
        self.by_device = not {"cuda", "ucx-cuda"}.isdisjoint(native.info()["carriers"])
        #: Closed from here.
        self.is_closed = False
        self._on_greeting = on_greeting
        self._close_callback: Callable[[], object] | None = None
        self._numbers = itertools.count(1)

    @property
    def active_key(self) -> Hashable:
        """Give the key by which active messages from this peer are matched.

        Peers that found each other by the addresses of their workers have a connection each way,
        so there it is the peer and not the connection.
        """
        return ("active", self if self.peer is None else self.peer)

    # Incoming messages

    def post(self) -> Request[list[memoryview]]:
        """Ask for the next untagged message."""
        return self.native.recv_frames()

    def is_wanted(self) -> bool:
        """Tell whether a greeting or an active message is waited for."""
        return self._on_greeting is not None or self.context.matcher.is_awaited(self.active_key)

    def handle(self, result: list[memoryview]) -> None:
        """Do what an untagged message says; one that makes no sense ends the connection."""
        try:
            kind, tag, number, nbytes = _HEAD.unpack(result[0])
            on_device, by_device = bool(kind & _ON_DEVICE), bool(kind & _BY_DEVICE)
            kind &= ~(_ON_DEVICE | _BY_DEVICE)
            payload = result[1] if len(result) > 1 else None
            if self._on_greeting is not None:
                self._handle_greeting(kind, tag, number, bytes(result[1]))
            elif kind in (_ACTIVE, _FORCED):
                if payload is not None and payload.nbytes != nbytes:
                    raise ValueError(f"payload of {payload.nbytes} bytes announced as {nbytes}")
                arrival = Arrival(self, nbytes, payload, number, on_device, by_device)
                key = self.active_key if kind == _ACTIVE else tag
                self.context.matcher.arrive(key, arrival)
            elif kind in (_SHUTDOWN, _ABORT):
                self.farewell = Farewell(kind == _SHUTDOWN, number)
            else:
                raise ValueError(f"kind {kind}")
        except (struct.error, IndexError, ValueError) as error:
            logger.warning("%s sent nonsense: %s", self.native.peer_address, error)
            self.native.abort()

    def _handle_greeting(self, kind: int, mode: int, version: int, ids: bytes) -> None:
        if kind != _GREETING or version != _VERSION:
            raise ValueError(f"greeting of kind {kind}, version {version}, ours is {_VERSION}")
        if mode not in (_TO_ENDPOINT, _TO_WORKER) or len(ids) not in (ID_BYTES, 2 * ID_BYTES):
            raise ValueError(f"greeting of mode {mode} with {len(ids)} bytes")
        greeting = Greeting(mode == _TO_WORKER, ids[:ID_BYTES], ids[ID_BYTES:])
        if greeting.to_worker:
            self.peer = greeting.sender
        on_greeting, self._on_greeting = self._on_greeting, None
        if on_greeting is not None:
            on_greeting(self, greeting)

    def handle_end(self, error: BackhaulError) -> None:
        """Fail what waits for this peer: the connection has ended."""
        self._on_greeting = None
        self.context.end_of(self, error)

    # Outgoing messages

    def greet(self, target: bytes = b"") -> None:
        """Tell the peer who connects, and whether to its worker."""
        mode = _TO_WORKER if target else _TO_ENDPOINT
        self.native.send_frames(
            [_HEAD.pack(_GREETING, mode, _VERSION, 0), self.context.id + target]
        )

    def announce(self, tag: int | None, view: memoryview | DeviceView) -> list[Request[None]]:
        """Send an active message, or with a tag one that is matched across connections.

        Parameters
        ----------
        tag : int or None
            The forced tag; None for an active message.
        view : memoryview of bytes, or DeviceView
            The message.

        Returns
        -------
        list of Request
            The message is sent when all of them are done.
        """
        kind = _ACTIVE if tag is None else _FORCED
        if tag is None:
            self.sent += 1
        if isinstance(view, DeviceView):
            # As in UCX, where a message that is copied on its way comes to the host.
            if view.nbytes >= self.context.settings.inline_bytes_max:
                kind |= _ON_DEVICE
            if self.by_device:
                kind |= _BY_DEVICE
                number = next(self._numbers)
                # First, as it is refused if the memory is not what it is said to be.
                payload = self.native.send(view, tag=PAYLOAD_TAG | number)
                head = _HEAD.pack(kind, tag or 0, number, view.nbytes)
                return [self.native.send_frames([head]), payload]
            view = memoryview(staged(view))
        if view.nbytes <= self.context.settings.inline_bytes_max:
            head = _HEAD.pack(kind, tag or 0, 0, view.nbytes)
            return [self.native.send_frames([head, view])]
        number = next(self._numbers)
        head = _HEAD.pack(kind, tag or 0, number, view.nbytes)
        return [
            self.native.send_frames([head]),
            self.native.send(view, tag=PAYLOAD_TAG | number),
        ]

    # The end

    def take_leave(self, *, in_order: bool) -> Request[None]:
        """Send the farewell."""
        kind = _SHUTDOWN if in_order else _ABORT
        return self.native.send_frames([_HEAD.pack(kind, 0, self.sent, 0)])

    def close(self) -> Request[None] | None:
        """Close from here; sent messages go out first, also when no caller waits for it.

        Returns
        -------
        Request or None
            Done when the connection has ended; None if it was closed before.
        """
        if self.is_closed:
            return None
        self.is_closed = True
        self.context.end_of(self, EndpointClosed("closed here"))
        try:
            request = self.native.close()
        except EndpointClosed:  # it is another process's, which has forked this one
            return None
        _linger(self.native, request)
        return request

    def abort(self) -> None:
        """Close from here without waiting, telling the peer only that it was."""
        if not self.is_closed:
            if not self.native.closed() and self.farewell is None:
                self.take_leave(in_order=False)
            self.close()
        self.run_close_callback()

    def set_close_callback(self, callback: Callable[[], object] | None) -> None:
        """Set a callback to be called once, when the connection ends or has no holder any more."""
        self._close_callback = callback
        if callback is not None:
            # Where no event loop runs, it is left to the end of the endpoint.
            with contextlib.suppress(RuntimeError):
                self.native.on_close(self.run_close_callback)

    def run_close_callback(self) -> None:
        """Call the callback, if it has not been called."""
        callback, self._close_callback = self._close_callback, None
        if callback is not None:
            callback()


def staged(view: DeviceView) -> bytearray:
    """Copy memory of a GPU to the host."""
    copy = bytearray(view.nbytes)
    _native.copy_memory(view, copy)
    return copy


#: Connections that were closed and may have something to send still: to drop them would end them.
_lingering: list[tuple[_native.Endpoint, Request[Any]]] = []


def _linger(native: _native.Endpoint, request: Request[Any]) -> None:
    _lingering[:] = [entry for entry in _lingering if not entry[1].done()]
    if not request.done():
        _lingering.append((native, request))


def wait_for_lingering(timeout_s: float) -> None:
    """Wait until what was closed has sent what it had to.

    Parameters
    ----------
    timeout_s : float
        The longest time to wait for all of them together, in seconds.
    """
    deadline = time.monotonic() + timeout_s
    while _lingering:
        _, request = _lingering.pop()
        with contextlib.suppress(BackhaulError):
            request.wait(max(0.0, deadline - time.monotonic()))
