"""`Endpoint`: one connected peer, with the methods that UCX-Py's had."""

from __future__ import annotations

import asyncio
import logging
import struct
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from backhaul import _native
from backhaul._buffers import Received
from backhaul._native import Request
from backhaul.errors import BackhaulError, ConnectionFailed, InvalidBuffer, TruncatedError
from backhaul.ucp._arr import DeviceView, flat, is_on_device, nbytes_of
from backhaul.ucp._connection import staged
from backhaul.ucp._tags import (
    ANY_MEMORY,
    DEFAULT_TAG,
    ON_DEVICE,
    device_payload_tag,
    endpoint_tag,
    forced_tag,
    hash64bits,
)
from backhaul.ucp.exceptions import (
    UCXBaseException,
    UCXCanceled,
    UCXCloseError,
    UCXConnectionReset,
    UCXError,
    UCXMsgTruncated,
)

if TYPE_CHECKING:
    from backhaul.ucp._connection import Connection
    from backhaul.ucp._context import ApplicationContext

__all__ = ["Endpoint"]

logger = logging.getLogger("ucx")

#: The fabric tells nobody when a queue is empty, so `Endpoint.flush` looks so often, in seconds.
_FLUSH_LOOK_S = 0.0005
#: Mask of a receive where the peer's memory of GPUs does not come as it is.
_EXACTLY = (1 << 64) - 1
#: Size of an object ahead of it, in bytes, as `Endpoint.send_obj` writes it.
_OBJECT_SIZE = struct.Struct("=Q")


