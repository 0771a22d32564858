"""Reads of a comm: messages one by one, or all that have arrived, and other readers of them.

One receive is posted at a time. Threads may see what arrives (`backhaul.dask.comm.inbox`), and so
may streams that are handled without Python (`BackhaulComm.tap`); without either, a receive that
found nothing stays posted for the next read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from backhaul import BackhaulError, ConnectionFailed, Endpoint, Request, TimedOut
from backhaul.dask.comm import device_frames
from backhaul.dask.comm.buffer_sharing import nbytes_of
from backhaul.dask.comm.inbox import SharedInbox
from backhaul.dask.comm.offloading import offload_measured
from backhaul.dask.compat.names import Comm, CommClosedError, comm_utils, offload
from backhaul.dask.config.settings import Settings
from backhaul.dask.serialize import codec

if TYPE_CHECKING:
    from backhaul._native import SchedulerStreams

__all__ = ["ReadingComm", "Tap"]

#: Most messages, and bytes of them, that `ReadingComm.read_arrived` returns in one call, so that a
#: sender that never stops cannot keep the reader from anything else.
_ARRIVED_MAX = 128
_ARRIVED_BYTES_MAX = 1 << 20


class Tap(NamedTuple):
    """Streams that have to know when messages of a comm are handled."""

    streams: SchedulerStreams
    #: The comm's number there
    peer: int
    #: Messages that the comm had received, and those that it had yet to look at, when it began
    received_before: int


class ReadingComm(Comm):
    """The half of a comm that reads."""

    def __init__(self, endpoint: Endpoint, deserialize: bool, settings: Settings) -> None:
        self._closed = False
        self._endpoint = endpoint
        super().__init__(deserialize=deserialize)
        self._device_allocator = settings.device_allocator
        #: A receive that `read_arrived` posted and found nothing for; the next read begins with it.
        self._posted: Request[list[memoryview]] | None = None
        #: A message that it received and left for the next read.
        self._kept: list[memoryview] | None = None
        #: The inbox, once threads may read messages
        self._inbox: SharedInbox | None = None
        #: Messages that receives of this comm got.
        self._received = 0
        #: Streams that get messages first, and are notified when all messages here are handled.
        self._tap: Tap | None = None

    @abstractmethod
    def abort(self) -> None:
        """Close immediately, dropping queued messages; later calls do nothing."""

    async def read(self, deserializers: list[str] | None = None) -> Any:
        """Receive a message.

        Parameters
        ----------
        deserializers : list of str, optional
            Families of deserializers that are allowed.

        Returns
        -------
        object
            The message. Its arrays are writable and own their memory.

        Raises
        ------
        CommClosedError
            If the comm is or becomes closed, and no message arrived before.

        Notes
        -----
        An error or a cancellation while waiting aborts the comm; the exception comes through as it
        is. An error in deserialization leaves the comm usable, except ``EOFError``, which means
        that the message was damaged.
        """
        if self._closed:
            self._refuse()
        frames: list[Any]
        if self._inbox is None:
            frames = await self._next_frames()
        else:
            messages, kept = await self._next_shared(self._inbox, 1)
            if kept is None:
                return messages[0]
            frames = kept
        return await self._whole(frames, deserializers)

    async def _whole(self, frames: list[Any], deserializers: list[str] | None = None) -> Any:
        """Receive the rest of a message, and decode it."""
        if device_frames.is_described(frames):
            frames = await self._placed(frames[1:], device_frames.described(frames))
        try:
            return await self._decoded(frames, deserializers)
        except EOFError as error:
            self._end_truncated(error)

    async def read_arrived(self) -> list[Any]:
        """Receive at least one message, and with it all small ones that have arrived meanwhile.

        For streams, where many small messages follow each other: one visit of the event loop serves
        for all of them. The messages are in order; otherwise as `read`.
        """
        if self._inbox is not None:
            if self._closed:
                self._refuse()
            messages, kept = await self._next_shared(self._inbox)
            return messages if kept is None else [await self._whole(kept)]
        messages = [await self.read()]
        arrived_bytes = 0
        while len(messages) < _ARRIVED_MAX and arrived_bytes < _ARRIVED_BYTES_MAX:
            request = self._endpoint.recv_frames()
            if not request.done():
                self._posted = request
                break
            try:
                frames = request.result()
            except (ConnectionFailed, TimedOut):
                # The messages before it are good; the next read raises this error.
                self._posted = request
                break
            self._received += 1
            frames_bytes = sum(map(nbytes_of, frames))
            if frames_bytes > _ARRIVED_BYTES_MAX or device_frames.is_described(frames):
                self._kept = frames
                break
            try:
                messages.append(codec.loads(frames, deserialize=self.deserialize))
            except Exception:
                # The messages before it are good: the next read decodes this one again, and raises.
                self._kept = frames
                break
            arrived_bytes += frames_bytes
        return messages

    def readable(self) -> bool:
        """Tell whether the next read would return immediately, as far as that is known."""
        if self._inbox is not None:
            return self._inbox.readable()
        return self._kept is not None or self._posted is None or self._posted.done()

    @property
    def inbox(self) -> SharedInbox | None:
        """Return the inbox, if threads read messages; else None."""
        return self._inbox

    def share(self, handle: Callable[[Any], None] | None = None) -> SharedInbox:
        """Let threads read messages, too; called by the event loop that reads.

        `handle`, if given, handles a message in the event loop, immediately.
        """
        if self._inbox is None:
            posted, self._posted = self._posted, None
            self._inbox = SharedInbox(
                self._endpoint,
                deserialize=self.deserialize,
                posted=posted,
                kept=self._kept,
                handle=handle,
            )
            self._kept = None
        return self._inbox

    def tap(self, streams: SchedulerStreams, peer: int) -> None:
        """Let streams that are handled elsewhere have messages first, from when all are handled.

        They know this comm by the number of the peer. `ConnectionError` if the connection has
        ended.
        """
        waiting = streams.tap(peer)
        # A receive that was over by then is not among those that are counted there.
        has_unread = self._posted is not None and not waiting
        self._tap = Tap(streams, peer, self._received + has_unread)

    def untap(self) -> None:
        """Forget the streams."""
        self._tap = None

    def handled_all(self) -> None:
        """Tell who has messages before we do that all that were read are handled."""
        tap = self._tap
        if tap is not None and self._kept is None:
            handled = self._received - tap.received_before
            if handled >= 0:
                tap.streams.caught_up(tap.peer, handled)

    @property
    def endpoint(self) -> Endpoint:
        """The native endpoint."""
        return self._endpoint

    def given_up(self) -> bool:
        """Tell whether this side closed or aborted it, so that nothing more can be read."""
        return self._closed

    def _let_go(self) -> None:
        """Forget what has arrived."""
        self._posted = self._kept = None
        if self._inbox is not None:
            self._inbox.close()

    async def _next_frames(self) -> list[memoryview]:
        """Wait for the frames of the next message; ends or aborts the comm as `read` does."""
        if self._kept is not None:
            frames, self._kept = self._kept, None
            return frames
        request, self._posted = self._posted, None
        try:
            if request is None:
                request = self._endpoint.recv_frames()
            frames = await request
            self._received += 1
            return frames
        except (ConnectionFailed, TimedOut) as error:
            self._end(error)
        except BaseException:
            self.abort()
            raise
        finally:
            # A request keeps its exception, whose traceback keeps this frame: a reference cycle.
            del request

    async def _next_shared(
        self, inbox: SharedInbox, most: int | None = None
    ) -> tuple[list[Any], list[memoryview] | None]:
        """As `_next_frames`, where threads may look."""
        try:
            return await inbox.take(most)
        except (ConnectionFailed, TimedOut) as error:
            self._end(error)
        except BaseException:
            self.abort()
            raise

    async def _placed(self, frames: list[Any], description: device_frames.Description) -> list[Any]:
        """Receive the separate frames, where memory is allocated for them."""
        try:
            allocate = device_frames.allocator(self._device_allocator)
            await device_frames.receive(self._endpoint, frames, description, allocate)
            if description.staged:
                await offload(device_frames.place, frames, description.staged, allocate)
        except (ConnectionFailed, TimedOut) as error:
            self._end(error)
        except BaseException:
            self.abort()
            raise
        return frames

    async def _decoded(self, frames: list[Any], deserializers: list[str] | None = None) -> Any:
        """Deserialize a message, in another thread if it is large and the comm allows that."""
        limit = self.allow_offload and self.deserialize and comm_utils.OFFLOAD_THRESHOLD
        if limit and sum(map(nbytes_of, frames)) > limit:
            return await offload_measured(codec.loads, frames, self.deserialize, deserializers)
        return codec.loads(frames, self.deserialize, deserializers)

    def _end_truncated(self, error: EOFError) -> NoReturn:
        self.abort()
        raise CommClosedError(f"in {self}: aborted on truncated data") from error

    def _end(self, error: BackhaulError) -> NoReturn:
        """Give up a connection that ended."""
        self.abort()
        raise CommClosedError(f"in {self}: {type(error).__name__}: {error}") from error

    def _refuse(self) -> NoReturn:
        raise CommClosedError(f"in {self}: comm is closed")
