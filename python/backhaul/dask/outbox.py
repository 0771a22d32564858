"""What a client has to tell its scheduler, in one callback of its event loop.

A client drops futures one by one, mostly from another thread than its event loop's: for each, Dask
wakes the event loop, which counts, and calls itself once more to send. Here what is to be counted
and sent waits in one queue, in the order in which it came, and one callback works it off.

Against other callbacks of the same loop nothing comes later than in Dask, and something may come
earlier; among themselves messages and releases keep their order, so what a graph needs is not
released before the graph has been sent. Releases that follow each other go as one message, which
Dask's scheduler takes as well: a client that drops a list had it handle one for each future.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any

from tornado.ioloop import IOLoop
from tornado.log import app_log

from backhaul.dask.private import Client, Future

__all__ = ["Outbox", "collected_release", "collected_send", "outbox_of", "sends_by_outbox"]

_ATTRIBUTE = "_backhaul_outbox"

#: What a client sends when its last future of a key is gone
_RELEASES = "client-releases-keys"
#: Most keys of one such message: some milliseconds of a scheduler's
_RELEASED_MAX = 256


class Outbox:
    """Calls that the event loop of a client is to make soon, in order.

    Calls may be added by any thread, and by a finalizer that interrupts one that adds another.

    Parameters
    ----------
    loop : tornado.ioloop.IOLoop
        Makes the calls.
    """

    __slots__ = ("_calls", "_is_scheduled", "_loop")

    def __init__(self, loop: IOLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[[Any], object], Any]] = deque()
        #: Whether the loop is going to look at calls that are added from now on.
        self._is_scheduled = False

    def add(self, call: Callable[[Any], object], argument: Any) -> None:
        """Have the event loop make a call; what it raises is logged there."""
        self._calls.append((call, argument))
        self._schedule()

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
        # Before the calls are counted: one that is added from here on is either counted below, or
        # schedules another round.
        self._is_scheduled = False
        left = len(self._calls)
        try:
            while left > 0:
                call, argument = self._calls.popleft()
                left -= 1
                if _releases_one(argument):
                    argument = self._with_releases_after(call, argument, left)
                    left -= len(argument["keys"]) - 1
                try:
                    call(argument)
                except Exception:
                    # As the loop does for each of its callbacks.
                    app_log.error(
                        "Exception in callback %r", partial(call, argument), exc_info=True
                    )
        finally:
            # Some are left if a call was interrupted, as by KeyboardInterrupt.
            if self._calls:
                self._schedule()

    def _with_releases_after(
        self, call: Callable[[Any], object], message: dict[str, Any], left: int
    ) -> dict[str, Any]:
        """Take the releases of single keys that come next, at most so many, into one message."""
        keys = list(message["keys"])
        for _ in range(min(left, _RELEASED_MAX - 1)):
            next_call, following = self._calls[0]
            if next_call != call or not _releases_one(following):
                break
            self._calls.popleft()
            keys += following["keys"]
        return {**message, "keys": keys}


def _releases_one(argument: Any) -> bool:
    """Tell whether an argument is the message by which a client releases one key."""
    return (
        type(argument) is dict
        and argument.get("op") == _RELEASES
        and len(argument) == 3
        and "client" in argument
        and len(argument["keys"]) == 1
    )


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
                outbox_of(client).add(client._dec_ref, self.key)
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