class Endpoint:
    """One connected peer; made by `create_endpoint` and by the listener for its callback.

    Messages are matched by tag, in the order sent for each. An endpoint that nobody has any more is
    aborted.

    Parameters
    ----------
    connection : Connection
        The connection, greeted.
    error_handling : bool
        Whether a peer that dies closes the endpoint. If not it stays open, as UCX's endpoints do
        without error handling; operations fail all the same, where theirs wait for ever.
    """

    def __init__(self, connection: Connection, error_handling: bool) -> None:
        self._connection = connection
        self._context: ApplicationContext | None = connection.context
        #: The connection as long as it was not closed from here; the short way of messages.
        self._native: _native.Endpoint | None = connection.native
        self._error_handling = error_handling
        self._uid = connection.context.new_uid()
        self._recv_count = 0
        self._finished_recv_count = 0
        #: Receives that were finished less messages that the peer has sent to this endpoint: those
        #: with forced tags are not sent to it, and what is too long is received and not finished.
        self._beyond_sent = 0
        self._close_after_n_recv: int | None = None
        #: Sizes that have come of objects that have not, by tag.
        self._object_sizes: dict[Hashable | None, bytearray] = {}
        self._mask = ANY_MEMORY if connection.by_device else _EXACTLY
        #: How many messages on GPUs were sent to the peer, and have come from it, by tag.
        self._device_sent: Counter[int] = Counter()
        self._device_received: Counter[int] = Counter()
        self._is_closing = False
        connection.context.open.add(self)
        self._finalizer = weakref.finalize(self, connection.abort)

    # Messages

    async def send(self, buffer: Any, tag: Hashable | None = None, force_tag: bool = False) -> bool:
        """Send a buffer to the peer.

        Parameters
        ----------
        buffer : buffer
            An `Array`, or anything with the buffer protocol, ``__array_interface__`` or, on a GPU,
            ``__cuda_array_interface__``, C or Fortran contiguous. The peer may receive it in memory
            of the host or of a GPU, wherever it is sent from.
        tag : hashable, optional
            What the peer's receive must name: an equal object, in whichever process.
        force_tag : bool, optional
            Send under this very number, from 0 to 2**64 - 1, to whichever endpoint of the peer's,
            or `backhaul.ucp.recv`, asks for it.

        Returns
        -------
        bool
            True, as in UCX-Py. The memory may be reused; it says nothing about the peer's receive.

        Raises
        ------
        TypeError
            If the buffer offers no memory, or the tag is not hashable.
        ValueError
            If the memory has gaps.
        CudaUnavailable
            If it is that of a GPU, and CUDA cannot be used.
        UCXCloseError
            If the endpoint is closed.
        UCXConnectionReset, UCXError
            If the peer is gone, before or meanwhile.
        UCXCanceled
            If the endpoint is closed meanwhile.
        """
        if force_tag:
            return await self._announce(forced_tag(tag), buffer)
        request = self._post_send(buffer, tag)
        try:
            await request
        except ConnectionFailed as error:
            raise self._failed_send(error, buffer, tag) from error
        return True

    async def recv(self, buffer: Any, tag: Hashable | None = None, force_tag: bool = False) -> bool:
        """Receive a message into a buffer.

        Parameters
        ----------
        buffer : writable buffer
            As for `send`, of the size of the message.
        tag : hashable, optional
            The tag of the message. Without one, a message that was sent without one.
        force_tag : bool, optional
            Receive what any peer has sent under this very number, from 0 to 2**64 - 1.

        Returns
        -------
        bool
            True, as in UCX-Py.

        Raises
        ------
        TypeError, ValueError
            As for `send`; also if the memory is read-only.
        UCXMsgTruncated
            If the message is shorter than the buffer, which then begins with it.
        UCXError
            If it is longer; it is dropped.
        UCXCloseError, UCXConnectionReset
            If the endpoint is closed or the peer is gone, and nothing is left to receive.
        UCXCanceled
            If that happens meanwhile.
        """
        if force_tag:
            return await self._recv_forced(buffer, forced_tag(tag))
        request, staging = self._post_recv(buffer, tag)
        try:
            received = await request
            if staging is not None or self._connection.by_device:
                rest = self._rest_of(received, buffer, staging)
                if rest is not None:
                    # Not to be given up: the message would be for nobody.
                    received = await asyncio.shield(_result_of(rest))
        except (ConnectionFailed, TruncatedError) as error:
            raise self._failed_recv(error, buffer, tag) from error
        return self._finish_recv(received, buffer, tag)

    async def am_send(self, buffer: Any) -> bool:
        """Send an active message, whose receiver need not know its size; see `send`."""
        return await self._announce(None, buffer)

    async def am_recv(self) -> Any:
        """Receive an active message.

        Returns
        -------
        object
            The message, in memory made by the allocator that `register_am_allocator` was given, by
            default a ``bytearray``.

        Raises
        ------
        UCXCloseError, UCXConnectionReset, UCXCanceled
            As for `recv`.
        """
        connection = self._connection
        context = connection.context
        connection.drain()
        key = connection.active_key
        if not context.matcher.has(key):
            self._check_open_to_receive()
        self._recv_count += 1
        is_wide = connection.peer is not None
        arrival = await context.arrival(key, of=connection, is_wide=is_wide)
        try:
            message = context.allocate(arrival)
            view = flat(message, writable=True)
            if view.nbytes != arrival.nbytes:
                raise ValueError(
                    f"the allocator of active messages made {view.nbytes} bytes, asked for "
                    f"{arrival.nbytes}"
                )
        except BaseException:
            context.matcher.arrive(key, arrival, again=True)
            raise
        await context.fetch(key, arrival, view, self._name("AM Recv", self._recv_count - 1))
        self._count_recv()
        return message

    def am_probe(self) -> bool:
        """Tell whether an active message waits to be received."""
        self._connection.look()
        return self._connection.context.matcher.has(self._connection.active_key)

    async def send_obj(self, obj: Any, tag: Hashable | None = None) -> None:
        """Send a buffer to a peer that does not know its size and calls `recv_obj`.

        Parameters
        ----------
        obj : buffer
            As for `send`.
        tag : hashable, optional
            As for `send`.
        """
        # Before the size is sent: what cannot be sent must not be announced.
        view = flat(obj)
        await self.send(_OBJECT_SIZE.pack(view.nbytes), tag=tag)
        await self.send(view, tag=tag)

    async def recv_obj(
        self, tag: Hashable | None = None, allocator: Callable[[int], Any] = bytearray
    ) -> Any:
        """Receive what a peer sends by `send_obj`.

        A call that is cancelled, or whose allocator fails, leaves the object to the next.

        Parameters
        ----------
        tag : hashable, optional
            As for `recv`.
        allocator : callable, optional
            Makes memory of the size in bytes that it is given.

        Returns
        -------
        object
            What the allocator made, with the message in it.
        """
        head = self._object_sizes.pop(tag, None)
        if head is None:
            head = bytearray(_OBJECT_SIZE.size)
            await self.recv(head, tag=tag)
        try:
            obj = allocator(_OBJECT_SIZE.unpack(head)[0])
            await self.recv(obj, tag=tag)
        except BaseException as error:
            if not isinstance(error, UCXBaseException):
                self._object_sizes[tag] = head
            raise
        return obj

    async def flush(self) -> bool:
        """Wait until what was posted before has left; what was awaited has already."""
        connection = self._connection
        while connection.native.queued_bytes() and not connection.native.closed():
            await asyncio.sleep(_FLUSH_LOOK_S)
        return True

    # The end

    def closed(self) -> bool:
        """Tell whether the endpoint was closed, or its peer is gone.

        A peer that has closed counts as gone once all that it has sent is received.
        """
        native = self._native
        if native is None:
            return True
        return native.closed() and self._is_over()

    async def close(self) -> None:
        """Close in good order.

        What was sent goes out first. The peer's endpoint closes when it has received it; what waits
        here is cancelled.
        """
        if self.closed():
            self.abort()
            return
        if self._is_closing:
            return
        self._is_closing = True
        farewell = self._connection.farewell
        if farewell is not None and farewell.in_order:
            # The peer has closed too; what it has sent and was not received is not wanted.
            self.abort()
            return
        try:
            await self._connection.take_leave(in_order=True)
        except BackhaulError as error:
            failure = UCXError(f"<[Send shutdown] ep: {self._uid:#x}>: {error}")
            logger.warning("closing %#x, which is probably closed: %r", self._uid, failure)
        request = self._connection.close()
        try:
            if request is not None:
                await request
        finally:
            self.abort()

    def abort(self) -> None:
        """Close without waiting, and without word to the peer of what it has yet to receive.

        What was sent goes out all the same.
        """
        if self._native is not None:
            self._native = None
            self._context = None
            self._connection.context.open.discard(self)
        self._finalizer()

    def close_after_n_recv(self, n: int, count_from_ep_creation: bool = False) -> None:
        """Abort when a number of messages were received.

        Parameters
        ----------
        n : int
            How many.
        count_from_ep_creation : bool, optional
            Count from the first message of the endpoint, and not from now.

        Raises
        ------
        UCXError
            If it was set before, or so many were received already.
        """
        finished = self._finished_recv_count
        if not count_from_ep_creation:
            n += finished
        if self._close_after_n_recv is not None:
            raise UCXError(
                f"close_after_n_recv has already been set to: {self._close_after_n_recv} (abs)"
            )
        if n < finished:
            raise UCXError(
                f"`n` cannot be less than current recv_count: {n} (abs) < {finished} (abs)"
            )
        if n == finished:
            self.abort()
        else:
            self._close_after_n_recv = n

    def set_close_callback(self, callback_func: Callable[[], object] | None) -> None:
        """Have a function called once, when the connection ends or the endpoint does.

        Parameters
        ----------
        callback_func : callable
            Called without arguments: on the running event loop when the peer is gone, else when
            the endpoint is closed or dropped.
        """
        if callback_func is not None and not callable(callback_func):
            raise TypeError(f"callback_func must be callable, got {callback_func!r}")
        self._connection.set_close_callback(callback_func)

    # What it is

    @property
    def uid(self) -> int:
        """A number that no other endpoint of the process has."""
        return self._uid

    @property
    def lane(self) -> str:
        """The lane in use: ``"inproc"``, ``"shm"`` or ``"tcp"``."""
        return self._connection.native.lane

    def cuda_support(self) -> bool:
        """Tell whether memory of GPUs can be sent."""
        return self._connection.context.cuda_support

    def get_ucp_worker(self) -> int:
        """Give a number that stands for the context; there is no UCX behind it."""
        return self._connection.context.handle

    def get_ucp_endpoint(self) -> int:
        """Give a number that stands for the connection; there is no UCX behind it."""
        return id(self._connection.native)

    def ucx_info(self) -> str:
        """Describe the connection: lane and why it was chosen, addresses, state."""
        lines = [f"#  {name}: {value}" for name, value in self._connection.native.info().items()]
        return "\n".join([f"# Backhaul endpoint {self._uid:#x}", "#", *lines, ""])

    def is_alive(self) -> bool:
        """Tell whether the peer is there; always, without error handling."""
        return not (self._error_handling and self._connection.native.closed())

    def raise_on_error(self) -> None:
        """Raise `UCXConnectionReset` or `UCXError` if the peer is gone."""
        if self._error_handling and self._connection.native.closed():
            raise self._gone()

    def __repr__(self) -> str:
        native = self._connection.native
        closed = ", closed" if self.closed() else ""
        return f"<ucp.Endpoint {self._uid:#x} to {native.peer_address} over {native.lane}{closed}>"

    # Private names that programs have used all the same

    @property
    def _ep(self) -> Endpoint | None:
        return None if self._native is None else self

    @property
    def _ctx(self) -> ApplicationContext | None:
        return self._context

    @property
    def handle(self) -> int:
        """The same as `get_ucp_endpoint`."""
        return self.get_ucp_endpoint()

    @property
    def _tags(self) -> dict[str, int]:
        return {
            f"{kind}_{way}": hash64bits(kind, way, self._uid)
            for kind in ("msg", "ctrl")
            for way in ("send", "recv")
        }

    def is_over(self) -> bool:
        """Tell whether `reset` need not wait for it to be closed: it is, or is about to be."""
        return self._is_closing or self.closed()

    def is_message_left(self, tag: int) -> bool:
        """Tell whether the peer has said to have sent more than was received under our own tag."""
        if tag != self._tags["msg_recv"]:
            return False
        self._connection.drain()
        farewell = self._connection.farewell
        return farewell is not None and farewell.sent > self._received()

    # How it is done; `backhaul.ucp.blocking` uses these too

    def _post_send(self, buffer: Any, tag: Hashable | None) -> Request[None]:
        native = self._native
        if native is None or native.closed():
            native = self._check_open()
        number = DEFAULT_TAG if tag is None else endpoint_tag(tag)
        connection = self._connection
        if connection.peer is not None:
            raise self._without_tag(tag)
        try:
            if is_on_device(buffer):
                request = self._send_device(native, flat(buffer), number)
            else:
                request = native.send(buffer, tag=number)
        except (TypeError, InvalidBuffer):
            if is_on_device(buffer):
                raise
            # An `Array`, Fortran order, or an error that says more.
            request = native.send(flat(buffer), tag=number)
        except ConnectionFailed as error:  # it is another process's, which has forked this one
            raise self._gone() from error
        connection.sent += 1
        return request

    def _send_device(self, native: _native.Endpoint, view: Any, number: int) -> Request[None]:
        """Send memory of a GPU: an empty message under its tag, and the memory under another.

        So a receive need not know where the message is, and the order of messages stays.
        """
        if not isinstance(view, DeviceView):
            return native.send(view, tag=number)
        if not self._connection.by_device:
            return native.send(staged(view), tag=number)
        tag = device_payload_tag(number, self._device_sent[number])
        # First, as it is refused if the memory is not what it is said to be.
        request = native.send(view, tag=tag)
        self._device_sent[number] += 1
        native.send(b"", tag=number | ON_DEVICE)
        return request

    def _post_recv(
        self, buffer: Any, tag: Hashable | None
    ) -> tuple[Request[Received], bytearray | None]:
        """Post a receive; with it comes memory of the host, if the buffer is on a GPU."""
        native = self._native
        if native is None:
            raise UCXCloseError(f"Endpoint closed: {self!r}")
        number = DEFAULT_TAG if tag is None else endpoint_tag(tag)
        if self._connection.peer is not None:
            raise self._without_tag(tag)
        was_closed = native.closed()
        staging = None
        try:
            if is_on_device(buffer):
                target = flat(buffer, writable=True)
                # What cannot be used is said now, and not when the message is there.
                _native.cuda_devices()
                staging = bytearray(target.nbytes if isinstance(target, DeviceView) else 0)
                request = native.recv(staging, tag=number, mask=self._mask)
            else:
                request = native.recv(buffer, tag=number, mask=self._mask)
        except (TypeError, InvalidBuffer):
            if is_on_device(buffer):
                raise
            request = native.recv(flat(buffer, writable=True), tag=number, mask=self._mask)
        except ConnectionFailed as error:  # it is another process's, which has forked this one
            raise self._gone() from error
        self._recv_count += 1
        if was_closed and request.done():
            try:
                request.result()
            except ConnectionFailed:  # nothing was left of what the peer had sent
                raise self._gone() from None
            except TruncatedError:
                pass  # for who waits
        return request, staging

    def _rest_of(
        self, received: Received, buffer: Any, staging: bytearray | None
    ) -> Request[Received] | None:
        """Receive the rest of a message on a GPU, or bring one from the host to its place.

        Only the receive of its empty message says that it is one.
        """
        number = received[1] & ANY_MEMORY
        if received[1] == number:
            if staging is not None and received[0]:
                view = flat(buffer, writable=True).first(received[0])
                _native.copy_memory(memoryview(staging)[: received[0]], view)
            return None
        tag = device_payload_tag(number, self._device_received[number])
        self._device_received[number] += 1
        return self._connection.native.recv(flat(buffer, writable=True), tag=tag)

    def _finish_recv(self, received: Received, buffer: Any, tag: Hashable | None) -> bool:
        self._count_recv()
        got = received[0]
        # Most are of this type, and the general way takes as long as the rest of this.
        expected = len(buffer) if type(buffer) is bytearray else nbytes_of(buffer)
        if got != expected:
            raise UCXMsgTruncated(
                f"<{self._recv_name(buffer, tag)}>: length mismatch: {got} (got) != "
                f"{expected} (expected)"
            )
        return True

    def _count_recv(self) -> None:
        self._finished_recv_count += 1
        after = self._close_after_n_recv
        if after is not None and self._finished_recv_count >= after:
            self.abort()

    def _received(self) -> int:
        """Give how many messages to this endpoint were received, however that went."""
        return self._finished_recv_count - self._beyond_sent

    async def _announce(self, tag: int | None, buffer: Any) -> bool:
        native = self._native
        if self._connection.peer is not None:
            # No receive of an endpoint would show that a worker has gone.
            self._connection.look()
        if native is None or native.closed():
            self._check_open()
        view = flat(buffer)
        if not isinstance(view, DeviceView) and view.nbytes and memoryview(view).format != "B":
            view = view.cast("B")
        try:
            for request in self._connection.announce(tag, view):
                await request
        except ConnectionFailed as error:
            raise self._failed_send(error, view, tag) from error
        return True

    async def _recv_forced(self, buffer: Any, tag: int) -> bool:
        connection = self._connection
        context = connection.context
        view = flat(buffer, writable=True)
        for source in context.sources():
            source.drain()
        if not context.matcher.has(tag):
            self._check_open_to_receive()
        self._recv_count += 1
        arrival = await context.arrival(tag, of=connection)
        await context.fetch(tag, arrival, view, self._recv_name(buffer, tag))
        self._beyond_sent += 1
        self._count_recv()
        return True

    def _check_open(self) -> _native.Endpoint:
        """Raise what a call on a closed endpoint raises."""
        native = self._native
        if native is None:
            raise UCXCloseError(f"Endpoint closed: {self!r}")
        if native.closed() and self._error_handling:
            raise self._gone()
        return native

    def _check_open_to_receive(self) -> None:
        """Raise what a receive on a closed endpoint raises.

        A worker that is gone is noticed in UCX only by what waits for it, which is then cancelled.
        """
        try:
            self._check_open()
        except UCXError as error:
            raise UCXCanceled(f"while waiting for am_recv or a forced tag: {error}") from None

    def _gone(self) -> UCXBaseException:
        """Make the error of a peer that is not there any more."""
        connection = self._connection
        reason = connection.native.info()["closed"]
        connection.drain()
        if connection.peer is not None:
            # To a worker there is no connection in UCX that could be reset.
            return UCXError(f"Endpoint {self._uid:#x} error: Endpoint timeout: {reason}")
        if connection.farewell is not None and connection.farewell.in_order:
            return UCXCloseError(f"Endpoint closed: {reason}")
        return UCXConnectionReset(
            f"Endpoint {self._uid:#x} error: Connection reset by remote peer: {reason}"
        )

    def _is_over(self) -> bool:
        """Tell whether the end of the connection is that of the endpoint."""
        connection = self._connection
        connection.drain()
        farewell = connection.farewell
        if farewell is not None and farewell.in_order:
            return self._received() >= farewell.sent
        return self._error_handling

    def _without_tag(self, tag: Hashable | None) -> UCXError:
        return UCXError(
            "an endpoint made from the address of a worker has no tags of its own, since the peer "
            f"has no endpoint for it: use force_tag=True, got tag={tag!r}"
        )

    def _failed_send(self, error: Exception, buffer: Any, tag: object) -> UCXBaseException:
        name = f"{self._name('Send', self._connection.sent)}, tag: {tag!r}, type: {type(buffer)}"
        if self._native is None:
            return UCXCanceled(f"<{name}>: {error}")
        timeout = "Endpoint timeout: " if self._connection.peer is not None else ""
        return UCXError(f"<{name}>: {timeout}{error}")

    def _failed_recv(self, error: Exception, buffer: Any, tag: object) -> UCXBaseException:
        name = self._recv_name(buffer, tag)
        if isinstance(error, TruncatedError):
            self._beyond_sent -= 1
            return UCXError(f"<{name}>: Message truncated: {error}")
        return UCXCanceled(f"<{name}>: {error}")

    def _recv_name(self, buffer: Any, tag: object) -> str:
        nbytes = nbytes_of(buffer)
        head = self._name("Recv", self._recv_count - 1)
        return f"{head}, tag: {tag!r}, nbytes: {nbytes}, type: {type(buffer)}"

    def _name(self, what: str, number: int) -> str:
        return f"[{what} #{number:03}] ep: {self._uid:#x}"


async def _result_of(request: Request[Received]) -> Received:
    return await request
