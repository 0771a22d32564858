"""The stream of a client or a worker, on which its threads send as well as its event loop.

A thread that submits a task hands the message to the event loop of the client, in Dask: another
thread is woken, waits for the interpreter, and sends. Here the thread itself sends
(`backhaul.dask.client.send`), behind all that the event loop has queued before.

Batches stay. A message that comes densely behind others of threads waits for more, as
`backhaul.dask.comm.batched_stream` has it, but not for a timer alone: the next message that is due
takes it along, and a thread that is about to wait for a result sends what there is, as nothing else
will come from it. After that the next message is not dense, however soon it comes: a program that
waits for each result has nothing to gather.

The lock is one with combining: a thread that must not wait for the lock posts its messages to
`_posted`, and the owner of the lock sends them when it releases the lock. So the owner of the state
of a worker never waits for the lock of the stream, and code that runs while a message is sent, such
as a finalizer, may wait for the lock of the state.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Final

from backhaul._locks import RLock, is_owned
from backhaul.dask.comm import batched_stream
from backhaul.dask.comm.already_sent import ALREADY_SENT
from backhaul.dask.comm.batched_stream import AdaptiveBatchedSend
from backhaul.dask.comm.comm import BackhaulComm
from backhaul.dask.compat.instance_patches import SHARED_STREAM, STREAM_CLASS
from backhaul.dask.compat.names import BatchedSend, CommClosedError
from backhaul.dask.config.settings import switched_on

__all__ = ["SharedBatchedSend", "adaptive_start", "adopt"]

#: What Dask's clients and workers call the comms of their streams, and the switch for each
_SHARED_BY_NAME = {
    "Client->Scheduler": "hot-path.client-threads",
    "Worker->Scheduler": "hot-path.worker-threads",
}

_LONG_AGO: Final = float("-inf")

#: As `batched_stream._DENSE_S`, for messages of threads: no program waits for one of many
#: tasks that it submits
_DENSE_S = 0.0004


class SharedBatchedSend(AdaptiveBatchedSend):
    """An `AdaptiveBatchedSend` that any thread may send by; made as that is, by `adopt`.

    Notes
    -----
    A change of the stream needs its lock. Each release is followed by `_send_posted`. Errors of a
    batch that a thread sends are handled by the event loop: it looks at the same batch, or at what
    is left of the comm.

    Guarantees:

    1. `post_in_thread`, `send` and `hurry` never wait for the lock.
    2. A posted message is sent by the thread that posts it, or by the owner of the lock.
    3. Messages of one thread leave in the order in which it sends them.
    """

    def start(self, comm: BackhaulComm) -> None:
        """Begin to send what was and will be given to `send`."""
        # Again by the same thread, as a finalizer may run in the middle of anything.
        self.lock = RLock()
        #: Messages for the owner of the lock, and whether their thread is about to wait. A thread
        #: that appends tries to take the lock after that, and an owner looks here after each
        #: release: so one of both sends the messages.
        self._posted: deque[tuple[tuple[Any, ...], bool]] = deque()
        #: The thread that is sending; 0 for none.
        self._sender = 0
        self._pid = os.getpid()
        #: When a batch has left last, on the clock of threads.
        self._left_at = _LONG_AGO
        #: When the next one is due, if a thread has begun it, and the pause in front of it.
        self._batch_due_at: float | None = None
        self._batch_pause_s = 0.0
        #: Whether a thread has sent something since one was about to wait last
        self._has_asked = False
        super().start(comm)

    def send_in_thread(self, message: Any, *, is_last: bool = False) -> bool:
        """Send a message, or queue it so that it leaves soon, in a thread without an event loop.

        It comes behind all that was queued before. A thread that is about to wait, as `is_last`
        says, sends what there is. Returns False if it is for the event loop to queue; nothing was
        done.
        """
        me = threading.get_ident()
        if self._sender == me or self._pid != os.getpid():
            # A finalizer that submits, in the middle of this; or a forked child without the loop.
            return False
        try:
            with self.lock:
                if not self._is_ours():
                    return False
                if self._posted:
                    self._handle_posted()
                self.message_count += 1
                self.buffer.append(message)
                if self._draining is None:
                    if is_last:
                        self._send_in(me)
                    else:
                        self._send_if_due(me)
                if is_last:
                    self._left_at = _LONG_AGO
        finally:
            self._send_posted()
        return True

    def post_in_thread(self, *messages: Any, is_last: bool = False) -> bool:
        """Send messages as `send_in_thread` does, without a wait for the lock."""
        if self._pid != os.getpid() or not self._is_ours():
            return False
        self._posted.append((messages, is_last))
        self._send_posted()
        return True

    def _send_posted(self) -> None:
        """Send posted messages, unless another thread has the lock, which then does so."""
        while self._posted and not is_owned(self.lock) and self.lock.acquire(blocking=False):
            try:
                self._handle_posted()
            finally:
                self.lock.release()

    def _handle_posted(self) -> None:
        """Queue posted messages, and send what is due; the lock is held."""
        is_last = self._queue_posted()
        if not self.buffer or self.please_stop or self._draining is not None:
            return
        me = threading.get_ident()
        if is_last:
            self._send_in(me)
            self._left_at = _LONG_AGO
        else:
            self._send_if_due(me)

    def _queue_posted(self) -> bool:
        """Queue posted messages; tell whether a thread is about to wait; the lock is held."""
        is_last = False
        while self._posted:
            messages, waits = self._posted.popleft()
            self.message_count += len(messages)
            self.buffer.extend(messages)
            is_last |= waits
        return is_last

    def _is_ours(self) -> bool:
        """Tell whether threads may send by it: it is open, and its comm is ours."""
        return not (
            self.please_stop
            or self._comm.closed()
            or type(self._comm).write is not BackhaulComm.write
        )

    def flush_in_thread(self) -> bool:
        """Send what is queued, as this thread is about to wait.

        Tells whether threads have sent anything since the last call.
        """
        me = threading.get_ident()
        if self._sender == me or self._pid != os.getpid():
            return False
        try:
            with self.lock:
                self._queue_posted()
                if self.buffer and self._draining is None and not self.please_stop:
                    self._send_in(me)
                self._left_at = _LONG_AGO
                has_asked, self._has_asked = self._has_asked, False
        finally:
            self._send_posted()
        return has_asked

    def send(self, *msgs: Any) -> None:
        """Queue messages; they leave soon, in order; see `AdaptiveBatchedSend.send`."""
        if len(msgs) == 1 and msgs[0] is ALREADY_SENT:
            return
        if not self.lock.acquire(blocking=False):
            # The owner may wait for the lock of the state, which this thread may have.
            if self._comm.closed():
                raise CommClosedError(f"Comm {self._comm!r} already closed.")
            self._posted.append((msgs, False))
            self._leave_to_loop(self.resume_on_loop)
            self._send_posted()
            return
        try:
            if self._posted and self._sender != threading.get_ident():
                self._handle_posted()
            # The lock is free of threads; one that was interrupted may not have said so.
            self._sender = 0
            super().send(*msgs)
        finally:
            self.lock.release()
            self._send_posted()

    def close(self, timeout: Any = None) -> asyncio.Future[None]:
        """Send what is queued, then close the comm; `TimeoutError` after `timeout`."""
        try:
            with self.lock:
                self._queue_posted()
                return super().close(timeout)
        finally:
            self._send_posted()

    def abort(self) -> None:
        """Close the comm immediately, dropping queued messages."""
        try:
            with self.lock:
                super().abort()
        finally:
            self._send_posted()

    def hurry(self) -> None:
        """Send what is queued at the end of this turn, whatever the pause."""
        if not self.lock.acquire(blocking=False):
            # As `send`
            self._event_loop.call_soon(self._hurry)
            return
        try:
            super().hurry()
        finally:
            self.lock.release()
            self._send_posted()

    def _hurry(self) -> None:
        try:
            with self.lock:
                super().hurry()
        finally:
            self._send_posted()

    def _send_if_due(self, me: int) -> None:
        """Send what is queued, unless more is likely to come; the lock is held."""
        now = monotonic()
        due_at = self._batch_due_at
        if due_at is None:
            if now - self._left_at >= _DENSE_S:
                self._batch_pause_s = 0.0
            else:
                longer = max(2 * self._batch_pause_s, batched_stream._PAUSE_MIN_S)
                self._batch_pause_s = min(longer, batched_stream._PAUSE_MAX_S)
            due_at = self._left_at + self._batch_pause_s
            if due_at > now:
                # If no message comes that is due.
                self._leave_to_loop(self.resume_on_loop)
            self._batch_due_at = due_at
        if now >= due_at:
            self._send_in(me)

    def _send_in(self, me: int) -> None:
        """Send what is queued in this thread; the lock is held."""
        payload = self.buffer[:]
        try:
            self._sender = me
            message_bytes = self._comm.write_in_thread(
                payload, partial(self.buffer.__delitem__, slice(len(payload))), self.serializers
            )
            if message_bytes is None:
                # Too large to be serialized here.
                self._leave_to_loop(self._flush)
                return
            self._left_at = monotonic()
            self._batch_due_at = None
            self._has_asked = True
            self.batch_count += 1
            self._log(payload, message_bytes)
            if self._comm.congested():
                self._leave_to_loop(self.resume_on_loop)
        except Exception:
            self._leave_to_loop(self.resume_on_loop)
        except BaseException:
            # Ctrl-C: what has not left goes soon.
            self._leave_to_loop(self.resume_on_loop)
            raise
        finally:
            self._sender = 0

    def _leave_to_loop(self, what: Callable[[], None]) -> None:
        # Closed, at the end of a program: so is the comm.
        with contextlib.suppress(RuntimeError):
            self._event_loop.call_soon_threadsafe(what)

    def resume_on_loop(self) -> None:
        """Do what a thread has left to the event loop, which calls this."""
        try:
            with self.lock:
                if self._posted:
                    self._handle_posted()
                if self.please_stop or self._draining is not None:
                    return
                if self._comm.closed():
                    batched_stream.logger.info("Batched Comm Closed %r", self._comm)
                    self.abort()
                elif self._comm.congested():
                    self._cancel_flush()
                    self._begin_to_drain()
                elif self.buffer and self._due is None:
                    self._schedule_batch()
        finally:
            self._send_posted()

    def _schedule_batch(self) -> None:
        """Send what a thread has begun to gather when it is due."""
        if self._batch_due_at is None:
            self._schedule()
        else:
            left_s = max(0.0, self._batch_due_at - monotonic())
            self._due_at = self._event_loop.time() + left_s
            self._due = self._event_loop.call_at(self._due_at, self._flush)

    def _flush(self) -> None:
        try:
            with self.lock:
                self._queue_posted()
                if self.buffer:
                    self._left_at = monotonic()
                    self._batch_due_at = None
                super()._flush()
        finally:
            self._send_posted()

    def _go_on(self) -> None:
        try:
            with self.lock:
                super()._go_on()
        finally:
            self._send_posted()


def adopt(stream: BatchedSend, comm: Any) -> bool:
    """Make a stream that is about to start over one of our comms adaptive.

    Returns False if the comm is not ours, or the stream not quite Dask's: it is left as it was.
    """
    if type(stream) is not BatchedSend or not isinstance(comm, BackhaulComm):
        return False
    if not STREAM_CLASS.install(stream, {"__class__": _class_for(comm)}):
        return False
    stream.start(comm)
    return True


def _class_for(comm: BackhaulComm) -> type[AdaptiveBatchedSend]:
    """Tell what a stream becomes: of a client or worker, one that threads may send by, too."""
    switch = _SHARED_BY_NAME.get(comm.name or "")
    if switch is None or not switched_on(switch):
        return AdaptiveBatchedSend
    return SharedBatchedSend if SHARED_STREAM.fits() else AdaptiveBatchedSend


def adaptive_start(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `BatchedSend.start` that adopts streams over our comms."""

    def start(self: BatchedSend, comm: Any) -> None:
        if not adopt(self, comm):
            original(self, comm)

    return start
