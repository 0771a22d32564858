"""What a scheduler reports to a client, handled by a thread that waits for it.

While a thread waits for a result, it takes the part of the client's event loop: it waits for what
arrives on the stream, and handles it, in order, for all that wait: results that come with the news
(`backhaul.dask.client.result_cache`) and the news that a task is in memory. These handlers are the
event loop's own. Whatever else the scheduler reports is the event loop's to handle, with all that
comes behind it until it has; so nothing is ever handled twice, or before what came before it.

One thread reads, the others that wait are woken by it. When it has what it waits for, another one
goes on; when none waits, the event loop does.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from backhaul.dask.client.state_event import StateEvent
from backhaul.dask.comm.comm import BackhaulComm
from backhaul.dask.comm.inbox import Arrivals
from backhaul.dask.compat.names import Client

__all__ = ["Thread", "ThreadReports", "reports_of", "share_reports"]

#: Dask's own log, for what Dask logs there
logger = logging.getLogger("distributed.client")

_ATTRIBUTE = "_backhaul_thread_reports"


class Thread(Protocol):
    """A thread that waits."""

    #: Whether it has what it waits for
    is_over: bool

    def nudge(self) -> None:
        """Have it look."""


class ThreadReports:
    """What arrives on the stream of one client.

    Parameters
    ----------
    client : distributed.Client
        The client.
    comm : BackhaulComm
        Of the stream.
    arrivals : Arrivals
        What arrives there.
    handlers : dict of str to callable
        Handlers that a thread may call, by operation: they are, and call, nothing but what is made
        for any thread.

    Attributes
    ----------
    threads : deque of Thread
        Those that wait, whether they read or not.
    """

    def __init__(
        self,
        client: Client,
        comm: BackhaulComm,
        arrivals: Arrivals,
        handlers: dict[str, Callable[..., Any]],
    ) -> None:
        self._client = client
        self._comm = comm
        self._arrivals = arrivals
        self._ours = handlers
        self.threads: deque[Thread] = deque()
        #: The thread that reads, as long as it waits: Ctrl-C may end that between any two steps
        self._leader: Thread | None = None
        self._leader_ident = 0
        #: Whether it handles something at the moment
        self._is_at_work = False
        self._pid = os.getpid()
        arrivals.on_wait = self._pass_on

    def is_open(self) -> bool:
        """Tell whether something may arrive still, in this process."""
        return self._pid == os.getpid() and not self._comm.closed()

    def lead(self, thread: Thread) -> bool:
        """Make a thread that waits the one that reads, if there is none."""
        with self._arrivals.lock:
            if self._is_led():
                return False
            self._leader = thread
            self._leader_ident = threading.get_ident()
            return True

    def look_for_leader(self) -> bool:
        """Handle what has arrived if this very thread leads, further up: False if it does not.

        It waits in a handler of a signal, which has come while it waited before.
        """
        if not self._is_led() or self._leader_ident != threading.get_ident():
            return False
        if not self._is_at_work:
            self._handle_arrived()
        return True

    def follow(self, thread: Thread, *, pass_on: bool) -> None:
        """Read no longer: another thread does from now on, or the event loop.

        Parameters
        ----------
        thread : Thread
            The one that has read.
        pass_on : bool
            False if no thread may read: the event loop passes on when it has done its part.
        """
        with self._arrivals.lock:
            if self._leader is thread:
                self._leader = None
        self._arrivals.leave()
        if pass_on:
            self._pass_on(thread)

    def may_read(self) -> bool:
        """Tell whether a thread may read, as far as that is known without a lock."""
        return not self._arrivals.is_handling and self._arrivals.may_look()

    def rouse(self) -> None:
        """Have the thread that reads, or is about to, look."""
        self._arrivals.rouse(or_next=True)

    def read(self, thread: Thread, until: float, *, awake: bool = False) -> bool:
        """Handle what arrives until a thread has what it waits for.

        Parameters
        ----------
        thread : Thread
            This one, which leads.
        until : float
            How long to wait, as `time.monotonic` counts.
        awake : bool, default False
            Whether to look out for what comes first before it sleeps.

        Returns
        -------
        bool
            False if the event loop has to handle something first.
        """
        while not thread.is_over:
            if not (self._arrivals.is_still() or self._handle_arrived()):
                return False
            left_s = until - monotonic()
            if thread.is_over or left_s <= 0:
                break
            self._arrivals.wait(left_s, awake=awake)
            awake = False
        return True

    def _handle_arrived(self) -> bool:
        """Handle what has arrived; tells whether this thread may wait for more."""
        try:
            self._is_at_work = True
            return self._handle_what_may_be()
        finally:
            self._is_at_work = False

    def _handle_what_may_be(self) -> bool:
        arrivals = self._arrivals
        with arrivals.lock:
            arrivals.receive()
            if arrivals.is_handling:
                # It looks for more by itself.
                return False
            while (batch := arrivals.first()) is not None:
                if not self._handle(batch):
                    arrivals.call()
                    return False
                arrivals.drop_first()
                arrivals.receive()
            if arrivals.may_look():
                return True
            arrivals.call()
            return False

    def _handle(self, batch: Any) -> bool:
        """Handle the messages of a batch; False if some are left for the event loop."""
        messages = batch if isinstance(batch, (tuple, list)) else (batch,)
        handled = 0
        try:
            for message in messages:
                if not self._handle_one(message):
                    break
                handled += 1
        finally:
            # Also when Ctrl-C comes: nothing is handled twice but what it came in.
            if handled < len(messages):
                self._arrivals.replace_first(tuple(messages[handled:]))
        return handled == len(messages)

    def _handle_one(self, message: Any) -> bool:
        """Handle one message as `distributed.Client._handle_report` does, if a thread may."""
        if type(message) is not dict or "status" in message:
            return False
        operation: Any = message.get("op")
        handler = self._ours.get(operation)
        client = self._client
        if handler is None or client._stream_handlers.get(operation) != handler:
            return False
        state: Any = client.futures.get(message.get("key"))
        if (
            state is not None
            and type(state._event) is not StateEvent
            and type(state._get_event()) is not StateEvent
        ):
            return False
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("Client %s receives message %s", client.id, message)
        arguments = message.copy()
        del arguments["op"]
        try:
            handler(**arguments)
        except Exception as error:
            logger.exception(error)
        return True

    def _is_led(self) -> bool:
        return self._leader is not None and self._leader in self.threads

    def _pass_on(self, thread: Thread | None = None) -> None:
        """Have one of the threads that wait read, if none does."""
        if self._is_led():
            return
        # In one step: without a GIL others come and go while an iterator is at work.
        for other in self.threads.copy():
            if other is not thread and not other.is_over:
                other.nudge()
                return


def reports_of(client: Client) -> ThreadReports | None:
    """Give what threads read of a client's stream; None if they read nothing."""
    reports: ThreadReports | None = vars(client).get(_ATTRIBUTE)
    return reports if reports is not None and reports.is_open() else None


def share_reports(
    client: Client, comm: BackhaulComm, handlers: dict[str, Callable[..., Any]]
) -> None:
    """Have threads of a client read its stream, too; called by the event loop that reads it."""
    attributes = vars(client)
    attributes[_ATTRIBUTE] = ThreadReports(client, comm, comm.share(), handlers)
