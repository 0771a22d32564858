"""Local queue of a worker: ready tasks that its threads take without the event loop.

In Dask a thread wakes the event loop after each task. The state machine then chooses the next task,
which goes through the queue of the pool: that takes longer than a trivial task, and switches
threads twice. Here the event loop fills a queue in advance with the next tasks, in the order in
which the state machine would choose them; a thread that has ended a task takes the next one
immediately. Ended tasks are reported to the state machine in order, after at most `RESULTS_MAX`
tasks or `REPORT_S` seconds.

The state machine handles the same events as in Dask: before any other event it handles all reports
of threads, and while it handles an event no thread takes a task. So a request to steal or to cancel
a running task finds the task executing. A task is queued here only if no end of an earlier task
can change the order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any, Final

from backhaul._locks import RLock, is_owned
from backhaul.dask.compat.names import (
    FindMissingEvent,
    Worker,
    WorkerStateMachine,
    pool_thread_state,
)
from backhaul.dask.config.settings import switched_on
from backhaul.dask.resource_pools.leases import context_without_lease
from backhaul.dask.worker.core.task_view import inputs_of, is_needed
from backhaul.dask.worker.instructions import perform, perform_instructions
from backhaul.dask.worker.item_state import READY
from backhaul.dask.worker.lazy_collections import data_of
from backhaul.dask.worker.memory import free_bytes
from backhaul.dask.worker.memory_admission import MemoryAdmission
from backhaul.dask.worker.protocols import EarlyItem, EarlyTasks, Item
from backhaul.dask.worker.ready_tasks import are_in_memory, first_tasks
from backhaul.dask.worker.spill_buffer import store_lock
from backhaul.dask.worker.spill_file import read_ahead
from backhaul.dask.worker.state_checks import starts_by_order
from backhaul.dask.worker.transitions import State, set_transitions

__all__ = [
    "LocalQueue",
    "event_loop_of",
    "flushing_handle_stimulus",
    "local_queue_of",
    "mark_announced",
    "runs_are_on",
]

#: Most tasks in the queue
AHEAD_MAX: Final = 32
#: Most bytes of the inputs of these tasks, because held inputs cannot be spilled
INPUT_BYTES_MAX: Final = 32 << 20
#: Most results that wait for the event loop, and their longest wait in seconds
RESULTS_MAX: Final = 32
REPORT_S: Final = 0.001

#: Replaces True while a task runs; a task that leaves the pool, or rejoins it, overwrites this mark
_STAYS: Final = object()


class Phase(State):
    """Work of the event loop on the state machine of a worker."""

    #: The event loop does other work: threads take tasks, and begin early ones
    AWAY = "away"
    #: The event loop handles reports of threads, or is about to: threads still take tasks
    REPORTING = "reporting"
    #: The state machine may change: no thread takes a task, or begins an early one
    CHANGING = "changing"


AWAY, REPORTING, CHANGING = Phase

# A message that is handled during `REPORTING` causes a whole turn from `REPORTING` to `AWAY`.
set_transitions(
    {AWAY: (REPORTING,), REPORTING: (REPORTING, CHANGING, AWAY), CHANGING: (REPORTING, AWAY)}
)


class LocalQueue:
    """The queue of tasks that threads of a worker may take next, and of those that they have ended.

    Parameters
    ----------
    worker : distributed.Worker
        The worker of the tasks.
    executor : distributed.threadpoolexecutor.ThreadPoolExecutor
        The pool whose threads run the tasks.
    prepare : callable
        Makes an `Item` of a ready task, with its inputs; None if the task cannot be queued here.
    make_early : callable
        Makes the attribute `early`; None if threads begin no early tasks.

    Attributes
    ----------
    worker : distributed.Worker
        The parameter.
    early : EarlyTasks
        Begins with tasks whose messages the event loop has not handled.
    lock : threading.RLock
        Held by the event loop while the state machine works, and by threads while they take a task.
        The lock of the worker's store, if that is Dask's.
    executor : distributed.threadpoolexecutor.ThreadPoolExecutor
        The parameter.
    event_loop : asyncio.AbstractEventLoop
        The event loop of the worker.
    admission : MemoryAdmission or None
        Holds tasks back until there is memory for them; None as long as no task needs much.
    early_tasks : dict
        Early tasks, by key: threads have begun them, and the state machine has not started them.
    """

    def __init__(
        self,
        worker: Worker,
        executor: Any,
        prepare: Callable[[Worker, LocalQueue, Any], Item | None],
        make_early: Callable[[Worker, LocalQueue], EarlyTasks | None],
    ) -> None:
        self.worker = worker
        self.executor = executor
        self._prepare = prepare
        #: Number of reasons for threads not to change the worker's data, such as running functions
        #: of clients, which may iterate over the data
        self.holds = 0
        #: Whether one of the reasons is a read, which ends in the next turn of the event loop
        self._is_held = False
        #: Context in which messages of the scheduler are handled
        self.context = context_without_lease()
        self.event_loop = event_loop_of(worker)
        self.lock = store_lock(data_of(worker)) or RLock()
        #: Whether the stream of the scheduler's messages has ended
        self.is_closed = False
        self.admission: MemoryAdmission | None = None
        self.early_tasks: dict[Any, EarlyItem] = {}
        #: Early tasks that have not ended
        self._running_early: set[Item] = set()
        #: Number of threads that could begin an early task now; zero while other tasks are ready
        self._free_threads = 0
        self._next: deque[Item] = deque()
        self._ended: deque[Item] = deque()
        #: Queued tasks, and those that threads have taken before the state machine started them
        self._items: dict[Any, Item] = {}
        #: Whether the event loop has been called; whether the next result has to call it
        self._is_called = False
        self._is_quiet = True
        self._phase = AWAY
        self._timer: asyncio.TimerHandle | None = None
        self.early = make_early(worker, self) or EarlyTasks()
        #: The `StateOwner` that moves the state between Python and Rust, if there is one
        self.state_owner = self.early.state_owner

    # Called by threads

    def begins(self) -> None:
        """Note that this thread of the pool begins a task."""
        pool_thread_state.proceed = _STAYS

    def ended(self, item: Item, *, is_last: bool) -> Item | None:
        """Note that a task has ended, and take the next one.

        Parameters
        ----------
        item : Item
            The ended task, which ran in this thread of the pool.
        is_last : bool
            Whether the thread takes no further task.

        Returns
        -------
        Item or None
            The next task for this thread.
        """
        following: Item | None = None
        executor = self.executor
        if pool_thread_state.proceed is not _STAYS:
            # The event loop has a callback about a thread that left, and must run that first.
            with self.lock:
                self._running_early.discard(item)
            self._call(self._leaver_ended, item)
            return None
        with self.lock:
            if (
                self._next
                and not is_last
                # A dependent task may come before all others.
                and not is_needed(item.task_state)
                # Another thread waits for the place of this one, or the pool ends.
                and not executor._rejoin_list
                and not executor._shutdown
            ):
                following = self._next.popleft()
                following.claim()
            elif not is_last and item in self._running_early:
                self._running_early.discard(item)
                # This task is already begun
                following = self.early.begin_next()
            item.is_deferred = following is not None
            is_told = not is_last and item.tell_ahead(is_last=following is None)
            item.is_deferred |= is_told
            if not is_told:
                self._ended.append(item)
            self._running_early.discard(item)
            # An early report has also set when the event loop is called.
            calls = not (is_told or self._is_called) and (
                following is None or self._is_quiet or len(self._ended) >= RESULTS_MAX
            )
            if calls:
                self._is_called = True
        if calls:
            self._call(self._settle)
        return following

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        try:
            self.event_loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            # The worker is closed with its event loop, and needs no result.
            if not self.event_loop.is_closed():
                raise

    def may_start_early(self) -> bool:
        """Tell whether a task that arrives now could begin immediately; the lock is held."""
        return (
            not self._next
            and self._phase is not CHANGING
            and len(self._running_early) < self._free_threads
        )

    def is_to_hear(self) -> bool:
        """Tell whether the event loop handles reports very soon; the lock is held."""
        return self._is_called or self._phase is CHANGING or bool(self._ended)

    def is_busy(self) -> bool:
        """Tell whether the event loop runs the state machine."""
        return self._phase is CHANGING

    def may_be_told(self) -> bool:
        """Tell whether a thread may report to the state machine now; the lock is held."""
        return self._phase is not CHANGING and not self._is_called and not self._ended

    def leave_threads(self) -> None:
        """Begin no early task until the event loop has counted free threads; the lock is held."""
        self._free_threads = 0

    def add_early(self, key: Any, item: EarlyItem) -> None:
        """Note that this thread begins an early task; the lock is held."""
        self.early_tasks[key] = item
        self._running_early.add(item)

    def close(self) -> None:
        """Wake the tasks that wait for the event loop: the stream has ended."""
        with self.lock:
            self.is_closed = True
            for item in self.early_tasks.values():
                item.wake()

    def runs_early_task(self) -> bool:
        """Tell whether a thread runs an early task; the lock is held."""
        return bool(self._running_early)

    def forget(self, key: Any) -> EarlyItem | None:
        """Remove and return an early task; None if there is none; the lock is held."""
        item = self.early_tasks.pop(key, None)
        if item is not None:
            self._running_early.discard(item)
        return item

    # Called by the event loop

    def show(self) -> None:
        """Handle the reports of threads before a read of the results.

        The results do not change until the next turn of the event loop, as in Dask between two
        awaits. In another thread, or during an operation that holds one of the locks, a read finds
        the results that have been reported.
        """
        state_owner, event_loop, lock = self.state_owner, self.event_loop, self.early.lock
        if asyncio._get_running_loop() is not event_loop:
            if state_owner is not None:
                state_owner.catch_up()
            return
        if lock is None or self._is_held or self.is_busy() or is_owned(lock) or is_owned(self.lock):
            return
        event_loop.call_soon(self._let_go)
        self._is_held = True
        self.holds += 1
        if self.early_tasks or self._ended:
            with lock:
                try:
                    with self.lock:
                        self.handle()
                except Exception as error:
                    # Ends the stream, as an error of a message handler does; the reader gets none.
                    self.early.fail(error)

    def _let_go(self) -> None:
        self._is_held = False
        self.holds -= 1

    def handle(self, *stimuli: Any) -> None:
        """Report the work of threads to the state machine, then handle further events.

        Parameters
        ----------
        *stimuli : StateMachineEvent
            The events, if there are any.
        """
        if self._phase is CHANGING:
            # An event that is being handled has caused these.
            perform(self.worker, *stimuli)
            return
        self._enter(REPORTING)
        try:
            self._hear()
            self._tell()
            with self.lock:
                # A thread may have ended a task since.
                self._tell()
                if stimuli:
                    self._pass_on(*stimuli)
                    self._tell()
                self._stage_ready_tasks()
        finally:
            with self.lock:
                self._enter(AWAY)
                # An error of one report leaves the others in the queue.
                if self._ended:
                    self._is_called = True
                    self.event_loop.call_soon(self._settle)
            self.early.on_reported()

    def _pass_on(self, *stimuli: Any) -> None:
        """Handle events in the state machine; Rust imports the state first if possible."""
        if self.state_owner is not None:
            self.state_owner.import_state()
        perform(self.worker, *stimuli)

    def perform(self, told: Any) -> None:
        """Perform instructions of the state machine that a thread's report has caused."""
        perform_instructions(self.worker, told)
        self.handle()

    def _hear(self) -> None:
        """Handle the messages of early tasks, and let threads begin no more of them.

        Otherwise the next event could take the thread of such a task: the state machine would start
        the task later, although the scheduler has its result and sends tasks that depend on it.
        """
        while True:
            with self.lock:
                self._enter(CHANGING)
                if all(item.is_announced for item in self.early_tasks.values()):
                    return
                self._enter(REPORTING)
            if not self.early.catch_up():
                # The event loop is handling those messages now.
                self._enter(CHANGING)
                return
            # A message may have called this method.
            self._enter(REPORTING)

    def take(self, task_state: Any) -> Item | None:
        """Remove and return the item of a task that the state machine starts.

        Parameters
        ----------
        task_state : distributed.worker_state_machine.TaskState
            The task.

        Returns
        -------
        Item or None
            None if there is none. Unless the item is `READY`, a thread has it already.
        """
        key = task_state.key
        if key not in self._items and key not in self.early_tasks:
            return None
        with self.lock:
            early_tasks = self.forget(key)
            if early_tasks is not None:
                if early_tasks.run_id == task_state.run_id:
                    early_tasks.adopt(task_state)
                    return early_tasks
                early_tasks.disown()
            item = self._items.pop(key, None)
            if item is None:
                return None
            if item.state is READY:
                self._next.remove(item)
            return item if item.task_state is task_state else None

    def end(self, item: Item) -> None:
        """Add an ended task to those that are reported to the state machine."""
        with self.lock:
            self._ended.append(item)

    def _settle(self) -> None:
        with self.lock:
            self._is_called = False
            self._enter(REPORTING)
        self.handle()

    def _leaver_ended(self, item: Item) -> None:
        with self.lock:
            self._enter(REPORTING)
            self.end(item)
        self.handle()

    def _tick(self) -> None:
        with self.lock:
            self._timer = None
            # If no task has ended for that long, the next result calls the event loop immediately.
            self._is_quiet = not self._ended
            if not self._is_quiet:
                self._enter(REPORTING)
        if not self._is_quiet:
            self.handle()

    def _tell(self) -> None:
        """Report all ended tasks to the state machine."""
        while self._ended:
            # If one raises, the others stay in the queue and are reported later.
            self._ended.popleft().finish()

    def _stage_ready_tasks(self) -> None:
        """Fill the queue with the next tasks; the lock is held, and all reports are handled."""
        items, self._items = self._items, {}
        self._next.clear()
        # Items that threads have taken, whose tasks the state machine has yet to start
        for key, item in items.items():
            if item.state is not READY and item.task_state.state == "ready":
                self._items[key] = item
        worker = self.worker
        state = worker.state
        self._free_threads = 0
        if not starts_by_order(worker):
            return
        state_owner = self.state_owner
        if state_owner is not None and state_owner.core is not None:
            ready = iter(state_owner.first_ready(AHEAD_MAX))
        else:
            ready = first_tasks(state.ready, AHEAD_MAX)
        room_bytes = INPUT_BYTES_MAX
        has_any = False
        for task_state in ready:
            has_any = True
            key = task_state.key
            if key in self._items or key in self.early_tasks:
                continue
            if inputs := inputs_of(task_state):
                room_bytes -= sum(nbytes or 0 for _, nbytes in inputs)
                if room_bytes < 0 or not are_in_memory(data_of(worker), inputs):
                    self._read_ahead(inputs, ready)
                    break
            known = items.get(key)
            if known is None or known.task_state is not task_state:
                known = self._prepare(worker, self, task_state)
            # Later tasks must not overtake one that cannot be queued here.
            if known is None:
                break
            self._items[key] = known
            self._next.append(known)
        if not has_any:
            self._free_threads = state.nthreads - state.executing_count
        if self._next:
            self._is_quiet = False
            if self._timer is None:
                self._timer = self.event_loop.call_later(REPORT_S, self._tick)
        if state.validate:
            self.validate()

    def _read_ahead(self, inputs: Iterable[tuple[Any, Any]], following: Iterator[Any]) -> None:
        """Begin to read inputs from disk: of the next task, and of as many as there are threads."""
        next_ones = islice(following, self.worker.state.nthreads)
        later = (each for task_state in next_ones for each in inputs_of(task_state))
        keys = (key for key, _ in chain(inputs, later))
        read_ahead(data_of(self.worker), keys, partial(free_bytes, self.worker))

    def _enter(self, phase: Phase) -> None:
        assert phase in self._phase.following, f"{self._phase} is followed by {phase}"
        self._phase = phase

    def validate(self) -> None:
        """Check the invariants of the queue; the lock is held.

        Called by the event loop after it has filled the queue, if the state machine validates its
        steps, as Dask's tests ask for. A thread does not call this: an error would end the thread.
        """
        known = self._items
        for item in self._next:
            assert known.get(item.task_state.key) is item, f"{item} is queued, and not known"
            assert item.state is READY, f"{item} is queued, and a thread has it"
        queued = set(self._next)
        for key, item in known.items():
            is_taken = item.state is not READY
            assert is_taken or item in queued, f"no thread can take {key!r}"
            assert key not in self.early_tasks, f"{key!r} is queued, and has begun early"
        assert self._running_early <= set(self.early_tasks.values()), "an early task has no key"
        assert len(self._next) <= AHEAD_MAX
        self.early.validate()
        # Early tasks must not overtake queued ones.
        assert not (self._next and self._free_threads)
        # The event loop handles each ended task: it is at work, is called, or has a timer.
        is_at_work = self._phase is not AWAY
        is_woken = is_at_work or self._is_called or self._timer is not None
        assert is_woken or not self._ended, "nothing wakes the event loop for an ended task"


