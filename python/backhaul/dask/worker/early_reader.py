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
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

from zict import LRU

from backhaul.dask.comm.inbox import Arrivals, Listener, messages_of
from backhaul.dask.comm.threaded_stream import SharedBatchedSend
from backhaul.dask.compat.installed import is_installed
from backhaul.dask.compat.names import Worker
from backhaul.dask.worker.core.events import is_odd
from backhaul.dask.worker.core.ownership import keeper_for
from backhaul.dask.worker.early_execution import Announced, Foretold
from backhaul.dask.worker.eligibility import is_ordinary
from backhaul.dask.worker.get_data import catch_up_when_asked
from backhaul.dask.worker.lazy_collections import data_of, is_known
from backhaul.dask.worker.local_queue import Line
from backhaul.dask.worker.protocols import EarlyTasks
from backhaul.dask.worker.stream_sharing import reads_as_ours
from backhaul.dask.worker.thread_events import ThreadEvents
from backhaul.dask.worker.work_queue import WAKE

__all__ = ["WorkAhead", "work_ahead_for"]

logger = logging.getLogger(__name__)

#: Longest delay of the event loop behind the threads, in seconds
BEHIND_S: Final = 0.010

#: Longest time that tasks wait for threads that run other early tasks, in seconds
LEFT_S: Final = 0.050

#: A busy thread reports ended tasks to the state machine each time that it has run this many
_TOLD_EACH: Final = 16

#: Messages that threads may act on
_FOR_THREADS: Final = frozenset({"compute-task", "free-keys"})

#: Most freed keys that are kept, besides those whose messages the event loop has not handled
_FREED_MAX: Final = 256

_MISSING: Final = object()


