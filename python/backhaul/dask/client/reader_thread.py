"""Leader-follower reading of a client's stream by the threads that wait for results.

While a thread waits for a result, it reads the stream in the place of the client's event loop. It
handles two kinds of messages, in order, for all waiting threads: inline results
(`backhaul.dask.client.result_cache`) and ``key-in-memory``. The thread calls the same handlers as
the event loop. It leaves any other message, and all later ones, to the event loop, until the event
loop has handled them; so each message is handled once, and in order.

One thread, the leader, reads, and wakes the other waiting threads. When its wait ends, another
waiting thread becomes the leader; when no thread waits, the event loop reads.
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
from backhaul.dask.comm.inbox import Listener, SharedInbox
from backhaul.dask.compat.names import Client

__all__ = ["Thread", "ThreadReports", "reports_of", "share_reports"]

#: Dask's own log, for what Dask logs there
logger = logging.getLogger("distributed.client")

_ATTRIBUTE = "_backhaul_thread_reports"


class Thread(Protocol):
    """A thread that waits."""

    #: Whether the wait of the thread has ended
    is_over: bool

    def nudge(self) -> None:
        """Wake the thread, so that it checks whether its wait has ended."""


class ThreadReports(Listener):
    """The messages of one client's stream, read by one waiting thread at a time.

    The handlers, by operation, are those that a thread may call: they and the functions that they
    call are thread-safe.

    Attributes
    ----------
    threads : deque of Thread
        All waiting threads, with the leader.
    """

    def __init__(
        self,
        client: Client,
        comm: BackhaulComm,
        inbox: SharedInbox,
        handlers: dict[str, Callable[..., Any]],
    ) -> None:
        self._client = client
        self._comm = comm
        self._inbox = inbox
        self._ours = handlers
        self.threads: deque[Thread] = deque()
        #: The thread that reads. It leads only while it is in `threads`, because Ctrl-C may end its
        #: wait between any two steps.
        self._leader: Thread | None = None
        self._leader_ident = 0
        #: Whether the leader handles messages at the moment
        self._is_at_work = False
        self._pid = os.getpid()
        inbox.listen(self)

    def on_wait(self) -> None:
        """Wake a waiting thread to lead: the event loop is about to wait."""
        self._pass_on()

    def is_open(self) -> bool:
        """Tell whether messages may still arrive in this process."""
        return self._pid == os.getpid() and not self._comm.closed()

    def become_reader(self, thread: Thread) -> bool:
        """Make a waiting thread the leader, if there is none; tell whether it is."""
        with self._inbox.lock:
            if self._is_led():
                return False
            self._leader = thread
            self._leader_ident = threading.get_ident()
            return True

    def look_for_leader(self) -> bool:
        """Handle arrived messages if an outer frame of this thread leads; False if none does.

        That is so if a signal interrupted the thread's read, and the handler of the signal waits.
        """
        if not self._is_led() or self._leader_ident != threading.get_ident():
            return False
        if not self._is_at_work:
            self._handle_arrived()
        return True

    def stop_reading(self, thread: Thread, *, pass_on: bool) -> None:
        """End the lead of a thread: another thread, or the event loop, reads from now on.

        `pass_on` says whether to wake another thread to lead: not if the event loop has to handle
        messages first; it wakes a thread after that.
        """
        with self._inbox.lock:
            if self._leader is thread:
                self._leader = None
        self._inbox.leave()
        if pass_on:
            self._pass_on(thread)

    def may_read(self) -> bool:
        """Tell whether a thread may read, as far as that is known without a lock."""
        return not self._inbox.is_handling and self._inbox.may_look()

    def rouse(self) -> None:
        """Wake the thread that reads, or is about to read."""
        self._inbox.rouse(or_next=True)

    def read(self, thread: Thread, until: float, *, awake: bool = False) -> bool:
        """Handle messages until the wait of this thread, which leads, ends.

        `until` is on the clock of `time.monotonic`. With `awake` the thread polls for the first
        message before it sleeps. Returns False if the event loop has to handle a message first.
        """
        while not thread.is_over:
            if not (self._inbox.is_still() or self._handle_arrived()):
                return False
            left_s = until - monotonic()
            if thread.is_over or left_s <= 0:
                break
            self._inbox.wait(left_s, awake=awake)
            awake = False
        return True

    def _handle_arrived(self) -> bool:
        """Handle arrived messages; tell whether this thread may wait for more."""
        try:
            self._is_at_work = True
            return self._handle_what_may_be()
        finally:
            self._is_at_work = False

    def _handle_what_may_be(self) -> bool:
        inbox = self._inbox
        with inbox.lock:
            inbox.receive()
            if inbox.is_handling:
                # The event loop is at work, and receives more messages when it is done.
                return False
            while (batch := inbox.first()) is not None:
                if not self._handle(batch):
                    inbox.call()
                    return False
                inbox.drop_first()
                inbox.receive()
            if inbox.may_look():
                return True
            inbox.call()
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
            # Also after Ctrl-C, so that at most the interrupted message is handled twice.
            if handled < len(messages):
                self._inbox.replace_first(tuple(messages[handled:]))
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
        """Wake one of the waiting threads to lead, if none leads."""
        if self._is_led():
            return
        # A copy, because without a GIL other threads change the deque during an iteration.
        for other in self.threads.copy():
            if other is not thread and not other.is_over:
                other.nudge()
                return


def reports_of(client: Client) -> ThreadReports | None:
    """Return the reader of a client's stream for threads; None if threads may not read it."""
    reports: ThreadReports | None = vars(client).get(_ATTRIBUTE)
    return reports if reports is not None and reports.is_open() else None


def share_reports(
    client: Client, comm: BackhaulComm, handlers: dict[str, Callable[..., Any]]
) -> None:
    """Let waiting threads read the stream of a client; called by the event loop that reads it."""
    attributes = vars(client)
    attributes[_ATTRIBUTE] = ThreadReports(client, comm, comm.share(), handlers)
