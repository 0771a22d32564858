"""Threads of a worker that begin with the next task before the event loop hears of it.

A chain of tasks passes the event loop of its worker twice for each: the message that there is a
task wakes it, its state machine names the task, a thread of the pool is woken, and wakes the event
loop again when the task has ended. Here an idle thread waits for the scheduler's messages itself
(`backhaul.dask.comm.inbox`). A plain task that the state machine would begin at once it runs, and
tells the scheduler of its end; the event loop hears of all of it `BEHIND_S` later at the latest,
and takes the state machine through the same steps. docs/design/reading-ahead.md says when, and why
nobody sees a difference.
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

from backhaul.dask.comm.comm import BackhaulComm
from backhaul.dask.comm.inbox import Arrivals, messages_of
from backhaul.dask.comm.threaded_stream import SharedBatchedSend
from backhaul.dask.compat.installed import is_installed
from backhaul.dask.compat.names import Worker
from backhaul.dask.config.settings import switched_on
from backhaul.dask.worker.core.events import is_odd
from backhaul.dask.worker.core.ownership import keeper_for
from backhaul.dask.worker.early_execution import Announced, Foretold
from backhaul.dask.worker.eligibility import is_ordinary
from backhaul.dask.worker.get_data import catch_up_when_asked
from backhaul.dask.worker.lazy_collections import data_of, is_known
from backhaul.dask.worker.local_queue import Line
from backhaul.dask.worker.thread_events import ThreadEvents

__all__ = ["WorkAhead", "share_arrivals", "work_ahead_for"]

logger = logging.getLogger(__name__)

#: How long the event loop may be behind
BEHIND_S: Final = 0.010

#: How long it may leave tasks that no thread has begun with to threads that get on with others
LEFT_S: Final = 0.050

#: How long a thread leaves messages alone that are for the event loop
_REST_S: Final = 0.02

#: How long what only gives something up waits for a message to ride with, as in
#: `backhaul.dask.comm.batched_stream`
_RIDE_S: Final = 0.002

#: After how many tasks a thread that has more of them tells of those that have ended
_TOLD_EACH: Final = 16

#: Messages that threads may act on
_FOR_THREADS: Final = frozenset({"compute-task", "free-keys"})

#: Freed keys that are kept at most, but for those that the event loop has not heard of
_FREED_MAX: Final = 256

_MISSING: Final = object()


class WorkAhead:
    """What idle threads of one worker do: they wait for tasks, from the queue or the scheduler.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    line : Line
        Of its default pool.
    arrivals : Arrivals
        Messages of its scheduler.
    """

    def __init__(self, worker: Worker, line: Line, arrivals: Arrivals) -> None:
        self._worker = worker
        self._line = line
        self._arrivals = arrivals
        #: Copied for each task: what a message of the scheduler is handled in
        self._context = line.context
        #: Held by the thread that waits for messages
        self._post = threading.Lock()
        #: Of the two below, and of what is put into the queue
        self._lock = threading.Lock()
        self._is_waiting = False
        self._handed: Any = None
        #: Batches that were looked at, and those up to the last that the event loop has to handle
        #: first, counted from the first that ever came
        self._seen = 0
        self._blocked_to = 0
        #: When each of those came that the event loop has not taken, as far as they were looked at
        self._came: deque[tuple[int, float]] = deque()
        #: Messages that a thread may act on, and has not, with the numbers of their batches
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque()
        #: What messages free that the event loop may not have taken, with their numbers
        self._freed: dict[Any, int] = {}
        arrivals.on_rest = self._on_rest
        arrivals.on_take = self._on_take
        arrivals.may_take = self._may_take
        #: When a message came that no thread has looked at; 0 if there was none
        self._unseen_s = 0.0
        #: When the event loop last took a part of a message, and left the rest
        self._parted_s = 0.0
        #: Whether a task waits for the event loop to hear of what has ended
        self._holds = False
        #: Whether a thread has no task left, and is about to look for more
        self._returns = False
        line.catch_up = self._catch_up
        line.on_heard = self._on_heard
        line.next_ahead = self._next_ahead
        line.between = self._between
        line.telling, line.fail = arrivals.lock, arrivals.fail
        self._events = ThreadEvents(worker, line, arrivals)
        #: Tasks that threads have gone on to since one has told of what has ended
        self._untold = 0
        line.keeper = keeper_for(worker, line)
        if line.keeper is not None:
            line.keeper.hear = self._tell

    # Called by the queue

    def put(self, put: Callable[[Any], None], item: Any) -> None:
        """Hand an item to the thread that waits for messages, or put it into the queue."""
        with self._lock:
            if not self._is_waiting:
                put(item)
                return
            if self._handed is None:
                self._handed = item
            # Without an item, or with a second one, the queue is to be looked at.
            if self._handed is not item or item is None:
                put(item)
        self._arrivals.rouse(or_next=True)

    def get(self, get: Callable[[bool, float | None], Any], timeout_s: float) -> Any:
        """Wait for an item of the queue, or a task that the scheduler sends.

        Raises
        ------
        queue.Empty
            If there is none in that time.
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
            rest_s = 0.0
            try:
                item, rest_s = self._wait(timeout_s)
            finally:
                item = self._leave(item)
            if item is not None:
                return item
        finally:
            self._post.release()
        return get(True, rest_s) if rest_s else get(False, None)

    def _leave(self, item: Any) -> Any:
        """Wait for messages no longer; gives what this thread is to run."""
        with self._lock:
            self._is_waiting = False
            handed, self._handed = self._handed, None
        self._arrivals.leave()
        if item is None:
            return handed
        if handed is not None:
            # It came while this thread found something else: to whoever is next.
            self._line.executor._work_queue.put(handed)
        return item

    def _wait(self, timeout_s: float) -> tuple[Foretold | None, float]:
        """Wait for a task, an item or the end of the time.

        Gives the task, and for how long to wait for items alone.
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
                return None, min(left_s, _REST_S)
            # What has ended is told to the state machine while there is nothing else to do.
            if arrivals.has_unhandled(_TOLD_EACH):
                self._tell()
            if not self._events.has_riders:
                arrivals.wait(left_s)
            elif not arrivals.wait(min(left_s, _RIDE_S)):
                self._events.flush()

    def _look(self) -> tuple[Foretold | None, bool]:
        """Look at what has arrived: a task to run, and whether this thread can see no more."""
        arrivals = self._arrivals
        with arrivals.lock:
            arrivals.receive()
            if arrivals.is_handling:
                # The event loop takes what there is by itself, when it has handled the rest.
                return None, not arrivals.may_look()
            has_news = self._take_in()
            if not has_news and not self._waiting:
                return None, not arrivals.may_look()
            with self._line.lock:
                found = None if self._is_blocked() else self._next_or_none()
                if found is not None and self._waiting:
                    self._share()
            # What is to be handled now may have come with the task.
            arrivals.call(0.0 if self._is_blocked() else BEHIND_S)
            return found, not arrivals.may_look()

    def _call(self) -> None:
        """Have the event loop handle all that threads have seen, now, before they go on."""
        self._blocked_to = max(self._blocked_to, self._seen)
        self._arrivals.call()

    def _is_blocked(self) -> bool:
        return self._blocked_to > self._arrivals.taken

    def _take_in(self) -> bool:
        """Look at messages that have come, and keep those that threads may act on.

        Notes whether any is for the event loop to handle first. The arrivals' lock is held.
        """
        arrivals = self._arrivals
        number = max(self._seen, arrivals.taken)
        batches = arrivals.unhandled_from(number - arrivals.taken)
        if self._is_blocked():
            # Not looked at: the event loop may leave them to threads when it has taken the others.
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
        # Threads take from its other end.
        self._waiting.extend(news)
        return True

    def _next_or_none(self) -> Foretold | None:
        """Begin with the next task, unless something is odd about it; the line's lock is held."""
        try:
            return self._next()
        except Exception:
            # The event loop's to say
            logger.debug("A thread cannot make out what has come", exc_info=True)
            self._blocked_to = self._seen
            return None

    def _next(self) -> Foretold | None:
        """Begin with the next task that has come; the line's lock is held."""
        waiting, line = self._waiting, self._line
        while waiting:
            number, message = waiting[0]
            if message["op"] == "free-keys":
                self._freed.update(dict.fromkeys(message["keys"], number))
                waiting.popleft()
                continue
            if not line.may_foretell():
                # First, as the event loop looks at it when it has heard of all
                self._holds = True
                if line.is_to_hear():
                    # Of a task of its own that has just ended, say: then there may be room.
                    return None
                self._holds = False
            found = self._begin(message)
            if found is None:
                self._blocked_to = self._seen
                return None
            waiting.popleft()
            return found
        return None

    def _next_ahead(self) -> Foretold | None:
        """Begin with the next task, for a thread that has ended one; the line's lock is held."""
        executor, arrivals = self._line.executor, self._arrivals
        # Another thread may want the place of this one, or all are to end.
        if self._is_blocked() or executor._rejoin_list or executor._shutdown:
            return None
        if not (self._waiting or arrivals.has_more_than(max(self._seen, arrivals.taken))):
            # What comes from now on this thread sees when it has told of the task that has ended.
            self._returns = True
            return None
        # Whoever has this lock may wait for the other.
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

    def _between(self) -> None:
        """Tell the state machine of what has ended, now and then; called by a thread."""
        # One more or less, if two count at once, is nobody's loss.
        self._untold += 1
        if self._untold >= _TOLD_EACH:
            self._untold = 0
            self._tell()

    def _tell(self) -> None:
        """Tell the state machine of what has ended, if that is a thread's to do now."""
        if self._events.handle():
            # For what it has measured
            self._arrivals.call(BEHIND_S)

    def _share(self) -> None:
        """Give tasks that have come to threads that do nothing; the line's lock is held."""
        executor = self._line.executor
        while self._waiting and self._line.may_foretell() and not executor._shutdown:
            found = self._next_or_none()
            if found is None:
                return
            queue.SimpleQueue.put(executor._work_queue, found)
            # Where no thread can be started, those that there are run it.
            with contextlib.suppress(RuntimeError), executor._shutdown_lock:
                executor._adjust_thread_count()

    def _begin(self, message: dict[str, Any]) -> Foretold | None:
        """Make an item of a task that the state machine would begin with at once."""
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
        """Look up inputs of a task; None if one is not here, or not for sure."""
        found: dict[Any, Any] = {}
        data = data_of(self._worker)
        # What is on disk is for the event loop to read.
        memory: Any = data if type(data) is dict else getattr(data, "fast", None)
        if memory is None:
            return None
        if type(memory) is LRU:
            # Where they are read for the task, they are counted.
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

    # Called by the event loop

    def _on_heard(self) -> None:
        """Have threads look again for what has waited for that."""
        if self._holds:
            self._holds = False
            self._arrivals.rouse(or_next=True)

    def _may_take(self) -> tuple[int | None, int, float]:
        """Say how many batches the event loop may take, or how many messages of the first.

        All batches for None; and when to ask again if it may take nothing. The arrivals' lock is
        held.

        As long as threads go from task to task it takes those whose tasks have ended. When the
        first of the rest is `BEHIND_S` old it takes what has ended of that, and leaves the others
        to the threads until `LEFT_S`; all, where nothing has ended since it last did so.
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
                # A thread tells the state machine of it by itself, with others.
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
                # Threads have not seen it; one that is about to wait would not.
                self._unseen_s = self._unseen_s or now_s
                if self._is_waiting:
                    arrivals.rouse(or_next=True)
            came_s = came[0][1] if came else self._unseen_s
            left_s = max(came_s, self._parted_s) + BEHIND_S - now_s
            if not came and self._is_waiting:
                # It has been woken, and is to begin with all of it: nobody else could sooner.
                left_s += LEFT_S - BEHIND_S
            if left_s <= 0 and not count:
                if ended and came and now_s - came_s < LEFT_S:
                    self._parted_s = now_s
                    return 0, ended, 0.0
                self._returns = False
                return None, 0, 0.0
            if self._waiting and self._is_waiting:
                # It may have looked while the event loop was at work.
                arrivals.rouse(or_next=True)
        # No later than for what a thread takes up meanwhile.
        return count, 0, min(left_s, BEHIND_S)

    def _on_take(self, taken: int) -> None:
        """Leave to the event loop what it takes: so many batches have come before what is left."""
        self._unseen_s = 0.0
        with self._line.lock:
            waiting, came = self._waiting, self._came
            if waiting and waiting[0][0] < taken:
                # With a task that no thread has begun: it comes before all others.
                waiting.clear()
                came.clear()
                self._seen = taken
            while came and came[0][0] < taken:
                came.popleft()
            if self._freed and (self._seen <= taken or len(self._freed) > _FREED_MAX):
                self._freed = {key: at for key, at in self._freed.items() if at >= taken}

    def _catch_up(self) -> bool:
        """Handle what announces tasks that threads have begun; False if that is being done."""
        arrivals = self._arrivals
        while True:
            with arrivals.lock:
                if arrivals.is_handling:
                    return False
                if not self._announces_foretold(arrivals.unhandled):
                    # Where threads have told of them, they may begin with others from here on.
                    return self._are_heard()
                # What a thread has acted on has no handler that is awaited.
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
        """Tell whether the state machine has heard of all tasks that threads have begun."""
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

    def _on_rest(self) -> None:
        """Let go of tasks that the event loop has heard of and not named: they were taken back."""
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


def share_arrivals(worker: Worker, comm: BackhaulComm) -> Arrivals | None:
    """Have threads of a worker see what its scheduler sends, if they are to."""
    if (
        switched_on("hot-path.worker-threads")
        and type(worker.batched_stream) is SharedBatchedSend
        and worker.batched_stream.comm is comm
        and _reads_as_ours(comm)
    ):
        return comm.share()
    return None


def _reads_as_ours(comm: Any) -> bool:
    """Tell whether a comm is ours, of a sub-class too if that does not read by itself."""
    kind = type(comm)
    return (
        isinstance(comm, BackhaulComm)
        and kind.read is BackhaulComm.read
        and kind.read_arrived is BackhaulComm.read_arrived
    )


def work_ahead_for(worker: Worker, line: Line) -> WorkAhead | None:
    """Make what has idle threads of a worker wait for messages; None if they do not see them."""
    stream = worker.batched_stream
    comm = getattr(stream, "comm", None)
    if type(stream) is not SharedBatchedSend or not _reads_as_ours(comm):
        return None
    assert comm is not None
    arrivals = comm.arrivals
    if arrivals is None or not is_installed("worker.early_execution.catching_up_variable"):
        return None
    return WorkAhead(worker, line, arrivals) if catch_up_when_asked(worker, line) else None