def runs_are_on(worker: Worker, executor: Any) -> bool:
    """Tell whether threads of one of a worker's pools may take tasks from a local queue."""
    return (
        worker.executors.get("default") is executor
        # A subclass may handle events in another way.
        and type(worker).handle_stimulus is Worker.handle_stimulus
        and switched_on("hot-path.runs")
    )


def event_loop_of(worker: Worker) -> asyncio.AbstractEventLoop:
    """Return the asyncio event loop of a worker, which tornado's loop wraps."""
    event_loop: asyncio.AbstractEventLoop = worker.loop.asyncio_loop  # type: ignore[attr-defined]
    return event_loop


def local_queue_of(worker: Worker) -> LocalQueue | None:
    """Return the local queue of a worker's default pool; None if it has none."""
    queue: Any = getattr(worker.executors.get("default"), "_work_queue", None)
    local_queue: LocalQueue | None = getattr(queue, "local_queue", None)
    return local_queue


def mark_announced(worker: Worker, key: Any) -> bool:
    """Note that the state machine gets a task now; tell whether a thread has begun it early."""
    local_queue = local_queue_of(worker)
    item = None if local_queue is None else local_queue.early_tasks.get(key)
    if item is None:
        return False
    item.is_announced = True
    return True


def flushing_handle_stimulus(worker: Worker) -> Callable[..., None]:
    """Make a `handle_stimulus` of one worker that first handles the reports of threads."""
    original = worker.handle_stimulus

    def handle_stimulus(*stims: Any) -> None:
        local_queue = local_queue_of(worker)
        if local_queue is None:
            original(*stims)
        elif not (local_queue.early_tasks and _change_nothing(worker.state, stims)):
            # Does the same as `original`, whose digest was checked.
            local_queue.handle(*stims)

    return handle_stimulus


def _change_nothing(state: WorkerStateMachine, stimuli: tuple[Any, ...]) -> bool:
    """Tell whether a state machine would neither do nor log anything for some events.

    That is so for the search for missing results each second, which would otherwise cause reports
    of early tasks.
    """
    if not all(type(each) is FindMissingEvent for each in stimuli):
        return False
    if hasattr(state, "core_owner"):
        return not state.core_owner.has_missing()
    return not state.missing_dep_flight and not state.data_needed and not state.validate
