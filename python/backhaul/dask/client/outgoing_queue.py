"""Outgoing queue of a client: one callback of the event loop sends messages and releases.

A program releases futures one by one, mostly in another thread than the event loop's. For each,
Dask wakes the event loop, which decrements a count and schedules a second callback to send. Here
releases and messages wait in one queue, in order, and one callback processes the queue.

Relative to other callbacks of the same loop, no message is later than in Dask, and some are
earlier. Messages and releases keep their order, so the inputs of a graph are not released before
the graph is sent. Only where threads send without the event loop (`backhaul.dask.client.send`) do
releases wait, up to 4 ms, and later messages overtake them. Consecutive releases are joined into
one message, if the scheduler releases the keys of a message one after the other, as if each key had
a message (`backhaul.dask.worker.event_stream`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any

from tornado.ioloop import IOLoop
from tornado.log import app_log

from backhaul.dask.comm.capabilities import offers
from backhaul.dask.compat.names import Client, Future
from backhaul.dask.compat.operations import RELEASE_EACH, RELEASES

__all__ = [
    "Outbox",
    "collected_release",
    "collected_send",
    "outbox_of",
    "sends_by_outbox",
]

_ATTRIBUTE = "_backhaul_outbox"

#: Most keys in one joined message: the scheduler needs some milliseconds for these
_RELEASED_MAX = 256

#: How often the event loop checks for releases, in seconds, while threads send without it. With the
#: delay of the message that follows, a release waits less than on Dask's streams.
_LOOK_S = 0.004


class Outbox:
    """A queue of calls that the event loop of a client makes soon, in order.

    Any thread may add a call, and so may a finalizer that interrupts another addition.
    """

    __slots__ = ("_calls", "_is_looking", "_is_scheduled", "_is_used", "_loop", "_urgent")

    def __init__(self, loop: IOLoop) -> None:
        self._loop = loop
        #: Function, argument, and whether the call is more than a release.
        self._calls: deque[tuple[Callable[[Any], object], Any, bool]] = deque()
        #: One item for each call that is more than a release, until the call has been made.
        self._urgent: deque[None] = deque()
        #: Whether a scheduled callback will process calls that are added from now on.
        self._is_scheduled = False
        #: Whether a timer will check for releases, and whether it was used since its last check.
        self._is_looking = False
        self._is_used = False

    def add(self, call: Callable[[Any], object], argument: Any) -> None:
        """Schedule a call in the event loop, which logs an exception of the call."""
        self._urgent.append(None)
        self._calls.append((call, argument, True))
        self._schedule()

    def add_release(self, call: Callable[[Any], object], argument: Any) -> None:
        """Schedule a call that releases a future; it waits for the timer if that is active.

        Messages that threads send without the event loop may overtake the release.
        """
        self._calls.append((call, argument, False))
        if self._is_looking:
            self._is_used = True
        else:
            self._schedule()

    def holds_up(self) -> bool:
        """Tell whether the queue has a call that a message must not overtake."""
        return bool(self._urgent)

    def look_often(self) -> None:
        """Start the timer that checks for releases; it goes on while this is called.

        Threads that send and wait without the event loop then need not wake it for a release.
        """
        self._is_used = True
        if not self._is_looking:
            self._is_looking = True
            self._loop.add_callback(self._look_later)

    def _look_later(self) -> None:
        self._loop.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        # Set before the check below: a later addition is seen by it or by the next one, or it
        # schedules a callback.
        self._is_looking = goes_on = self._is_used
        self._is_used = False
        if goes_on:
            self._look_later()
        if self._calls and not self._is_scheduled:
            self._work_off()

    def _schedule(self) -> None:
        if self._is_scheduled:
            return
        self._is_scheduled = True
        try:
            self._loop.add_callback(self._work_off)
        except BaseException:
            self._is_scheduled = False
            raise

    def _work_off(self) -> None:
        self._is_scheduled = True
        try:
            self._make(len(self._calls))
            # The releases above add messages to the scheduler, which no thread's message may pass.
            self._make(len(self._calls))
        finally:
            # Set before the check for calls that are left: a call that is added from here on
            # schedules another round.
            self._is_scheduled = False
            if self._calls:
                self._schedule()

    def _make(self, left: int) -> None:
        """Make up to `left` of the calls."""
        while left > 0:
            call, argument, is_urgent = self._calls.popleft()
            left -= 1
            made = 1
            if _releases_one(argument) and _takes_joined(call):
                argument = self._with_releases_after(call, argument, left)
                made = len(argument["keys"])
                left -= made - 1
            try:
                call(argument)
            except Exception:
                # The event loop logs an exception of a callback in this form.
                app_log.error("Exception in callback %r", partial(call, argument), exc_info=True)
            finally:
                if is_urgent:
                    for _ in range(made):
                        self._urgent.popleft()

    def _with_releases_after(
        self, call: Callable[[Any], object], message: dict[str, Any], left: int
    ) -> dict[str, Any]:
        """Join the next releases of single keys, at most `left`, with a message."""
        keys = list(message["keys"])
        for _ in range(min(left, _RELEASED_MAX - 1)):
            next_call, following, _ = self._calls[0]
            if next_call != call or not _releases_one(following):
                break
            self._calls.popleft()
            keys += following["keys"]
        return {**message, "keys": keys}


def _releases_one(argument: Any) -> bool:
    """Tell whether an argument is the message by which a client releases one key."""
    return (
        type(argument) is dict
        and argument.get("op") == RELEASES
        and len(argument) == 3
        and "client" in argument
        and len(argument["keys"]) == 1
    )


def _takes_joined(call: Any) -> bool:
    """Tell whether a client sends to a scheduler that releases each key of a message alone."""
    stream = getattr(getattr(call, "__self__", None), "scheduler_comm", None)
    return offers(getattr(stream, "comm", None), RELEASE_EACH)


def collected_send(original: Callable[..., Any]) -> Callable[..., None]:
    """Make a `Client._send_to_scheduler` that uses the client's outbox."""

    def _send_to_scheduler(self: Client, msg: dict[str, Any]) -> None:
        # In any other status Dask's own method refuses the message.
        if self.status in ("running", "closing", "connecting", "newly-created"):
            outbox_of(self).add(self._send_to_scheduler_safe, msg)
        else:
            original(self, msg)

    return _send_to_scheduler


