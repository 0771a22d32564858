"""Batches that leave as soon as the link lets them: `BatchedSend` without fixed timers.

Dask's `BatchedSend` sends at most one batch in an interval of 2 to 10 ms, so every message of a
chain of tasks waits for a timer. Here a message leaves at the end of the event loop's turn that
made it. Messages gather in two cases, both of which end without an event:

- while the peer has yet to take what was sent before;
- while messages come densely: the next one within `_DENSE_S` of the batch before it. Then the pause
  between two batches grows, up to `_PAUSE_MAX_S`, and ends with the first message that comes later.

The scheme of the second is that of interrupt moderation in network drivers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, Protocol, cast

from backhaul.dask.comm.comm import BackhaulComm
from backhaul.dask.compat.names import BatchedSend, CommClosedError

__all__ = ["AdaptiveBatchedSend", "Gate"]

#: Dask's own log, for what Dask logs there.
logger = logging.getLogger("distributed.batched")

#: Longest pause between two batches. Shorter than any interval of Dask's but the shortest, so that
#: no peer waits for longer than with Dask's own.
_PAUSE_MAX_S = 0.002
#: First pause once messages come densely.
_PAUSE_MIN_S = 0.00025
#: A message that comes sooner than this after a batch is one of many. A chain of tasks, which waits
#: for each message, has longer gaps, of 0.25 ms and more where a worker's thread reads ahead.
_DENSE_S = 0.00015

#: A batch above this is not kept in the log of recent messages, as in Dask.
_LOGGED_BYTES_MAX = 1_000_000


class Gate(Protocol):
    """Another sender on a comm."""

    def hold(self) -> None:
        """Hear that messages are queued here, which go first; more than once is as once."""

    def release(self) -> None:
        """Hear that none are any more."""

    def give_up(self) -> None:
        """Give up the comm, because another comm is about to take its place."""


class AdaptiveBatchedSend(BatchedSend):
    """A `BatchedSend` over a `BackhaulComm`; `threaded_stream.adopt` makes one of a stream.

    Attributes
    ----------
    patience_s : float
        How long the next batch may wait, in seconds, if the sender knows that the peer has
        nothing to gain from it sooner. Taken back after each batch.
    gate : Gate or None
        Another sender on the comm, which must not overtake messages that are queued here.
    """

    buffer: list[Any]
    patience_s: float
    gate: Gate | None = None
    # None until it starts, as Dask has it; no code of Backhaul reads it before.
    _comm = cast("BackhaulComm", None)

    @property
    def comm(self) -> BackhaulComm:
        """Return the comm of the stream. To set another one ends the sharing with other senders."""
        return self._comm

    @comm.setter
    def comm(self, comm: Any) -> None:
        if self.gate is not None and comm is not self._comm:
            self.gate.give_up()
        self._comm = comm

    def start(self, comm: BackhaulComm) -> None:
        """Begin to send what was and will be given to `send`."""
        self._comm = comm
        self.patience_s = 0.0
        self._event_loop: asyncio.AbstractEventLoop = self.loop.asyncio_loop  # type: ignore[union-attr]
        #: The flush that was scheduled, if one was.
        self._due: asyncio.Handle | None = None
        self._due_at: float = 0.0
        #: Waits for the peer to take what was sent.
        self._draining: asyncio.Task[None] | None = None
        self._flushed_at = 0.0
        self._pause_s = 0.0
        if self.buffer:
            self._schedule()

    def send(self, *msgs: Any) -> None:
        """Queue messages; they leave soon, in order.

        Raises
        ------
        CommClosedError
            If the comm is closed. Nothing was queued.
        """
        if self._comm.closed():
            raise CommClosedError(f"Comm {self._comm!r} already closed.")
        if self.gate is not None and not self.buffer:
            self.gate.hold()
        self.message_count += len(msgs)
        self.buffer.extend(msgs)
        if self._draining is not None:
            return
        if self._due is None:
            self._schedule()

    def close(self, timeout: Any = None) -> asyncio.Future[None]:
        """Send what is queued, then close the comm; `TimeoutError` after `timeout`."""
        self.please_stop = True
        return asyncio.ensure_future(self._close(timeout))

    def abort(self) -> None:
        """Close the comm immediately, dropping queued messages."""
        self._stop()
        self.buffer = []
        if not self._comm.closed():
            self._comm.abort()

    def join(self, gate: Gate) -> None:
        """Share the comm with another sender, from now on."""
        self.gate = gate
        if self.buffer or self._draining is not None:
            gate.hold()

    def leave(self) -> None:
        """Use the comm alone again."""
        self.gate = None

    def hurry(self) -> None:
        """Send what is queued at the end of this turn, whatever the pause."""
        self.patience_s = 0.0
        if self.buffer and self._draining is None and self._due_at:
            self._cancel_flush()
            self._due = self._event_loop.call_soon(self._flush)

    def _schedule(self) -> None:
        if self.please_stop:
            return
        now = self._event_loop.time()
        if now - self._flushed_at >= _DENSE_S:
            self._pause_s = 0.0
        else:
            self._pause_s = min(max(2 * self._pause_s, _PAUSE_MIN_S), _PAUSE_MAX_S)
        due_at = self._flushed_at + max(self._pause_s, self.patience_s)
        if due_at > now:
            self._due_at = due_at
            self._due = self._event_loop.call_at(due_at, self._flush)
        else:
            self._due_at = 0.0
            self._due = self._event_loop.call_soon(self._flush)

    def _cancel_flush(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _flush(self) -> None:
        self._due = None
        if self.please_stop or self._draining is not None or not self.buffer:
            return
        payload, self.buffer = self.buffer, []
        self.patience_s = 0.0
        self._flushed_at = self._event_loop.time()
        self.batch_count += 1
        if type(self._comm).write is not BackhaulComm.write:
            # A program has put another comm in the place of Backhaul's, or one derived from it that
            # writes in a way of its own, as some tests of Dask's do.
            self._write_aside(payload)
            return
        try:
            message_bytes = self._comm.write_nowait(
                payload, serializers=self.serializers, on_error="raise"
            )
            congested = self._comm.congested()
        except CommClosedError:
            logger.info("Batched Comm Closed %r", self._comm, exc_info=True)
            self.abort()
            return
        except Exception:
            # The peer may have received a part of the batch: the stream cannot go on.
            logger.exception("Error in batched write")
            self.abort()
            return
        if message_bytes is None:
            self._write_aside(payload)
            return
        self._log(payload, message_bytes)
        if self.gate is not None:
            self.gate.release()
        if congested:
            self._begin_to_drain()

    def _begin_to_drain(self) -> None:
        self._draining = self._event_loop.create_task(self._drain(self._comm.drained()))

    def _write_aside(self, payload: list[Any]) -> None:
        """Send a batch while the event loop goes on; what comes meanwhile gathers."""
        self._draining = self._event_loop.create_task(self._drain(self._write(payload)))

    async def _write(self, payload: list[Any]) -> None:
        message_bytes = await self._comm.write(
            payload, serializers=self.serializers, on_error="raise"
        )
        self._log(payload, message_bytes)

    def _log(self, payload: list[Any], message_bytes: int) -> None:
        logged = payload if message_bytes < _LOGGED_BYTES_MAX else "large-message"
        self.recent_message_log.append(logged)
        self.byte_count += message_bytes

    async def _drain(self, ends: Coroutine[Any, Any, None]) -> None:
        """Wait for something that keeps the link busy, then go on."""
        try:
            await ends
        except CommClosedError:
            logger.info("Batched Comm Closed %r", self._comm, exc_info=True)
            self.abort()
        except Exception:
            logger.exception("Error in batched write")
            self.abort()
        finally:
            self._go_on()

    def _go_on(self) -> None:
        """Send what has gathered while the link was busy."""
        self._draining = None
        if self.buffer:
            self._schedule()
        elif self.gate is not None:
            self.gate.release()

    async def _close(self, timeout: Any) -> None:
        self._cancel_flush()
        draining = self._draining
        if draining is not None:
            seconds = timeout.total_seconds() if hasattr(timeout, "total_seconds") else timeout
            await asyncio.wait_for(asyncio.shield(draining), seconds)
        self.stopped.set()
        if self._comm.closed():
            return
        with contextlib.suppress(CommClosedError):
            if self.buffer:
                payload, self.buffer = self.buffer, []
                await self._comm.write(payload, serializers=self.serializers, on_error="raise")
        await self._comm.close()

    def _stop(self) -> None:
        self.please_stop = True
        self.stopped.set()
        self._cancel_flush()