class WorkAhead(EarlyTasks, Listener):
    """The wait of one worker's idle threads for tasks, from the pool's queue or the scheduler.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    line : Line
        The local queue of its default pool.
    arrivals : Arrivals
        Inbox of messages of its scheduler.
    """

    def __init__(self, worker: Worker, line: Line, arrivals: Arrivals) -> None:
        self._worker = worker
        self._line = line
        self._arrivals = arrivals
        #: Context in which messages of the scheduler are handled; copied for each task
        self._context = line.context
        #: Held by the thread that waits for messages
        self._post = threading.Lock()
        #: Protects the two attributes below and the order of items in the queue
        self._lock = threading.Lock()
        self._is_waiting = False
        self._handed: Any = None
        #: Number of batches that threads have read, and number up to the last batch that the event
        #: loop has to handle first; both count from the first batch of the connection
        self._seen = 0
        self._blocked_to = 0
        #: Arrival time of each batch that threads have read and the event loop has not taken
        self._came: deque[tuple[int, float]] = deque()
        #: Messages for threads that no thread has handled, with the numbers of their batches
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque()
        #: Freed keys of messages that the event loop may not have taken, with the batch numbers
        self._freed: dict[Any, int] = {}
        #: Arrival time of a message that no thread has read; 0 if there is none
        self._unseen_s = 0.0
        #: Whether a thread waits only for items, until threads may look at messages again
        self._is_blind = False
        #: Last time at which the event loop took a part of a batch
        self._parted_s = 0.0
        #: Whether a task waits until the event loop has handled reports
        self._holds = False
        #: Whether a thread has no task left, and reads messages next
        self._returns = False
        self._events = ThreadEvents(worker, line, arrivals)
        #: Number of tasks that threads have begun since the last report to the state machine
        self._untold = 0
        self.lock = arrivals.lock
        self.waits = self
        self.keeper = keeper_for(worker, line, self)
        arrivals.listen(self)

    # Called by the queue

    def put(self, put: Callable[[Any], None], item: Any) -> None:
        """Hand an item to the thread that waits for messages, or put it into the queue."""
        with self._lock:
            if not self._is_waiting:
                put(item)
                return
            if self._handed is None:
                self._handed = item
            # With None, or with a second item, the thread has to read the queue.
            if self._handed is not item or item is None:
                put(item)
        self._arrivals.rouse(or_next=True)

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
                if not self._line.executor._work_queue.empty():
                    with contextlib.suppress(queue.Empty):
                        return get(False, None)
                self._is_waiting = True
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
            self._is_blind = True
            if not self._arrivals.may_look():
                return get(True, blind_s)
        return get(False, None)

    def _leave(self, item: Any) -> Any:
        """End the wait for messages; return the item that this thread runs next."""
        with self._lock:
            self._is_waiting = False
            handed, self._handed = self._handed, None
        self._arrivals.leave()
        if item is None:
            return handed
        if handed is not None:
            # The item arrived while this thread found a task: another thread runs it.
            self._line.executor._work_queue.put(handed)
        return item

    def _wait(self, timeout_s: float) -> tuple[Foretold | None, float]:
        """Wait for a task, an item or the time-out.

        Returns the task, and how long the caller waits only for items.
        """
        deadline_s = monotonic() + timeout_s
        arrivals = self._arrivals
        work_queue = self._line.executor._work_queue
        while True:
            if self._handed is not None or not work_queue.empty():
                return None, 0.0
            found, is_blind = None, False
            if self._waiting or not arrivals.is_still(self._seen):
                found, is_blind = self._look()
            self._returns = False
            left_s = deadline_s - monotonic()
            if found is not None or left_s <= 0:
                return found, 0.0
            if is_blind:
                return None, left_s
            # An idle thread reports ended tasks to the state machine.
            if arrivals.has_unhandled(_TOLD_EACH):
                self.report()
            arrivals.wait(left_s)

    def _look(self) -> tuple[Foretold | None, bool]:
        """Read arrived messages: return a task, and whether this thread can read no more."""
        arrivals = self._arrivals
        with arrivals.lock:
            arrivals.receive()
            if arrivals.is_handling:
                # The event loop is handling messages, and takes these next.
                return None, not arrivals.may_look()
            has_news = self._take_in()
            if not has_news and not self._waiting:
                return None, not arrivals.may_look()
            with self._line.lock:
                found = None if self._is_blocked() else self._next_or_none()
                if found is not None and self._waiting:
                    self._share()
            # A message for the event loop may have arrived with the task.
            arrivals.call(0.0 if self._is_blocked() else BEHIND_S)
            return found, not arrivals.may_look()

    def _call(self) -> None:
        """Let the event loop handle all messages that threads have read, before they read more."""
        self._blocked_to = max(self._blocked_to, self._seen)
        self._arrivals.call()

    def _is_blocked(self) -> bool:
        return self._blocked_to > self._arrivals.taken

    def _take_in(self) -> bool:
        """Read arrived messages, and keep those that threads may handle.

        Notes whether the event loop has to handle one first. The lock of the inbox is held.
        """
        arrivals = self._arrivals
        number = max(self._seen, arrivals.taken)
        batches = arrivals.unhandled_from(number - arrivals.taken)
        if self._is_blocked():
            # Not read now: the event loop may leave these to threads when it has taken the others.
            return bool(batches)
        self._seen = number + len(batches)
        if not arrivals.may_look():
            self._blocked_to = self._seen
        if not batches or self._is_blocked():
            return bool(batches)
        now_s = monotonic()
        self._unseen_s = 0.0
        news = []
        for batch in batches:
            for message in batch if isinstance(batch, (list, tuple)) else (batch,):
                if type(message) is not dict or message.get("op") not in _FOR_THREADS:
                    self._blocked_to = self._seen
                    return True
                news.append((number, message))
            self._came.append((number, now_s))
            number += 1
        # Threads take messages from the other end.
        self._waiting.extend(news)
        return True

    def _next_or_none(self) -> Foretold | None:
        """Begin the next task; None if that raises; the lock of the local queue is held."""
        try:
            return self._next()
        except Exception:
            # The event loop gets the same error, and reports it
            logger.debug("A thread cannot make out what has come", exc_info=True)
            self._blocked_to = self._seen
            return None

    def _next(self) -> Foretold | None:
        """Begin the next task that has arrived; the lock of the local queue is held."""
        waiting, line = self._waiting, self._line
        while waiting:
            number, message = waiting[0]
            if message["op"] == "free-keys":
                self._freed.update(dict.fromkeys(message["keys"], number))
                waiting.popleft()
                continue
            if not line.may_foretell():
                # Set before the check, because the event loop reads it after it handled reports
                self._holds = True
                if line.is_to_hear():
                    # The event loop handles a report soon, so that a thread may be free then.
                    return None
                self._holds = False
            found = self._begin(message)
            if found is None:
                self._blocked_to = self._seen
                return None
            waiting.popleft()
            return found
        return None

    def begin_next(self) -> Foretold | None:
        """Begin the next task in a thread that has ended one; the local queue's lock is held."""
        executor, arrivals = self._line.executor, self._arrivals
        # Another thread may wait for the place of this one, or the pool may end.
        if self._is_blocked() or executor._rejoin_list or executor._shutdown:
            return None
        if not (self._waiting or arrivals.has_more_than(max(self._seen, arrivals.taken))):
            # This thread reads later messages after it has reported the ended task.
            self._returns = True
            return None
        # Without waiting, because the owner of this lock may wait for the local queue's.
        if not self._waiting and arrivals.lock.acquire(blocking=False):
            try:
                arrivals.receive()
                if not arrivals.is_handling and self._take_in():
                    arrivals.call(0.0 if self._is_blocked() else BEHIND_S)
            finally:
                arrivals.lock.release()
        found = None if self._is_blocked() else self._next_or_none()
        if self._is_blocked():
            arrivals.call()
        self._returns = found is None
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
            self._arrivals.call(BEHIND_S)

    def _share(self) -> None:
        """Give arrived tasks to idle threads; the lock of the local queue is held."""
        executor = self._line.executor
        while self._waiting and self._line.may_foretell() and not executor._shutdown:
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

    def _begin(self, message: dict[str, Any]) -> Foretold | None:
        """Make the item of a task that the state machine would start immediately; None if not."""
        line, worker = self._line, self._worker
        key = message["key"]
        with line.lock:
            if (
                not line.may_foretell()
                or key in line.foretold
                or is_known(worker.state, key)
                or message["actor"]
                or message["resource_restrictions"]
                or is_odd(message)
            ):
                return None
            announced = Announced(message)
            if not is_ordinary(worker, announced):
                return None
            data = self._data_of(message["who_has"])
            if data is None:
                return None
            found = Foretold(worker, announced, line, self._call)
            context = self._context.copy()
            context.run(found.take_given, data, context)
            found.claim()
            line.foretell(key, found)
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
            if key in self._freed:
                return None
            foretold = self._line.foretold.get(key)
            if foretold is not None:
                result = foretold.value()
                if not result:
                    return None
                found[key] = result[0]
                continue
            value = memory.get(key, _MISSING)
            if value is _MISSING:
                return None
            found[key] = value
        return found

    def fail(self, error: Exception) -> None:
        """End the stream with an error of a report."""
        self._arrivals.fail(error)

    def on_close(self) -> None:
        """Wake tasks that wait for the event loop: nothing more arrives."""
        self._line.close()

    # Called by the event loop

    def on_reported(self) -> None:
        """Wake a thread if a task has waited for the handling of reports."""
        if self._holds:
            self._holds = False
            self._arrivals.rouse(or_next=True)

    def may_take(self) -> tuple[int | None, int, float]:
        """Return how many batches the event loop may take, or how many messages of the first one.

        None means all batches. The last item is the time until the next call, in seconds, if the
        event loop may take nothing. The lock of the inbox is held.

        While threads go from task to task, the event loop takes the batches whose tasks have ended.
        When the next batch is `BEHIND_S` old, the event loop takes its ended tasks, and leaves the
        others to the threads until `LEFT_S`. The event loop takes all batches if no task has ended
        since it last took a part.
        """
        arrivals, line = self._arrivals, self._line
        with line.lock:
            if (
                not (line.foretold_runs() or self._returns or self._is_waiting)
                or self._is_blocked()
                or not arrivals.may_look()
            ):
                return None, 0, 0.0
            unseen = arrivals.unhandled_from(max(0, self._seen - arrivals.taken))
            if not all(map(_is_for_threads, unseen)):
                return None, 0, 0.0
            came = self._came
            while came and came[0][0] < arrivals.taken:
                came.popleft()
            if came and self._events.are_handled_here():
                # A thread will report the task to the state machine, together with others.
                left_s = came[0][1] + BEHIND_S - monotonic()
                if left_s > 0:
                    return 0, 0, left_s
            count = ended = 0
            foretold = line.foretold
            for batch in arrivals.unhandled:
                ended = 0
                for message in messages_of(batch):
                    if message.get("op") != "free-keys":
                        item = foretold.get(message.get("key"))
                        if item is None or not item.is_over():
                            break
                    ended += 1
                else:
                    count += 1
                    continue
                break
            now_s = monotonic()
            first = arrivals.taken + count
            while came and came[0][0] < first:
                came.popleft()
            if count == len(arrivals.unhandled):
                return None, 0, 0.0
            if not came:
                # No thread has read the batch, and a thread that is about to wait might miss it.
                self._unseen_s = self._unseen_s or now_s
                if self._is_waiting:
                    arrivals.rouse(or_next=True)
            came_s = came[0][1] if came else self._unseen_s
            left_s = max(came_s, self._parted_s) + BEHIND_S - now_s
            if not came and self._is_waiting:
                # The woken thread begins these tasks sooner than the event loop could.
                left_s += LEFT_S - BEHIND_S
            if left_s <= 0 and not count:
                if ended and came and now_s - came_s < LEFT_S:
                    self._parted_s = now_s
                    return 0, ended, 0.0
                self._returns = False
                return None, 0, 0.0
            if self._waiting and self._is_waiting:
                # The thread may have tried to read while the event loop was at work.
                arrivals.rouse(or_next=True)
        # At most `BEHIND_S`, for batches that a thread reads meanwhile.
        return count, 0, min(left_s, BEHIND_S)

    def on_take(self, taken: int) -> None:
        """Drop the batches that the event loop takes; `taken` is the number of all taken ones."""
        self._unseen_s = 0.0
        if self._is_blind and self._arrivals.may_look():
            self._is_blind = False
            queue.SimpleQueue.put(self._line.executor._work_queue, WAKE)
        with self._line.lock:
            waiting, came = self._waiting, self._came
            if waiting and waiting[0][0] < taken:
                # The event loop took a task that no thread has begun; that comes before all others.
                waiting.clear()
                came.clear()
                self._seen = taken
            while came and came[0][0] < taken:
                came.popleft()
            if self._freed and (self._seen <= taken or len(self._freed) > _FREED_MAX):
                self._freed = {key: at for key, at in self._freed.items() if at >= taken}

    def catch_up(self) -> bool:
        """Handle the messages of early tasks; False if the event loop is doing that already."""
        arrivals = self._arrivals
        while True:
            with arrivals.lock:
                if arrivals.is_handling:
                    return False
                if not self._announces_foretold(arrivals.unhandled):
                    # If threads have reported these, they may begin others from here on.
                    return self._are_heard()
                # Messages that threads handle have no coroutine as a handler.
                batch = arrivals.first()
                arrivals.drop_first()
                arrivals.is_handling = True
            try:
                arrivals.handle(batch)
            finally:
                arrivals.is_handling = False
            if self._are_heard():
                return True

    def _are_heard(self) -> bool:
        """Tell whether the state machine has the messages of all early tasks."""
        return all(item.is_heard for item in tuple(self._line.foretold.values()))

    def _announces_foretold(self, batches: list[Any]) -> bool:
        foretold = self._line.foretold
        return any(
            message.get("op") == "compute-task"
            and (item := foretold.get(message["key"])) is not None
            and not item.is_heard
            for batch in batches
            for message in messages_of(batch)
        )

    def on_rest(self) -> None:
        """Release early tasks that the state machine has forgotten, because they were cancelled."""
        self._events.publish()
        foretold = self._line.foretold
        if not foretold or not self._arrivals.is_handling:
            return
        with self._arrivals.lock, self._line.lock:
            waiting = {
                message["key"]
                for batch in self._arrivals.unhandled
                for message in messages_of(batch)
                if message.get("op") == "compute-task"
            }
            state = self._worker.state
            for key, item in list(foretold.items()):
                if key not in waiting and not is_known(state, key):
                    self._line.forget(key)
                    item.disown()


def _is_for_threads(batch: Any) -> bool:
    return all(message.get("op") in _FOR_THREADS for message in messages_of(batch))


def work_ahead_for(worker: Worker, line: Line) -> WorkAhead | None:
    """Make the early reader of a worker; None if its threads cannot read the stream."""
    stream = worker.batched_stream
    comm = getattr(stream, "comm", None)
    if type(stream) is not SharedBatchedSend or not reads_as_ours(comm):
        return None
    assert comm is not None
    arrivals = comm.arrivals
    if arrivals is None or not is_installed("worker.early_execution.catching_up_variable"):
        return None
    return WorkAhead(worker, line, arrivals) if catch_up_when_asked(worker, line) else None