def collected_release(original: Callable[..., Any]) -> Callable[..., None]:
    """Make a `Future.release` that uses the client's outbox, if the client sends through it."""

    def release(self: Future[Any]) -> None:
        client = self._client
        if client is None or not self._state or not sends_by_outbox(client):
            original(self)
        elif not self._cleared and client.generation == self._generation:
            self._cleared = True
            try:  # noqa: SIM105 - for each future that is dropped
                outbox_of(client).add_release(client._dec_ref, self.key)
            except TypeError:
                # As in Dask: at the end of the interpreter anything may be None.
                pass

    return release


def outbox_of(client: Client) -> Outbox:
    """Return the outbox of a client, made on first use."""
    attributes = vars(client)
    outbox: Outbox | None = attributes.get(_ATTRIBUTE)
    if outbox is None:
        # A client without a loop raises at the first call, as it would in Dask's own code.
        loop: Any = client.loop
        outbox = attributes.setdefault(_ATTRIBUTE, Outbox(loop))
    return outbox


def sends_by_outbox(client: Client) -> bool:
    """Tell whether a client sends its messages through its outbox."""
    sends = getattr(type(client)._send_to_scheduler, "__code__", None)
    return sends is _SEND_CODE and "_send_to_scheduler" not in vars(client)


# By name: from Python 3.14 on, the code of its annotations is another constant.
(_SEND_CODE,) = (
    code
    for code in collected_send.__code__.co_consts
    if isinstance(code, CodeType) and code.co_name == "_send_to_scheduler"
)
