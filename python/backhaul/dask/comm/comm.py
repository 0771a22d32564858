"""One connection between two Dask processes, over a native endpoint.

A Dask message becomes a list of buffers by Dask's own serializers; the list crosses into the
native module in one call and arrives at the peer as the same list, each buffer in memory of its
own. Nothing is joined, split or copied here. Buffers on GPUs follow as messages of their own, see
`backhaul.dask.comm.device_frames`.

The contract is that of ``distributed.comm.core.Comm`` and, where it is silent, what Dask's TCP comm
does: a write returns once the message is queued, a message that arrived before the peer went away
can still be read, and a comm whose stream may be damaged is never used again.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import call
from typing import Any

from backhaul import BackhaulError, ConnectionFailed, Endpoint, Request, TimedOut
from backhaul.dask.comm import device_frames
from backhaul.dask.comm.buffer_sharing import (
    arena_for_lane,
    in_order,
    is_get_data_reply,
    move_to_arena,
)
from backhaul.dask.comm.offloading import offload_measured
from backhaul.dask.comm.reader import ReadingComm
from backhaul.dask.comm.tls import extra_info
from backhaul.dask.compat.names import comm_utils
from backhaul.dask.compat.operations import FIELD
from backhaul.dask.config.settings import Settings
from backhaul.dask.serialize import codec

__all__ = ["BackhaulComm"]

logger = logging.getLogger(__name__)

#: A message of more buffers than this is waited for: the peer may refuse it for their number, and
#: later messages must not pass it.
_BUFFERS_SURE = 1024


class BackhaulComm(ReadingComm):
    """A message-oriented connection to one peer.

    One task may read while another writes. The comm may be made in one event loop and used in
    another, one at a time.

    Parameters
    ----------
    endpoint : backhaul.Endpoint
        The connected peer.
    local_addr, peer_addr : str
        Addresses with their scheme. On the connecting side `peer_addr` is the address that was
        asked for, as Dask compares it with the listener's.
    deserialize : bool, default True
        Whether `read` gives back objects, or leaves those marked for it serialized.
    settings : Settings
        Says how much may be queued before `write` waits.
    """

    #: Larger buffers are split. Ours never are: each would be joined again by a copy.
    max_shard_size: int = sys.maxsize

    def __init__(
        self,
        endpoint: Endpoint,
        local_addr: str,
        peer_addr: str,
        deserialize: bool = True,
        *,
        settings: Settings,
    ) -> None:
        # Before super().__init__, which makes the comm visible to repr().
        self._local_addr = local_addr
        self._peer_addr = peer_addr
        super().__init__(endpoint, deserialize, settings)
        self._high_water_mark_bytes = settings.high_water_mark_bytes
        self._share_results = settings.share_results
        self._wants_device_frames = settings.device_frames
        #: Whether memory of our GPUs can be sent to the peer; None before the handshake.
        self._by_device: bool | None = None
        #: Context of serializers, and the options that are in it
        self._agreed: dict[str, Any] | None = None
        self._agreed_options: dict[str, Any] | None = None
        #: Operations that the server that listens for this comm understands, see
        #: `backhaul.dask.comm.capabilities`.
        self.offered: list[str] = []
        #: Tag of the next frame that goes as a message of its own.
        self._next_tag = 0
        #: Where results are copied that lie elsewhere, to be lent; None if this lane lends nothing.
        self._arena = arena_for_lane(endpoint.lane, settings)
        #: Sends that were not done when `write` returned, oldest first; those that are done leave
        #: at the next write.
        self._unfinished: deque[Request[None]] = deque()
        #: Most unfinished sends: the native queue holds twice as many, and fails when it is full.
        self._unfinished_max = max(1, settings.sends_max // 2)
        self._finalizer = weakref.finalize(
            self, _abort_dangling, endpoint, os.getpid(), f"{local_addr} -> {peer_addr}"
        )
        # At exit the operating system closes everything; a warning would be of no use.
        self._finalizer.atexit = False

    @property
    def local_address(self) -> str:
        return self._local_addr

    @property
    def peer_address(self) -> str:
        return self._peer_addr

    @property
    def lane(self) -> str:
        """How bytes move to this peer: ``inproc``, ``shm``, ``ucx``, ``tcp`` or ``tls``."""
        return self._endpoint.lane

    @property
    def info(self) -> dict[str, Any]:
        """Return the native endpoint's description, with the reason for its lane."""
        return self._endpoint.info()

    @property
    def recent_events(self) -> list[tuple[float, str]]:
        """Return the last events of the connection: how many seconds ago, and the event."""
        return self._endpoint.recent_events()

    @property
    def extra_info(self) -> dict[str, Any]:
        """The peer's certificate and the cipher, where the peers have met over TLS."""
        return extra_info(self._endpoint.info()["tls"])

    @property
    def same_host(self) -> bool:
        """Return whether the peer is on this host: Dask then does not compress."""
        # Dask compares addresses, which may need a name server and may mislead.
        return bool(self._endpoint.info()["same_host"])

    def handshake_info(self) -> dict[str, Any]:
        """Tell the peer about this side, for Dask and, under one key, for ourselves."""
        ours = {"pid": os.getpid(), "host": socket.gethostname(), "lane": self.lane}
        if self.offered:
            ours[FIELD] = self.offered
        ours |= device_frames.offer(self.info["carriers"], self._wants_device_frames)
        return {**super().handshake_info(), "backhaul": ours}

    async def write(
        self,
        msg: object,
        serializers: list[str] | None = None,
        on_error: str = "message",
    ) -> int:
        """Send a message.

        Returns once the message is queued, or, while much is queued, once it is sent; if parts of
        it are on a GPU, once the peer has them. A send that fails later closes the comm.

        Parameters
        ----------
        msg : object
            The message.
        serializers : list of str, optional
            Families of serializers to use, in order. ``"cuda"`` is among them by default where
            memory of GPUs can be sent to the peer, and never where it cannot.
        on_error : {"message", "raise"}
            Whether a part that cannot be serialized travels as an error message or raises here.

        Returns
        -------
        int
            Bytes of the serialized message.

        Raises
        ------
        CommClosedError
            If the comm is closed on either side.
        ValueError
            If the message has more bytes or buffers than either side accepts.

        Notes
        -----
        An error or a cancellation after serialization aborts the comm, as the peer may have part of
        the message; the exception comes through as it is. An error in serialization, or a
        cancellation meanwhile, leaves the comm as it was.
        """
        if self._closed:
            self._refuse()
        message = await self._encoded(msg, serializers, on_error)
        if self._closed:
            self._refuse()
        try:
            await self._send([in_order(frame) for frame in message.frames], self._may_lend(msg))
            if message.device:
                tag, self._next_tag = self._next_tag, self._next_tag + len(message.device)
                await device_frames.send(self._endpoint, message.device, tag)
        except (ConnectionFailed, TimedOut) as error:
            self._end(error)
        except BaseException:
            self.abort()
            raise
        return message.message_bytes

    def write_nowait(
        self,
        msg: object,
        serializers: list[str] | None = None,
        on_error: str = "message",
    ) -> int | None:
        """Queue a message without waiting for anything; see `write`.

        Ask `congested` before the next one, and if it is, wait for `drained`. Returns the bytes of
        the serialized message; None if it is for `write` to send: it is so large that it should be
        serialized in another thread, or parts of it are on a GPU. It was not sent then.

        Raises
        ------
        CommClosedError
            If the comm is closed on either side.
        """
        frames, message_bytes = self._encoded_here(msg, serializers, on_error)
        if message_bytes < 0:
            return None
        try:
            self._forget_finished()
            self._keep(self._endpoint.send_frames(frames, shared=self._may_lend(msg)))
        except (ConnectionFailed, TimedOut) as error:
            self._end(error)
        except BaseException:
            self.abort()
            raise
        return message_bytes

    def write_in_thread(
        self, msg: object, taken: Callable[[], object], serializers: list[str] | None = None
    ) -> int | None:
        """Queue a message as `write_nowait` does, from a thread that may be interrupted.

        Ctrl-C raises in Python's main thread between any two steps of it. So the connection stays
        as it is then, and the message leaves in one step with what notes that it has: `taken`,
        written in C, is called without arguments if and only if the message has left.
        """
        frames, message_bytes = self._encoded_here(msg, serializers, "raise")
        if message_bytes < 0:
            return None
        send = partial(self._endpoint.send_frames, frames, shared=self._may_lend(msg))
        both: tuple[Callable[[], Any], ...] = (send, taken)
        try:
            if self._unfinished:
                self._forget_finished()
            # Python runs no handler of a signal while C calls C.
            request, _ = tuple(map(call, both))
            self._keep(request)
        except (ConnectionFailed, TimedOut) as error:
            self._end(error)
        except Exception:
            self.abort()
            raise
        return message_bytes

    def congested(self) -> bool:
        """Tell whether the peer has yet to take something that was written."""
        unfinished = self._unfinished
        # The native queue is in order: the last one to be sent is the last to be done.
        return bool(unfinished) and not unfinished[-1].done()

    async def drained(self) -> None:
        """Wait until everything written so far is on its way.

        Raises
        ------
        CommClosedError
            If the comm ends before.
        """
        unfinished = self._unfinished
        try:
            while unfinished:
                # Awaited before it is removed, as `congested` looks at it meanwhile.
                await unfinished[0]
                self._forget_finished()
        except (ConnectionFailed, TimedOut) as error:
            self._end(error)

    async def close(self) -> None:
        """Send what is queued, then close; later calls do nothing.

        A read in flight ends with `CommClosedError`. Cancelling the flush aborts.
        """
        if self._closed:
            return
        self._closed = True
        self._finalizer.detach()
        try:
            await self._endpoint.close()
        except (BackhaulError, OSError) as error:
            logger.debug("Could not flush %r: %s", self, error)
            self._endpoint.abort()
        except BaseException:
            self._endpoint.abort()
            raise
        finally:
            self._unfinished.clear()
            self._let_go()

    def abort(self) -> None:
        """Close immediately, dropping queued messages; later calls do nothing."""
        self._closed = True
        self._finalizer.detach()
        self._unfinished.clear()
        self._endpoint.abort()
        self._let_go()

    def closed(self) -> bool:
        """Tell whether either side closed, or the peer is gone.

        Messages that arrived before may still be read.
        """
        return self._closed or self._endpoint.closed()

    def _context(self) -> dict[str, Any]:
        """Give the serializers what both sides agreed on."""
        context, options = self._agreed, self.handshake_options
        if (
            context is None
            or self._agreed_options is not options
            or context["sender"] is not self.local_info
            or context["recipient"] is not self.remote_info
        ):
            # The handshake puts other dictionaries there; later they stay.
            context = {"sender": self.local_info, "recipient": self.remote_info, **options}
            self._agreed, self._agreed_options = context, options
        return context

    def _inline_bytes_max(self) -> int | None:
        """Size above which a message is serialized in another thread; None if it never is."""
        return (self.allow_offload and comm_utils.OFFLOAD_THRESHOLD) or None

    def _encoded_here(
        self, msg: object, serializers: list[str] | None, on_error: str
    ) -> tuple[list[Any], int]:
        """Serialize a message in this thread, to frames of so many bytes.

        Fewer than none if it is for another thread, as it is too large, or partly on a GPU.
        """
        if self._closed:
            self._refuse()
        families: Sequence[str] | None = serializers
        if serializers is not None or self._by_device is not False:
            families = self._families(serializers)
        options = (families, on_error, self._context(), self.max_shard_size)
        frames, message_bytes = codec.encode_here(msg, options, self._inline_bytes_max())
        if len(frames) == 1:
            # The header alone, which is bytes.
            return frames, message_bytes
        if message_bytes >= 0 and device_frames.places(frames):
            return frames, -1
        return list(map(in_order, frames)), message_bytes

    async def _encoded(
        self, msg: object, serializers: list[str] | None, on_error: str
    ) -> codec.Message:
        """Serialize a message, in another thread if it is large and the comm allows that."""
        families = self._families(serializers)
        arguments = (msg, families, on_error, self._context(), self.max_shard_size)
        arena = self._arena if self._may_lend(msg) else None
        message = codec.encode(*arguments, inline_bytes_max=self._inline_bytes_max())
        if message is not None:
            return move_to_arena(self._parted(message), arena)

        def encode() -> codec.Message:
            message = codec.encode(*arguments)
            assert message is not None
            return move_to_arena(self._parted(message), arena)

        encoded: codec.Message = await offload_measured(encode)
        return encoded

    def _families(self, serializers: Sequence[str] | None) -> Sequence[str] | None:
        """Give the families to serialize by, as the peer can take them."""
        if not self._sends_by_device():
            return device_frames.without_cuda(serializers)
        return device_frames.SERIALIZERS if serializers is None else serializers

    def _sends_by_device(self) -> bool:
        """Tell whether memory of our GPUs can be sent to the peer."""
        if self._by_device is None:
            theirs = self.remote_info.get("backhaul")
            if not theirs:
                return False
            self._by_device = device_frames.reaches(self.local_info["backhaul"], theirs)
        return self._by_device

    def _parted(self, message: codec.Message) -> codec.Message:
        """Part a message if some of it is on a GPU."""
        parted = device_frames.part(
            message.frames, self._next_tag, by_device=self._sends_by_device()
        )
        if parted is None:
            return message
        return message._replace(frames=parted.host, device=parted.device)

    def _keep(self, request: Request[None]) -> None:
        """Remember a send that is not done; one that failed raises here."""
        if request.done():
            request.result()
        else:
            self._unfinished.append(request)

    def _forget_finished(self) -> None:
        """Drop the requests that are done; one that failed raises here."""
        unfinished = self._unfinished
        while unfinished and unfinished[0].done():
            unfinished.popleft().result()

    def _may_lend(self, msg: object) -> bool:
        """Tell whether buffers of a message may be lent, see `buffer_sharing.is_get_data_reply`."""
        return self._share_results and is_get_data_reply(msg)

    async def _send(self, buffers: list[Any], shared: bool) -> None:
        unfinished = self._unfinished
        self._forget_finished()
        while len(unfinished) >= self._unfinished_max:
            await unfinished.popleft()
        request = self._endpoint.send_frames(buffers, shared=shared)
        try:
            if (
                request.done()
                or len(buffers) > _BUFFERS_SURE
                or self._endpoint.queued_bytes() > self._high_water_mark_bytes
            ):
                await request
            else:
                unfinished.append(request)
        finally:
            # As above: the cycle would keep the buffers, too.
            del request


def _abort_dangling(endpoint: Endpoint, pid: int, text: str) -> None:
    """Close the endpoint of a comm that was dropped without being closed."""
    # A forked child holds a copy; the connection is still its parent's.
    if os.getpid() == pid and not endpoint.closed():
        logger.warning("Closing dangling comm %s", text)
        endpoint.abort()
