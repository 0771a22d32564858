"""`Endpoint`: one connected peer, with the methods that UCX-Py's had."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from backhaul._buffers import Received
from backhaul._native import Request
from backhaul.errors import BackhaulError, ConnectionFailed, TruncatedError
from backhaul.ucp._arr import flat
from backhaul.ucp._tags import (
    forced_tag,
    hash64bits,
)
from backhaul.ucp._transfers import Transfers
from backhaul.ucp.exceptions import (
    UCXBaseException,
    UCXError,
)

if TYPE_CHECKING:
    from backhaul.ucp._context import ApplicationContext

__all__ = ["Endpoint"]

logger = logging.getLogger("ucx")

#: The fabric does not report an empty queue, so `Endpoint.flush` looks so often, in seconds.
_FLUSH_LOOK_S = 0.0005
#: Size of an object ahead of it, in bytes, as `Endpoint.send_obj` writes it.
_OBJECT_SIZE = struct.Struct("=Q")


class Endpoint(Transfers):
    """One connected peer; made by `create_endpoint` and by the listener for its callback.

    Messages are matched by tag, in the order sent for each. An endpoint that has no holder any more
    is aborted.

    Parameters
    ----------
    connection : Connection
        The connection, greeted.
    error_handling : bool
        Whether a peer that dies closes the endpoint. If not it stays open, as UCX's endpoints do
        without error handling; operations fail all the same, where theirs wait for ever.
    """

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
            Tag that the peer's receive must name: an equal object, in any process.
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
                    # Not to be given up: the message would be lost.
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
            Object that the allocator made, with the message in it.
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

        Sent messages go out first. The peer's endpoint closes when it has received them; operations
        that wait here are cancelled.
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

        Sent messages go out all the same.
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
        """Set a function to be called once, when the connection ends or the endpoint does.

        Parameters
        ----------
        callback_func : callable
            Called without arguments: on the running event loop when the peer is gone, else when
            the endpoint is closed or dropped.
        """
        if callback_func is not None and not callable(callback_func):
            raise TypeError(f"callback_func must be callable, got {callback_func!r}")
        self._connection.set_close_callback(callback_func)

    # Properties

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


async def _result_of(request: Request[Received]) -> Received:
    return await request
