"""What a client has to tell its scheduler, in one callback of its event loop.

A client drops futures one by one, mostly from another thread than its event loop's: for each, Dask
wakes the event loop, which counts, and calls itself once more to send. Here what is to be counted
and sent waits in one queue, in the order in which it came, and one callback works it off.

Against other callbacks of the same loop nothing comes later than in Dask, and something may come
earlier; among themselves messages and releases keep their order, so what a graph needs is not
released before the graph has been sent. Only where threads send by themselves
(`backhaul.dask.client.send`) releases wait, up to 4 ms, and later messages pass them. Releases
that follow each other go as one message, if the scheduler releases its keys one after the other, as
if each had come alone (`backhaul.dask.worker.event_stream`).
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

#: Most keys of one such message: some milliseconds of a scheduler's
_RELEASED_MAX = 256

#: How long a release waits for the event loop to look, while threads do without it: with what the
#: message waits to which it may lead, less than on Dask's streams
_LOOK_S = 0.004


class Outbox:
    """Calls that the event loop of a client is to make soon, in order.

    Calls may be added by any thread, and by a finalizer that interrupts one that adds another.

    Parameters
    ----------
    loop : tornado.ioloop.IOLoop
        Makes the calls.
    """

    __slots__ = ("_calls", "_is_looking", "_is_scheduled", "_is_used", "_loop", "_urgent")

    def __init__(self, loop: IOLoop) -> None:
        self._loop = loop
        #: What to call, with what, and whether it is more than a release.
        self._calls: deque[tuple[Callable[[Any], object], Any, bool]] = deque()
        #: One item for each call that is not only a release, until it has been made.
        self._urgent: deque[None] = deque()
        #: Whether the loop is going to look at calls that are added from now on.
        self._is_scheduled = False
        #: Whether it looks at them in a while, and whether that has been of use since it did last.
        self._is_looking = False
        self._is_used = False

    def add(self, call: Callable[[Any], object], argument: Any) -> None:
        """Have the event loop make a call; what it raises is logged there."""
        self._urgent.append(None)
        self._calls.append((call, argument, True))
        self._schedule()

    def add_release(self, call: Callable[[Any], object], argument: Any) -> None:
        """Have the event loop make a call by which something is given up: in a while, if it looks.

        What threads send by themselves may overtake it.
        """
        self._calls.append((call, argument, False))
        if self._is_looking:
            self._is_used = True
        else:
            self._schedule()

    def holds_up(self) -> bool:
        """Tell whether something has been added, and is not done, that a message must not pass."""
        return bool(self._urgent)

    def look_often(self) -> None:
        """Have the event loop look at releases every now and then, for as long as this is called.

        Threads that do not need the loop to send and to wait need not wake it for what they drop.
        """
        self._is_used = True
        if not self._is_looking:
            self._is_looking = True
            self._loop.add_callback(self._look_later)

    def _look_later(self) -> None:
        self._loop.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        # As above: whoever adds from here on is seen below, or by the next look, or schedules.
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
            # What has been released is to be told, which no thread's message passes until it is.
            self._make(len(self._calls))
        finally:
            # Before it looks for calls that are left: one that is added from here on schedules
            # another round.
            self._is_scheduled = False
            if self._calls:
                self._schedule()

    def _make(self, left: int) -> None:
        """Make so many of the calls."""
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
                # As the loop does for each of its callbacks.
                app_log.error("Exception in callback %r", partial(call, argument), exc_info=True)
            finally:
                if is_urgent:
                    for _ in range(made):
                        self._urgent.popleft()

    def _with_releases_after(
        self, call: Callable[[Any], object], message: dict[str, Any], left: int
    ) -> dict[str, Any]:
        """Take the releases of single keys that come next, at most so many, into one message."""
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
    """Make a `Future.release` that uses the client's outbox, if what the client sends does, too."""

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
    """Give the outbox of a client, made on first use."""
    attributes = vars(client)
    outbox: Outbox | None = attributes.get(_ATTRIBUTE)
    if outbox is None:
        # A client without a loop raises at the first call, as it would in Dask's own code.
        loop: Any = client.loop
        outbox = attributes.setdefault(_ATTRIBUTE, Outbox(loop))
    return outbox


def sends_by_outbox(client: Client) -> bool:
    """Tell whether what a client sends goes through its outbox."""
    sends = getattr(type(client)._send_to_scheduler, "__code__", None)
    return sends is _SEND_CODE and "_send_to_scheduler" not in vars(client)


# By name: from Python 3.14 on, the code of its annotations is another constant.
(_SEND_CODE,) = (
    code
    for code in collected_send.__code__.co_consts
    if isinstance(code, CodeType) and code.co_name == "_send_to_scheduler"
)
