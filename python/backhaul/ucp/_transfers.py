"""How messages of an endpoint come and go; `Endpoint` and `backhaul.ucp.blocking` are its faces."""

from __future__ import annotations

import mmap
import weakref
from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeAlias

from backhaul import _native
from backhaul._buffers import Received
from backhaul._native import Request
from backhaul.errors import ConnectionFailed, InvalidBuffer, TruncatedError
from backhaul.ucp._arr import DeviceView, flat, is_on_device, nbytes_of
from backhaul.ucp._connection import staged
from backhaul.ucp._tags import ANY_MEMORY, DEFAULT_TAG, ON_DEVICE, device_payload_tag, endpoint_tag
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

__all__ = ["Transfers"]

#: Mask of a receive where the peer's memory of GPUs does not come as it is.
_EXACTLY = (1 << 64) - 1
#: Smaller memory of the host is written with zeros in less time than mapped, in bytes.
_MAPPED_MIN = 1 << 16

#: Memory of the host ahead of a GPU's.
Staging: TypeAlias = bytearray | mmap.mmap


class Transfers:
    """Transfers of an endpoint: sent messages, posted receives and received messages.

    Parameters
    ----------
    connection : Connection
        The connection, greeted.
    error_handling : bool
        As for `Endpoint`.
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

    if TYPE_CHECKING:

        def abort(self) -> None: ...

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
    ) -> tuple[Request[Received], Staging | None]:
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
                # An unusable buffer is an error now, and not when the message is there.
                _native.cuda_devices()
                staging = _staging(target.nbytes if isinstance(target, DeviceView) else 0)
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
        self, received: Received, buffer: Any, staging: Staging | None
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


def _staging(nbytes: int) -> Staging:
    """Give memory of the host that takes neither time nor pages unless something comes there."""
    if nbytes < _MAPPED_MIN:
        return bytearray(nbytes)
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
