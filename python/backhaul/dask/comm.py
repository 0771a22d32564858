"""One connection between two Dask processes, over a native endpoint.

A Dask message becomes a list of buffers by Dask's own serializers; the list crosses into the
native module in one call and arrives at the peer as the same list, each buffer in memory of its
own. Nothing is joined, split or copied here.

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
from typing import Any, NoReturn

from backhaul import BackhaulError, ConnectionFailed, Endpoint, Request, TimedOut
from backhaul.dask.config import Settings
from backhaul.dask.private import Comm, CommClosedError, ensure_memoryview, from_frames, to_frames

__all__ = ["BackhaulComm"]

logger = logging.getLogger(__name__)

#: A message of more buffers than this is waited for: the peer may refuse it for their number, and
#: later messages must not pass it.
_BUFFERS_SURE = 1024


class BackhaulComm(Comm):
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
        self._closed = False
        self._endpoint = endpoint
        self._local_addr = local_addr
        self._peer_addr = peer_addr
        super().__init__(deserialize=deserialize)
        self._high_water_mark_bytes = settings.high_water_mark_bytes
        #: Sends that were not done when `write` returned, oldest first; those that are done leave
        #: at the next write.
        self._unfinished: deque[Request[None]] = deque()
        #: Most of them, low enough that the native queue, which fails when it is full, never is.
        self._unfinished_max = max(1, settings.sends_max // 2)
        self._finalizer = weakref.finalize(
            self, _abort_dangling, endpoint, os.getpid(), f"{local_addr} -> {peer_addr}"
        )
        # At exit the operating system closes everything; a warning would help nobody.
        self._finalizer.atexit = False

    @property
    def local_address(self) -> str:
        return self._local_addr

    @property
    def peer_address(self) -> str:
        return self._peer_addr

    @property
    def lane(self) -> str:
        """How bytes move to this peer: ``inproc``, ``shm`` or ``tcp``."""
        return self._endpoint.lane

    @property
    def info(self) -> dict[str, Any]:
        """What the native endpoint knows about itself, with the reason for its lane."""
        return self._endpoint.info()

    @property
    def same_host(self) -> bool:
        """Whether the peer is on this host: Dask then does not compress."""
        # Dask compares addresses, which may need a name server and may mislead.
        return bool(self._endpoint.info()["same_host"])

    def handshake_info(self) -> dict[str, Any]:
        """Tell the peer about this side, for Dask and, under one key, for ourselves."""
        ours = {"pid": os.getpid(), "host": socket.gethostname(), "lane": self.lane}
        return {**super().handshake_info(), "backhaul": ours}

    async def write(
        self,
        msg: object,
        serializers: list[str] | None = None,
        on_error: str | None = "message",
    ) -> int:
        """Send a message.

        Returns once the message is queued, or, while much is queued, once it is sent. A send that
        fails later closes the comm.

        Parameters
        ----------
        msg : object
            What to send.
        serializers : list of str, optional
            Families of serializers to use, in order.
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
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context={
                "sender": self.local_info,
                "recipient": self.remote_info,
                **self.handshake_options,
            },
            frame_split_size=self.max_shard_size,
        )
        if self._closed:
            self._refuse()
        buffers = [_buffer(frame) for frame in frames]
        message_bytes = sum(map(_nbytes, buffers))
        try:
            await self._send(buffers)
        except (ConnectionFailed, TimedOut) as error:
            self._end(error)
        except BaseException:
            self.abort()
            raise
        return message_bytes

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
        try:
            frames = await self._endpoint.recv_frames()
        except (ConnectionFailed, TimedOut) as error:
            self._end(error)
        except BaseException:
            self.abort()
            raise
        try:
            return await from_frames(
                frames,
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload,
            )
        except EOFError as error:
            self.abort()
            raise CommClosedError(f"in {self}: aborted on truncated data") from error

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

    def abort(self) -> None:
        """Close at once, dropping what is queued; later calls do nothing."""
        self._closed = True
        self._finalizer.detach()
        self._unfinished.clear()
        self._endpoint.abort()

    def closed(self) -> bool:
        """Tell whether either side closed, or the peer is gone.

        What arrived before may still be read.
        """
        return self._closed or self._endpoint.closed()

    async def _send(self, buffers: list[Any]) -> None:
        unfinished = self._unfinished
        # Awaiting a request that is done visits no event loop; one that failed raises here.
        while unfinished and (unfinished[0].done() or len(unfinished) >= self._unfinished_max):
            await unfinished.popleft()
        request = self._endpoint.send_frames(buffers)
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
            # It keeps its exception, whose traceback keeps this frame: no cycle with the buffers.
            del request

    def _end(self, error: BackhaulError) -> NoReturn:
        """Give up a connection that ended."""
        self.abort()
        raise CommClosedError(f"in {self}: {type(error).__name__}: {error}") from error

    def _refuse(self) -> NoReturn:
        raise CommClosedError(f"in {self}: comm is closed")


def _buffer(frame: Any) -> Any:
    """Give a frame as it is, unless it is a view whose items are out of order.

    A view over a view, as `ensure_memoryview` makes of almost anything, is to be avoided: CPython
    3.11 crashes when its garbage collector meets one (python/cpython#77894, mended in 3.12.7).
    """
    if isinstance(frame, memoryview) and not frame.c_contiguous:
        return ensure_memoryview(frame)
    return frame


def _nbytes(buffer: bytes | memoryview) -> int:
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def _abort_dangling(endpoint: Endpoint, pid: int, text: str) -> None:
    """Close the endpoint of a comm that was dropped without being closed."""
    # A forked child holds a copy; the connection is still its parent's.
    if os.getpid() == pid and not endpoint.closed():
        logger.warning("Closing dangling comm %s", text)
        endpoint.abort()
