"""Inbox of a connection, for its event loop and for a thread that reads ahead of the loop.

The event loop of a client or a worker waits for messages. A thread that knows what to do with one
of them would be woken by the event loop, after it has handled all. Here the thread waits in the
event loop's place (`backhaul._native.Lookout`), and sees messages first. The event loop gets all of
them all the same, in the order in which they came: at once, or, if the thread has done what they
are about, within a time. Or a thread takes the event loop's part for a while, and handles messages
in its place, in their order: `SharedInbox.first` and what follows it.

A thread may act on a message only if the event loop has handled everything before it, or the thread
knows that this does not matter: `SharedInbox.is_handling` and `SharedInbox.unhandled` tell.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum
from itertools import islice
from typing import Any, Final, NamedTuple

from backhaul import Endpoint, Request
from backhaul._locks import RLock
from backhaul._loops import bridge_of, settle
from backhaul._native import Lookout
from backhaul.dask.comm import device_frames
from backhaul.dask.comm.buffer_sharing import nbytes_of
from backhaul.dask.compat.names import comm_utils
from backhaul.dask.serialize import codec

__all__ = [
    "ALL",
    "ALL_QUOTA",
    "BATCHES",
    "NONE",
    "PARTS",
    "Listener",
    "Quota",
    "Share",
    "SharedInbox",
    "messages_of",
]

#: Most messages, and bytes of them, that are received and not handled, so that a sender that never
#: stops is held up by a reader that is slow
_UNHANDLED_MAX: Final = 128
_UNHANDLED_BYTES_MAX: Final = 1 << 20

_decode: Final = codec.codec.decode


class Share(Enum):
    """Part of the arrived messages."""

    ALL = "all"
    #: The first `Quota.number` messages
    BATCHES = "batches"
    #: The first `Quota.number` parts of the first message, a list or tuple
    PARTS = "parts"
    #: None; the event loop asks again after `Quota.later_s`
    NONE = "none"


ALL, BATCHES, PARTS, NONE = Share


class Quota(NamedTuple):
    """Messages that the event loop may take."""

    share: Share
    number: int = 0
    #: Time until the event loop asks again, in seconds
    later_s: float = 0.0
    #: Whether to wake the thread that waits for messages
    wakes: bool = False


#: No message is left to threads
ALL_QUOTA: Final = Quota(ALL)


class Listener:
    """Methods that an inbox calls for the thread that reads; these do nothing."""

    def on_rest(self) -> None:
        """Note that the event loop has handled all that it has taken; without the lock."""

    def on_wait(self) -> None:
        """Note that the event loop is about to wait, so a thread may read; without the lock."""

    def on_take(self, taken: int) -> None:
        """Note how many messages are taken by now; the lock is held."""

    def on_close(self) -> None:
        """Note that nothing more arrives; called by any thread."""

    def may_take(self) -> Quota:
        """Return which of the messages the event loop may take; the lock is held."""
        return ALL_QUOTA


class SharedInbox:
    """Messages that have arrived on one endpoint, made on the event loop that reads them.

    No other object receives frames of the endpoint. `posted` is a receive of it that is under way,
    and `kept` a message that came before. `handle` handles a message in the event loop,
    immediately.

    Attributes
    ----------
    lock : threading.RLock
        Held while the attributes below are read or changed.
    taken : int
        How many messages the event loop has taken.
    is_handling : bool
        Whether it is at work on what it has taken.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        deserialize: bool,
        posted: Request[Any] | None = None,
        kept: list[memoryview] | None = None,
        handle: Callable[[Any], None] | None = None,
    ) -> None:
        self.lock = RLock()
        #: Each with the receive that got it
        self._unhandled: deque[tuple[Request[Any], Any]] = deque()
        self.taken = 0
        self.is_handling = True
        self.handle = handle or _refuse
        self._listener = Listener()
        self._endpoint = endpoint
        self._options = deserialize, None
        self._loop = asyncio.get_running_loop()
        self._lookout = Lookout(bridge_of(self._loop))
        self._unhandled_bytes = 0
        #: A message that is the event loop's to decode: a long one, one with parts on a GPU, or one
        #: that cannot be decoded
        self._kept: tuple[Request[Any] | None, list[memoryview]] | None = None
        if kept is not None:
            self._kept = None, kept
        #: Exception that ended the connection
        self._failure: BaseException | None = None
        self._request: Request[list[memoryview]] = posted or endpoint.recv_frames()
        self._lookout.watch(self._request)

    def listen(self, listener: Listener) -> None:
        """Set the object that is called from now on; once, by the event loop."""
        self._listener = listener

    # Called by the event loop

    async def take(self, most: int | None = None) -> tuple[list[Any], list[memoryview] | None]:
        """Wait for messages, and take at most so many, or all that there are.

        Returns at least one message; or none, and the frames of the next, to be decoded. Raises the
        exception that ended the connection, once all messages before are taken.
        """
        while True:
            self._listener.on_rest()
            with self.lock:
                self.receive()
                later_s: float | None = None
                if self._unhandled:
                    quota = self._listener.may_take()
                    share = quota.share
                    if share is ALL:
                        return self._take(most), None
                    if share is BATCHES:
                        count = quota.number if most is None else min(quota.number, most)
                        return self._take(count), None
                    if share is PARTS:
                        return [self._take_parts(quota.number)], None
                    later_s = quota.later_s
                if self._kept is not None:
                    self._go_on()
                    (_, frames), self._kept = self._kept, None
                    self.taken += 1
                    self.is_handling = True
                    self._listener.on_take(self.taken)
                    return [], frames
                if self._failure is not None:
                    raise self._failure
                news: asyncio.Future[None] = self._loop.create_future()
                if not self._lookout.expect(self._request, settle(news)):
                    continue
                self.is_handling = False
                if later_s is not None:
                    self.call(later_s)
            self._listener.on_wait()
            try:
                await news
            finally:
                self._lookout.disregard()

    def rest(self) -> None:
        """Note that all that was taken is handled, before other callbacks of the event loop run."""
        self._listener.on_rest()
        with self.lock:
            self.is_handling = False

    def _take(self, most: int | None) -> list[Any]:
        # Before the one is gone by which it is known that the last was received.
        self._go_on()
        self.is_handling = True
        count = len(self._unhandled) if most is None else min(most, len(self._unhandled))
        messages = [self._unhandled.popleft()[1] for _ in range(count)]
        if not self._unhandled:
            self._unhandled_bytes = 0
        self.taken += count
        self._listener.on_take(self.taken)
        return messages

    def _take_parts(self, count: int) -> Any:
        """Take so many parts of the oldest message, which counts as taken with the last of them."""
        self.is_handling = True
        first = self._unhandled[0][1]
        self.replace_first(first[count:])
        return first[:count]

    def readable(self) -> bool:
        """Tell whether the next `take` returns immediately, as far as that is known."""
        return bool(self._unhandled) or self._kept is not None or self._request.done()

    def close(self) -> None:
        """Let a waiting thread return: nothing more arrives."""
        # Without the lock: a thread that has it may wait for the one that closes.
        self._lookout.close()
        self._listener.on_close()

    # Called by any thread

    @property
    def unhandled(self) -> list[Any]:
        """Messages that the event loop has not taken, oldest first; the lock is held.

        They are the event loop's, which changes what it takes.
        """
        return self.unhandled_from(0)

    def unhandled_from(self, number: int) -> list[Any]:
        """Give those without so many of the oldest; the lock is held."""
        if len(self._unhandled) <= number:
            return []
        return [message for _, message in islice(self._unhandled, number, None)]

    def has_more_than(self, number: int) -> bool:
        """Tell whether more than so many messages have come, as far as is known without a lock.

        Messages that the event loop has taken count, too.
        """
        return self.taken + len(self._unhandled) > number or self._request.done()

    def is_still(self, seen: int = 0) -> bool:
        """Return, without a lock, whether a look would find nothing new and no thread at work.

        So many messages as were `seen`, with those that the event loop has taken, are not new.
        """
        return (
            not self.is_handling
            and not self.has_more_than(max(seen, self.taken))
            and self.may_look()
        )

    def has_unhandled(self, count: int) -> bool:
        """Tell whether so many that the event loop has not taken are known of, without a lock."""
        return len(self._unhandled) >= count

    def receive(self) -> None:
        """Take in what has arrived; the lock is held.

        Ctrl-C may break it off after any step, in the thread that it interrupts: the next call goes
        on from there.
        """
        unhandled = self._unhandled
        while self.may_look():
            request = self._request
            if unhandled and unhandled[-1][0] is request:
                self._go_on()
                request = self._request
            if self._failure is not None or not request.done():
                return
            try:
                # As often as asked
                frames = request.result()
            except Exception as error:
                # The exception ends the connection; the event loop raises it.
                self._failure = error
                return
            # Mostly a header alone, which is the host's
            is_one = len(frames) == 1
            frames_bytes = frames[0].nbytes if is_one else sum(map(nbytes_of, frames))
            if (
                frames_bytes > _UNHANDLED_BYTES_MAX
                # Which another thread decodes for the event loop
                or 0 < comm_utils.OFFLOAD_THRESHOLD < frames_bytes
                or (not is_one and device_frames.is_described(frames))
            ):
                self._kept = request, frames
                return
            try:
                message = _decode(frames, self._options)
            except Exception:
                # The event loop decodes it again, and says so.
                self._kept = request, frames
                return
            self._unhandled_bytes += frames_bytes
            # From here on it is received.
            unhandled.append((request, message))

    def first(self) -> Any:
        """Give the oldest message, for this thread to handle; None if it may not, or there is none.

        The lock is held until the message is dropped or replaced.
        """
        if self.is_handling or not self._unhandled:
            return None
        return self._unhandled[0][1]

    def drop_first(self, count: int = 1) -> None:
        """Count the oldest message, or so many, as taken and handled."""
        if not count:
            return
        self._go_on()
        for _ in range(count):
            self._unhandled.popleft()
        self.taken += count
        if not self._unhandled:
            self._unhandled_bytes = 0
        self._listener.on_take(self.taken)

    def replace_first(self, message: Any) -> None:
        """Leave something else in the place of the oldest message: what of it is not handled."""
        self._unhandled[0] = self._unhandled[0][0], message

    def fail(self, error: Exception) -> None:
        """Let the event loop raise an exception of a handler, which ends the stream."""
        self._unhandled.clear()
        self._kept = None
        self._failure = error
        self.call()

    def _go_on(self) -> None:
        """Post the next receive, if what the last one got is among the messages."""
        request = self._request
        if (self._unhandled and self._unhandled[-1][0] is request) or (
            self._kept is not None and self._kept[0] is request
        ):
            try:
                following = self._endpoint.recv_frames()
            except Exception as error:
                self._failure = error
                return
            # One that is dropped before this leaves its message to the next.
            self._request = following
            self._lookout.watch(following)

    def may_look(self) -> bool:
        """Tell whether messages can come that a thread may look at; the lock is held."""
        return (
            self._kept is None
            and self._failure is None
            and len(self._unhandled) < _UNHANDLED_MAX
            and self._unhandled_bytes < _UNHANDLED_BYTES_MAX
        )

    def wait(self, timeout_s: float, *, awake: bool = False) -> bool:
        """Block this thread until something has arrived, `rouse`, or for so many seconds.

        One thread at a time, and none of an event loop. A thread that has waited looks, or calls
        `leave`: messages that have arrived meanwhile have called no other thread. With `awake`,
        polls for a moment before the thread sleeps, where that has paid lately. Returns False if
        time has passed without any of it.
        """
        return self._lookout.wait(self._request, timeout_s, awake=awake)

    def leave(self) -> None:
        """Wait no more: what arrived while this thread waited, and it has not seen, is the loop's.

        A thread that has called `wait` calls this at the end.
        """
        # A message woke this thread, and so no other.
        if self._request.done():
            self.call()

    def rouse(self, or_next: bool = False) -> bool:
        """Wake the thread that waits, or have the next not wait; False if neither."""
        return self._lookout.rouse(or_next)

    def call(self, within_s: float = 0.0) -> None:
        """Let the event loop take all messages: now, or within so many seconds."""
        self._lookout.call(within_s)


def _refuse(batch: Any) -> None:
    """Refuse a message: default of an inbox whose messages only `take` returns."""
    raise RuntimeError(f"no handler for {batch!r}")


def messages_of(batch: Any) -> list[dict[str, Any]]:
    """Give the messages of a batch; one that is no dictionary as an empty one."""
    messages = batch if isinstance(batch, (list, tuple)) else (batch,)
    return [message if type(message) is dict else {} for message in messages]
