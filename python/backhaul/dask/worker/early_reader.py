"""Early reader: an idle thread of a worker reads messages and begins tasks before the event loop.

In Dask each task of a chain needs the event loop of its worker twice: the message wakes the event
loop, the state machine starts the task, a thread of the pool wakes up, and wakes the event loop
again at the end. Here an idle thread waits for the scheduler's messages
(`backhaul.dask.comm.inbox`). The thread runs a plain task that the state machine would start
immediately, and reports its end to the scheduler. The event loop handles the messages later, and
makes the same transitions: at most `BEHIND_S` later, or `LEFT_S` while threads go from task to
task. docs/design/reading-ahead.md has the conditions, and what a program can observe.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

from zict import LRU

from backhaul.dask.comm.inbox import ALL_QUOTA, Listener, Quota, SharedInbox, messages_of
from backhaul.dask.comm.threaded_stream import SharedBatchedSend
from backhaul.dask.compat.installed import is_installed
from backhaul.dask.compat.names import Worker
from backhaul.dask.worker.core.events import is_odd
from backhaul.dask.worker.core.ownership import state_owner_for
from backhaul.dask.worker.early_execution import EarlyExecution, PendingTask
from backhaul.dask.worker.early_messages import BEHIND_S, HELD, EarlyMessages
from backhaul.dask.worker.eligibility import is_ordinary
from backhaul.dask.worker.get_data import catch_up_when_asked
from backhaul.dask.worker.idle_thread import ABSENT, HANDED, IdleThread
from backhaul.dask.worker.lazy_collections import data_of, is_known
from backhaul.dask.worker.local_queue import LocalQueue
from backhaul.dask.worker.protocols import EarlyTasks
from backhaul.dask.worker.stream_sharing import reads_as_ours
from backhaul.dask.worker.thread_events import ThreadEvents
from backhaul.dask.worker.work_queue import WAKE

__all__ = ["EarlyReader", "early_reader_for"]

logger = logging.getLogger(__name__)

#: A busy thread reports ended tasks to the state machine each time that it has run this many
_TOLD_EACH: Final = 16

_MISSING: Final = object()


class EarlyReader(EarlyTasks, Listener):
    """The wait of one worker's idle threads for tasks, from the pool's queue or the scheduler.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    local_queue : LocalQueue
        The local queue of its default pool.
    inbox : SharedInbox
        Inbox of messages of its scheduler.
    """

    def __init__(self, worker: Worker, local_queue: LocalQueue, inbox: SharedInbox) -> None:
        self._worker = worker
        self._local_queue = local_queue
        self._inbox = inbox
        #: Context in which messages of the scheduler are handled; copied for each task
        self._context = local_queue.context
        #: Held by the thread that waits for messages
        self._post = threading.Lock()
        #: Innermost; protects `_idle` and the order of items in the queue
        self._lock = threading.Lock()
        self._idle = IdleThread()
        #: Protected by the lock of the local queue
        self._messages = EarlyMessages()
        self._events = ThreadEvents(worker, local_queue, inbox)
        #: Number of tasks that threads have begun since the last report to the state machine
        self._untold = 0
        self.lock = inbox.lock
        self.waits = self
        self.state_owner = state_owner_for(worker, local_queue, self)
        inbox.listen(self)

    # Called by the queue

    def put(self, put: Callable[[Any], None], item: Any) -> None:
        """Hand an item to the thread that waits for messages, or put it into the queue."""
        with self._lock:
            is_queued, wakes = self._idle.offer(item)
            if is_queued:
                put(item)
        if wakes:
            self._inbox.rouse(or_next=True)

    def get(self, get: Callable[[bool, float | None], Any], timeout_s: float) -> Any:
        """Wait for an item of the queue, or a task that the scheduler sends.

        Raises
        ------
        queue.Empty
            If there is none before the time-out.
        """
        if not self._post.acquire(blocking=False):
            return get(True, timeout_s)
        try:
            with self._lock:
                if not self._local_queue.executor._work_queue.empty():
                    with contextlib.suppress(queue.Empty):
                        return get(False, None)
                self._idle.come()
            item: Any = None
            blind_s = 0.0
            try:
                item, blind_s = self._wait(timeout_s)
            finally:
                item = self._leave(item)
            if item is not None:
                return item
        finally:
            self._post.release()
        if blind_s:
            # Before the check, because the event loop reads the mark after it has taken messages
            with self._lock:
                self._idle.only_items = True
            if not self._inbox.may_look():
                return get(True, blind_s)
        return get(False, None)

    def _leave(self, item: Any) -> Any:
        """End the wait for messages; return the item that this thread runs next."""
        with self._lock:
            item, queued = self._idle.leave(item)
        self._inbox.leave()
        if queued is not None:
            self._local_queue.executor._work_queue.put(queued)
        return item

    def _wait(self, timeout_s: float) -> tuple[EarlyExecution | None, float]:
        """Wait for a task, an item or the time-out.

        Returns the task, and how long the caller waits only for items.
        """
        deadline_s = monotonic() + timeout_s
        inbox, messages = self._inbox, self._messages
        work_queue = self._local_queue.executor._work_queue
        while True:
            if self._idle.state is HANDED or not work_queue.empty():
                return None, 0.0
            found, is_blind = None, False
            if messages.waiting or not inbox.is_still(messages.seen):
                found, is_blind = self._look()
            messages.returns = False
            left_s = deadline_s - monotonic()
            if found is not None or left_s <= 0:
                return found, 0.0
            if is_blind:
                return None, left_s
            # An idle thread reports ended tasks to the state machine.
            if inbox.has_unhandled(_TOLD_EACH):
                self.report()
            inbox.wait(left_s)

    def _look(self) -> tuple[EarlyExecution | None, bool]:
        """Read arrived messages: return a task, and whether this thread can read no more."""
        inbox = self._inbox
        with inbox.lock:
            inbox.receive()
            if inbox.is_handling:
                # The event loop is handling messages, and takes these next.
                return None, not inbox.may_look()
            messages, is_last = self._messages, not inbox.may_look()
            with self._local_queue.lock:
                if not self._read(is_last) and not messages.waiting:
                    return None, is_last
                found = None if messages.is_closed else self._next_or_none()
                if found is not None and messages.waiting:
                    self._share()
                is_closed = messages.is_closed
            # A message for the event loop may have arrived with the task.
            inbox.call(0.0 if is_closed else BEHIND_S)
            return found, is_last

    def _call(self) -> None:
        """Let the event loop handle all messages that threads have read, before they read more."""
        with self._local_queue.lock:
            self._messages.block()
        self._inbox.call()

    def _read(self, is_last: bool) -> bool:
        """Read arrived messages; tell whether there are any; both locks are held."""
        inbox, messages = self._inbox, self._messages
        batches = inbox.unhandled_from(max(0, messages.seen - inbox.taken))
        return messages.read(batches, monotonic(), is_last=is_last)

    def _next_or_none(self) -> EarlyExecution | None:
        """Begin the next task; None if that raises; the lock of the local queue is held."""
        try:
            return self._next()
        except Exception:
            # The event loop gets the same error, and reports it
            logger.debug("A thread cannot make out what has come", exc_info=True)
            self._messages.block()
            return None

    def _next(self) -> EarlyExecution | None:
        """Begin the next task that has arrived; the lock of the local queue is held."""
        messages, local_queue = self._messages, self._local_queue
        message = messages.first()
        if message is None:
            return None
        if local_queue.may_start_early():
            found = self._begin(message)
            if found is not None:
                messages.begin()
                return found
        elif local_queue.is_to_hear():
            # The event loop handles a report soon, so that a thread may be free then.
            messages.hold()
            return None
        messages.block()
        return None

    def begin_next(self) -> EarlyExecution | None:
        """Begin the next task in a thread that has ended one; the local queue's lock is held."""
        executor, inbox, messages = self._local_queue.executor, self._inbox, self._messages
        # Another thread may wait for the place of this one, or the pool may end.
        if messages.is_closed or executor._rejoin_list or executor._shutdown:
            return None
        if not (messages.waiting or inbox.has_more_than(max(messages.seen, inbox.taken))):
            # This thread reads later messages after it has reported the ended task.
            messages.returns = True
            return None
        # Without waiting, because the owner of this lock may wait for the local queue's.
        if not messages.waiting and inbox.lock.acquire(blocking=False):
            try:
                inbox.receive()
                if not inbox.is_handling and self._read(not inbox.may_look()):
                    inbox.call(0.0 if messages.is_closed else BEHIND_S)
            finally:
                inbox.lock.release()
        found = None if messages.is_closed else self._next_or_none()
        if messages.is_closed:
            inbox.call()
        messages.returns = found is None
        return found

    def go_on(self) -> None:
        """Report ended tasks to the state machine now and then; called by a thread."""
        # Two threads may lose a count, which does not matter.
        self._untold += 1
        if self._untold >= _TOLD_EACH:
            self._untold = 0
            self.report()

    def report(self) -> None:
        """Report ended tasks to the state machine, if a thread may do that now."""
        if self._events.handle():
            # The event loop adds the metrics later
            self._inbox.call(BEHIND_S)

    def _share(self) -> None:
        """Give arrived tasks to idle threads; the lock of the local queue is held."""
        executor = self._local_queue.executor
        while (
            self._messages.waiting
            and self._local_queue.may_start_early()
            and not executor._shutdown
        ):
            found = self._next_or_none()
            if found is None:
                return
            queue.SimpleQueue.put(executor._work_queue, found)
            # If no thread can be started, existing threads run the task. The owner of this lock may
            # read the state.
            if executor._shutdown_lock.acquire(blocking=False):
                try:
                    with contextlib.suppress(RuntimeError):
                        executor._adjust_thread_count()
                finally:
                    executor._shutdown_lock.release()

    def _begin(self, message: dict[str, Any]) -> EarlyExecution | None:
        """Make the item of a task that the state machine would start immediately; None if not.

        The lock of the local queue is held, and a thread is free.
        """
        local_queue, worker = self._local_queue, self._worker
        key = message["key"]
        if (
            key in local_queue.early_tasks
            or is_known(worker.state, key)
            or message["actor"]
            or message["resource_restrictions"]
            or is_odd(message)
        ):
            return None
        announced = PendingTask(message)
        if not is_ordinary(worker, announced):
            return None
        data = self._data_of(message["who_has"])
        if data is None:
            return None
        found = EarlyExecution(worker, announced, local_queue, self._call)
        context = self._context.copy()
        context.run(found.take_given, data, context)
        found.claim()
        local_queue.add_early(key, found)
        return found

    def _data_of(self, who_has: Mapping[Any, Any]) -> dict[Any, Any] | None:
        """Look up the inputs of a task; None if one may not be in memory."""
        found: dict[Any, Any] = {}
        data = data_of(self._worker)
        # Only the event loop reads results from disk.
        memory: Any = data if type(data) is dict else getattr(data, "fast", None)
        if memory is None:
            return None
        if type(memory) is LRU:
            # Not through the LRU, because the read for the task is counted later.
            memory = memory.d
        for key in who_has:
            if self._messages.is_freed(key):
                return None
            early_tasks = self._local_queue.early_tasks.get(key)
            if early_tasks is not None:
                result = early_tasks.value()
                if not result:
                    return None
                found[key] = result[0]
                continue
            value = memory.get(key, _MISSING)
            if value is _MISSING:
                return None
            found[key] = value
        return found

    def validate(self) -> None:
        """Check the invariants; the local queue's lock is held."""
        self._messages.validate()
        with self._lock:
            self._idle.validate()

    def fail(self, error: Exception) -> None:
        """End the stream with an error of a report."""
        self._inbox.fail(error)

    def on_close(self) -> None:
        """Wake tasks that wait for the event loop: nothing more arrives."""
        self._local_queue.close()

    # Called by the event loop

    def on_reported(self) -> None:
        """Wake a thread if a task has waited for the handling of reports."""
        # Without the lock: a thread that holds the task back later finds no report to wait for.
        if self._messages.access is HELD:
            with self._local_queue.lock:
                wakes = self._messages.on_reported()
            if wakes:
                self._inbox.rouse(or_next=True)

    def may_take(self) -> Quota:
        """Return which batches the event loop may take; the lock of the inbox is held."""
        inbox, local_queue, messages = self._inbox, self._local_queue, self._messages
        with local_queue.lock:
            is_waited_for = self._idle.state is not ABSENT
            if (
                not (local_queue.runs_early_task() or messages.returns or is_waited_for)
                or not inbox.may_look()
            ):
                return ALL_QUOTA
            quota = messages.quota(
                inbox.unhandled,
                local_queue.early_tasks,
                monotonic(),
                is_waited_for=is_waited_for,
                reports_here=self._events.are_handled_here,
            )
        if quota.wakes:
            inbox.rouse(or_next=True)
        return quota

    def on_take(self, taken: int) -> None:
        """Drop the batches that the event loop takes; `taken` is the number of all taken ones."""
        with self._local_queue.lock:
            self._messages.on_taken(taken)
        if self._idle.only_items and self._inbox.may_look():
            with self._lock:
                wakes = self._idle.may_read_again()
            if wakes:
                queue.SimpleQueue.put(self._local_queue.executor._work_queue, WAKE)

    def catch_up(self) -> bool:
        """Handle the messages of early tasks; False if the event loop is doing that already."""
        inbox = self._inbox
        while True:
            with inbox.lock:
                if inbox.is_handling:
                    return False
                if not self._requests_early_task(inbox.unhandled):
                    # If threads have reported these, they may begin others from here on.
                    return self._are_announced()
                # Messages that threads handle have no coroutine as a handler.
                batch = inbox.first()
                inbox.drop_first()
                inbox.is_handling = True
            try:
                inbox.handle(batch)
            finally:
                inbox.is_handling = False
            if self._are_announced():
                return True

    def _are_announced(self) -> bool:
        """Tell whether the state machine has the messages of all early tasks."""
        return all(item.is_announced for item in tuple(self._local_queue.early_tasks.values()))

    def _requests_early_task(self, batches: list[Any]) -> bool:
        early_tasks = self._local_queue.early_tasks
        return any(
            message.get("op") == "compute-task"
            and (item := early_tasks.get(message["key"])) is not None
            and not item.is_announced
            for batch in batches
            for message in messages_of(batch)
        )

    def on_rest(self) -> None:
        """Release early tasks that the state machine has forgotten, because they were cancelled."""
        self._events.publish()
        early_tasks = self._local_queue.early_tasks
        if not early_tasks or not self._inbox.is_handling:
            return
        with self._inbox.lock, self._local_queue.lock:
            waiting = {
                message["key"]
                for batch in self._inbox.unhandled
                for message in messages_of(batch)
                if message.get("op") == "compute-task"
            }
            state = self._worker.state
            for key, item in list(early_tasks.items()):
                if key not in waiting and not is_known(state, key):
                    self._local_queue.forget(key)
                    item.disown()


def early_reader_for(worker: Worker, local_queue: LocalQueue) -> EarlyReader | None:
    """Make the early reader of a worker; None if its threads cannot read the stream."""
    stream = worker.batched_stream
    comm = getattr(stream, "comm", None)
    if type(stream) is not SharedBatchedSend or not reads_as_ours(comm):
        return None
    assert comm is not None
    inbox = comm.inbox
    if inbox is None or not is_installed("worker.early_execution.catching_up_variable"):
        return None
    return (
        EarlyReader(worker, local_queue, inbox)
        if catch_up_when_asked(worker, local_queue)
        else None
    )
