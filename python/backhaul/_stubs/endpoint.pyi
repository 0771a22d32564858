"""Connections to peers."""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, final

from typing_extensions import Buffer

from backhaul._buffers import Received
from backhaul._stubs.requests import Request

@final
class Endpoint:
    """One connected peer.

    Messages are either *tagged*, and matched as MPI matches them, or *untagged* lists of frames,
    received in the order sent. Dropping the endpoint ends the connection at once: `close` it first
    if what was sent must arrive.

    A context manager, also asynchronous, which closes it, or aborts if the body raised::

        async with await backhaul.connect(address) as endpoint:
            await endpoint.send(b"hello")

    All methods may be called from any thread.
    """

    @property
    def local_address(self) -> str:
        """Our address, as ``host:port``."""

    @property
    def peer_address(self) -> str:
        """The peer's address, as ``host:port``."""

    @property
    def lane(self) -> str:
        """The lane in use: ``"inproc"``, ``"shm"``, ``"ucx"``, ``"tcp"`` or ``"tls"``."""

    def send(self, buffer: Buffer | Any, *, tag: int = 0, shared: bool = False) -> Request[None]:
        """Send a buffer under a tag.

        Parameters
        ----------
        buffer : buffer
            Any C-contiguous memory: the buffer protocol of any format, or
            ``__array_interface__``; or, on a GPU, ``__cuda_array_interface__`` or DLPack. It must
            not change until the request is done, and is held until then: a ``bytearray`` cannot be
            resized. On a GPU it is sent after what is on the stream that its interface names, or
            on the default stream where that names none.
        tag : int, optional
            From 0 to 2**64 - 1.
        shared : bool, optional
            Promise that no code writes to the memory any more, also after the request is done.
            Memory in the context's `Arena` is then lent to a peer on this host instead of copied:
            the peer reads the same pages as long as it holds the message. A program that breaks
            the promise changes what the peer reads. Freeing the memory is safe at any time.

        Returns
        -------
        Request of None
            Done when the memory may be reused, unless it is shared. A message of less than 16 KiB
            leaves at once, unless so many wait unreceived at the peer that its credit is used up;
            that says nothing about its receive. A longer one may wait until the peer has posted a
            receive for it, and one of more than ``eager_bytes_max`` of the `Context` (64 KiB by
            default) does: two peers that first wait for such sends to each other, and then
            receive, wait for ever. Post the receive first, or wait for both together.

        Raises
        ------
        InvalidBuffer
            If the memory is not contiguous, holds references to Python objects, has a mask, or is
            said to be a GPU's and is not.
        CudaUnavailable
            If it is a GPU's, and CUDA cannot be used in this process.
        TypeError
            If the object offers no memory.
        ValueError
            If the tag is out of range, or an interface says what cannot be.

        Notes
        -----
        The request raises `MessageTooLarge`, `QueueFull`, or what ended the connection; and
        `NoCarrier` for memory of a GPU if the two sides do not both have the carrier, or the peer
        is on another host. To know before, look for ``"cuda"`` among the carriers that `info`
        lists.
        """

    def recv(
        self,
        buffer: Buffer | Any,
        *,
        tag: int = 0,
        mask: int = 0xFFFF_FFFF_FFFF_FFFF,
    ) -> Request[Received]:
        """Receive the next message whose tag matches into a buffer.

        Parameters
        ----------
        buffer : writable buffer
            Any C-contiguous memory, on the host or a GPU; see `send`. It must not be used until the
            request is done. A message that was sent from a GPU can be received in either; one that
            was sent from the host, on the host only.
        tag : int, optional
            Tag wanted.
        mask : int, optional
            Bits of the tag that count: 0 takes any message.

        Returns
        -------
        Request of Received
            The size and the tag of the message.

        Raises
        ------
        InvalidBuffer
            If the memory is read-only, or as for `send`.
        CudaUnavailable
            As for `send`.
        TypeError
            If the object offers no memory.
        ValueError
            If the tag or mask is out of range, or an interface says what cannot be.

        Notes
        -----
        The request raises `TruncatedError` if the message is larger than the buffer, `NoCarrier` if
        nothing brings it there, or what ended the connection. Once a receive on a GPU is done, all
        streams see what came.
        """

    def probe(self, *, tag: int = 0, mask: int = 0xFFFF_FFFF_FFFF_FFFF) -> Received | None:
        """Look for a tagged message that a receive with this tag and mask would get now.

        It stays where it is, and another thread may receive it meanwhile. A long message is found
        as soon as the peer has announced it. Untagged messages are not looked at.

        Parameters
        ----------
        tag : int, optional
            Tag wanted.
        mask : int, optional
            Bits of the tag that count: 0 finds any tagged message.

        Returns
        -------
        Received or None
            Size and tag of the message; None if there is none yet. No error, also where the
            connection has ended.

        Raises
        ------
        TypeError, ValueError
            If the tag or mask is no integer, or out of range.
        """

    def send_obj(self, object: object, *, tag: int = 0, shared: bool = False) -> Request[None]:
        """Send a Python object under a tag, for `recv_obj`.

        It is pickled (protocol 5); the memory of arrays goes beside the pickle as it is, without
        being copied first.

        Parameters
        ----------
        object : object
            Whatever `pickle` takes. Arrays in it must not change until the request is done.
        tag : int, optional
            From 0 to 2**64 - 1.
        shared : bool, optional
            As for `send`.

        Returns
        -------
        Request of None
            As for `send`.

        Raises
        ------
        pickle.PicklingError, TypeError, AttributeError
            As `pickle` raises them, if the object cannot be pickled.
        BufferError
            If memory that it leaves to us is not contiguous.
        TypeError, ValueError
            If the tag is no integer, or out of range.
        """

    def recv_obj(self, *, tag: int = 0, mask: int = 0xFFFF_FFFF_FFFF_FFFF) -> Request[Any]:
        """Receive the next object whose tag matches.

        Receive objects from peers that you trust alone: a pickle runs what its sender wants.

        Parameters
        ----------
        tag : int, optional
            Tag wanted.
        mask : int, optional
            Bits of the tag that count: 0 takes any tagged message.

        Returns
        -------
        Request of object
            The object. Its arrays lie in the memory that was received, and can be written to.

        Raises
        ------
        TypeError, ValueError
            If the tag or mask is no integer, or out of range.

        Notes
        -----
        The request raises `ObjectError` if the message was not sent by `send_obj`, what `pickle`
        raises, or what ended the connection. The message is consumed then.
        """

    def send_frames(self, frames: Iterable[Buffer | Any], *, shared: bool = False) -> Request[None]:
        """Send buffers as one untagged message; see `send`.

        A long one does not always wait for its receive: a peer fetches up to 64 MiB of them
        before it is asked to.

        Raises
        ------
        TypeError
            If it is one buffer rather than a list of them, or one of them offers no memory.
        InvalidBuffer, CudaUnavailable
            As for `send`.
        """

    def recv_frames(self) -> Request[list[Any]]:
        """Receive the next untagged message.

        Returns
        -------
        Request of list of memoryview or DeviceBuffer
            The frames, each in memory of its own: 64-byte aligned and writable, of format ``"B"``,
            or, in the place of one that was sent from a GPU, a `DeviceBuffer` on device 0 of this
            process. To get such a frame in memory of another library, or on another device, have it
            sent tagged, and receive it there.

        Notes
        -----
        The request raises `NoCarrier` if a GPU here cannot take what was sent from one.
        """

    def close(self) -> Request[None]:
        """Close in good order: what was sent goes out first, later sends fail."""

    def abort(self) -> None:
        """End the connection at once; what is in flight fails."""

    def closed(self) -> bool:
        """Return whether the connection has ended, or is being closed from here."""

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call a callback on the running event loop when the connection has ended."""

    def queued_bytes(self) -> int:
        """Payload bytes of sends that are not done."""

    def info(self) -> dict[str, Any]:
        """Lane and why it was chosen, addresses, and who the peer is.

        ``carriers`` are the names of those that both sides have. ``ways`` has a tuple for each way
        by which long private messages came, and each class of sizes: smallest size in bytes, name
        of the way, median bandwidth in bytes per second, messages timed, and whether it is the one
        chosen. ``trust`` is what the peer had to show, as for `Listener.info`. ``tls``
        is None, or how the peers have met: the ``version`` and the ``cipher`` by the names that
        `ssl` has for them, ``cipher_bits``, and the ``peer_certificate`` in DER.
        """

    def recent_events(self) -> list[tuple[float, str]]:
        """List the last events on the connection, besides bytes that moved.

        They show why something waits.

        Returns
        -------
        list of (float, str)
            How long ago, in seconds, to some milliseconds, and what; the oldest first, at most 64.
        """

    def statistics(self) -> dict[str, Any]:
        """Messages, bytes and time spent, by direction.

        ``overlooked`` counts work that had waited for seconds without a woken thread, until the
        engine's inspection found it: a defect, which is also logged as a warning.
        """

    def __enter__(self) -> Endpoint: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    def __aenter__(self) -> Request[Endpoint]: ...
    def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> Request[None]: ...
