"""Runs: the tasks that a thread of a worker takes one after another, without the event loop.

After each task the thread would wake the event loop, which tells the state machine, which names the
next task, which goes through the queue of the pool: more than a trivial task takes, and two
switches of threads. Here the event loop lays out beforehand which tasks come next, in the order in
which the state machine would name them; a thread that has ended one takes the next of them at once.
What has ended is told to the state machine in the order in which it did, up to `RESULTS_MAX` or
`REPORT_S` at a time.

The state machine sees what it always sees: before anything else is told to it, all that threads
have done is told, and while it is told something no thread takes a task. So a request to steal or
to cancel a task that runs finds it executing. A task is laid out only if nothing that ends before
it can change whose turn it is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any, Final

from distributed import Status

from backhaul._locks import RLock, is_owned
from backhaul.dask.compat.installed import is_installed
from backhaul.dask.compat.names import (
    FindMissingEvent,
    HeapSet,
    Worker,
    WorkerStateMachine,
    pool_thread_state,
)
from backhaul.dask.resource_pools.leases import context_without_lease
from backhaul.dask.resource_pools.worker_state import SlottedWorkerState, slots_of
from backhaul.dask.worker.core.task_view import inputs_of, is_needed
from backhaul.dask.worker.instructions import perform, perform_told
from backhaul.dask.worker.lazy_collections import data_of
from backhaul.dask.worker.protocols import ForetoldItem, Item
from backhaul.dask.worker.state_checks import no_plugin_hears_of_transitions

__all__ = [
    "Line",
    "event_loop_of",
    "hear_of",
    "line_of",
    "runs_are_on",
    "settling_handle_stimulus",
]

#: Most tasks that are laid out
AHEAD_MAX: Final = 32
#: Bytes of inputs that may be held for them: what is held cannot be spilled
INPUT_BYTES_MAX: Final = 32 << 20
#: Most results that wait for the event loop, and for how long they do
RESULTS_MAX: Final = 32
REPORT_S: Final = 0.001

#: How long who looks at the results waits for a thread that looks at what has come
_SHOWN_S: Final = 0.001

#: What stands for True while a task runs; a task that leaves the pool, or comes back, overwrites it
_STAYS: Final = object()


class Line:
    """The tasks of a worker that its threads may take next, and those that they have ended.

    Parameters
    ----------
    worker : distributed.Worker
        Whose tasks they are.
    executor : distributed.threadpoolexecutor.ThreadPoolExecutor
        Whose threads run them.

    Attributes
    ----------
    worker : distributed.Worker
        The same.
    prepare : callable
        Makes an `Item` of a task that is ready, with its inputs; None if it is no task for a run.
    lock : threading.RLock
        Held by the event loop while the state machine works, by threads while they take a task.
    executor : distributed.threadpoolexecutor.ThreadPoolExecutor
        The same.
    event_loop : asyncio.AbstractEventLoop
        Of the worker.
    foretold : dict
        Tasks that threads have begun and the state machine has not named, by key.
    """

    def __init__(self, worker: Worker, executor: Any) -> None:
        self.worker = worker
        self.executor = executor
        self.prepare: Callable[[Any], Item | None] = lambda _: None
        #: Called by a thread that goes from one task to the next
        self.between: Callable[[], None] = _nothing_else
        #: Gives a task that the thread is to run next, of those that have come
        self.next_ahead: Callable[[], Item | None] = _nothing_next
        #: How many are at work, such as functions of clients, who may go through the worker's data
        self.holds = 0
        #: Whether it is held until the event loop comes round
        self._is_held = False
        #: Held by whoever tells of what has come, if threads do; and what ends the stream
        self.telling: Any = None
        self.fail: Callable[[Exception], None] = _fail_nothing
        #: Who has the state change hands between Python and Rust, if it does
        self.keeper: Any = None
        #: What a message of the scheduler is handled in
        self.context = context_without_lease()
        #: Called by the event loop when the state machine has heard of what has ended
        self.on_heard: Callable[[], None] = _nothing_else
        #: Has the event loop handle what announces foretold tasks; False if it is at it
        self.catch_up: Callable[[], bool] = _nothing_to_hear
        self.event_loop = event_loop_of(worker)
        self.lock = RLock()
        self.foretold: dict[Any, ForetoldItem] = {}
        #: Those that have not ended
        self._foretold_running: set[Item] = set()
        #: How many more tasks a thread could begin at once, were they ready; none while others are
        self._free_threads = 0
        self._next: deque[Item] = deque()
        self._ended: deque[Item] = deque()
        #: Those laid out, and those that threads have taken before the state machine named them
        self._items: dict[Any, Item] = {}
        #: Whether the event loop has been called, or asked to be with the next result
        self._is_called = False
        self._is_quiet = True
        self._is_busy = False
        self._timer: asyncio.TimerHandle | None = None

    # Called by threads

    def begins(self) -> None:
        """Note that this thread of the pool begins with a task."""
        pool_thread_state.proceed = _STAYS

    def ended(self, item: Item, *, is_last: bool) -> Item | None:
        """Note that a task has ended, and take the next one.

        Parameters
        ----------
        item : Item
            What has ended, in this thread of the pool.
        is_last : bool
            Whether the thread shall take no other.

        Returns
        -------
        Item or None
            What the thread is to run at once.
        """
        following: Item | None = None
        executor = self.executor
        if pool_thread_state.proceed is not _STAYS:
            # The event loop was told that it left, or is about to be: it must hear of that first.
            with self.lock:
                self._foretold_running.discard(item)
            self._call(self._leaver_ended, item)
            return None
        with self.lock:
            if (
                self._next
                and not is_last
                # What needs its result may come before all others.
                and not is_needed(item.task_state)
                # Another thread wants the place of this one, or all are to end.
                and not executor._rejoin_list
                and not executor._shutdown
            ):
                following = self._next.popleft()
                following.claim()
            elif not is_last and item in self._foretold_running:
                self._foretold_running.discard(item)
                # Already begun
                following = self.next_ahead()
            item.is_deferred = following is not None
            is_told = not is_last and item.tell_ahead(is_last=following is None)
            item.is_deferred |= is_told
            if not (is_told and item.is_over_ahead()):
                self._ended.append(item)
            self._foretold_running.discard(item)
            # Who has told ahead has also said when the event loop is to know.
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
            # The event loop has been closed, with the worker that would handle the result.
            if not self.event_loop.is_closed():
                raise

    def may_foretell(self) -> bool:
        """Tell whether a task that came now would begin at once; the lock is held."""
        return (
            not self._next
            and not self._is_busy
            and len(self._foretold_running) < self._free_threads
        )

    def is_to_hear(self) -> bool:
        """Tell whether the event loop hears of what has ended very soon; the lock is held."""
        return self._is_called or self._is_busy or bool(self._ended)

    def is_busy(self) -> bool:
        """Tell whether the event loop has the state machine do something."""
        return self._is_busy

    def may_be_told(self) -> bool:
        """Tell whether a thread may tell the state machine something now; the lock is held."""
        return not self._is_busy and not self._is_called and not self._ended

    def leave_threads(self) -> None:
        """Begin with nothing ahead until the event loop has looked; the lock is held."""
        self._free_threads = 0

    def foretell(self, key: Any, item: ForetoldItem) -> None:
        """Note that this thread begins with a task by itself; the lock is held."""
        self.foretold[key] = item
        self._foretold_running.add(item)

    def foretold_runs(self) -> bool:
        """Tell whether a thread is at work on a foretold task; the lock is held."""
        return bool(self._foretold_running)

    def forget(self, key: Any) -> ForetoldItem | None:
        """Give a task that a thread has begun by itself, for the last time; the lock is held."""
        item = self.foretold.pop(key, None)
        if item is not None:
            self._foretold_running.discard(item)
        return item

    # Called by the event loop

    def show(self) -> None:
        """Have the state machine hear of what threads have done, for who looks at the results.

        They stay as they are until the event loop comes round, as in Dask between two awaits.
        Another thread finds what has been heard of; so does who looks in the midst of something.
        """
        keeper, event_loop, lock = self.keeper, self.event_loop, self.telling
        if asyncio._get_running_loop() is not event_loop:
            if keeper is not None:
                keeper.catch_up()
            return
        if lock is None or self._is_held or self._is_busy or is_owned(lock) or is_owned(self.lock):
            return
        event_loop.call_soon(self._let_go)
        self._is_held = True
        self.holds += 1
        # Who has them may wait for a lock that whoever looks has, of the data or of a stream.
        if (self.foretold or self._ended) and lock.acquire(timeout=_SHOWN_S):
            try:
                if self.lock.acquire(timeout=_SHOWN_S):
                    try:
                        self.handle()
                    finally:
                        self.lock.release()
            except Exception as error:
                # As from a handler of the stream, which ends; no matter of whoever looks.
                self.fail(error)
            finally:
                lock.release()

    def _let_go(self) -> None:
        self._is_held = False
        self.holds -= 1

    def handle(self, *stimuli: Any) -> None:
        """Tell the state machine what threads have done, and then something else.

        Parameters
        ----------
        *stimuli : StateMachineEvent
            The events, if there are any.
        """
        if self._is_busy:
            # What it is told leads to this.
            perform(self.worker, *stimuli)
            return
        try:
            self._hear()
            self._tell()
            with self.lock:
                # A thread may have ended one since.
                self._tell()
                if stimuli:
                    self._pass_on(*stimuli)
                    self._tell()
                self._lay_out()
        finally:
            self._is_busy = False
            # One of them broke off what was told.
            if self._ended:
                self.event_loop.call_soon(self._settle)
            self.on_heard()

    def _pass_on(self, *stimuli: Any) -> None:
        """Tell the state machine something; Rust takes over before, if it may."""
        if self.keeper is not None:
            self.keeper.take_over()
        perform(self.worker, *stimuli)

    def perform(self, told: Any) -> None:
        """Do what the state machine wants, which a thread has told something."""
        perform_told(self.worker, told)
        self.handle()

    def _hear(self) -> None:
        """Have the state machine hear of what threads have begun, and none begin with more.

        Else what comes now could take the thread that such a task has: the state machine would name
        it later, though the scheduler knows its result already, and sends what needs it.
        """
        while True:
            with self.lock:
                self._is_busy = True
                if all(item.is_heard for item in self.foretold.values()):
                    return
            self._is_busy = False
            if not self.catch_up():
                # This is how it hears of them.
                self._is_busy = True
                return

    def take(self, task_state: Any) -> Item | None:
        """Give what was made for a task that the state machine has named.

        Parameters
        ----------
        task_state : distributed.worker_state_machine.TaskState
            The task.

        Returns
        -------
        Item or None
            None if nothing was. A thread has it already if it is claimed.
        """
        key = task_state.key
        if key not in self._items and key not in self.foretold:
            return None
        with self.lock:
            foretold = self.forget(key)
            if foretold is not None:
                if foretold.run_id == task_state.run_id:
                    foretold.adopt(task_state)
                    return foretold
                foretold.disown()
            item = self._items.pop(key, None)
            if item is None:
                return None
            if not item.is_claimed:
                self._next.remove(item)
            return item if item.task_state is task_state else None

    def end(self, item: Item) -> None:
        """Have the state machine told that a task has ended."""
        with self.lock:
            self._ended.append(item)

    def _settle(self) -> None:
        with self.lock:
            self._is_called = False
        self.handle()

    def _leaver_ended(self, item: Item) -> None:
        self.end(item)
        self.handle()

    def _tick(self) -> None:
        self._timer = None
        with self.lock:
            # Nothing has ended for that long: the next result is not to wait.
            self._is_quiet = not self._ended
        if not self._is_quiet:
            self.handle()

    def _tell(self) -> None:
        """Tell the state machine of all that has ended."""
        while self._ended:
            # Whatever one of them leads to, the others are told later.
            self._ended.popleft().finish()

    def _lay_out(self) -> None:
        """Say which tasks come next; the lock is held, and the state machine knows everything."""
        items, self._items = self._items, {}
        self._next.clear()
        # A thread that was told so late that its task has been forgotten meanwhile
        for key, item in items.items():
            if item.is_claimed and item.task_state.state == "ready":
                self._items[key] = item
        worker = self.worker
        state = worker.state
        self._free_threads = 0
        if not _is_plain(worker):
            return
        keeper = self.keeper
        if keeper is not None and keeper.core is not None:
            ready: Iterable[Any] = keeper.first_ready(AHEAD_MAX)
        else:
            ready = _first(state.ready, AHEAD_MAX)
        room_bytes = INPUT_BYTES_MAX
        has_any = False
        for task_state in ready:
            has_any = True
            key = task_state.key
            if key in self._items or key in self.foretold:
                continue
            if inputs := inputs_of(task_state):
                room_bytes -= sum(nbytes or 0 for _, nbytes in inputs)
                if room_bytes < 0 or not _in_memory(data_of(worker), inputs):
                    break
            known = items.get(key)
            if known is None or known.task_state is not task_state:
                known = self.prepare(task_state)
            # Those behind it would go past it.
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


def runs_are_on(worker: Worker, executor: Any) -> bool:
    """Tell whether threads of a pool may take tasks by themselves.

    Parameters
    ----------
    worker : distributed.Worker
        Whose events go through `settling_handle_stimulus`, if that is switched on.
    executor : distributed.threadpoolexecutor.ThreadPoolExecutor
        A pool of its own.
    """
    return (
        worker.executors.get("default") is executor
        # A sub-class may handle events otherwise.
        and type(worker).handle_stimulus is Worker.handle_stimulus
        and is_installed("worker.local_queue.settling_handle_stimulus")
    )


def event_loop_of(worker: Worker) -> asyncio.AbstractEventLoop:
    """Give the event loop of a worker, which tornado's hides."""
    event_loop: asyncio.AbstractEventLoop = worker.loop.asyncio_loop  # type: ignore[attr-defined]
    return event_loop


def line_of(worker: Worker) -> Line | None:
    """Give the line of a worker's default pool; None if its threads take no tasks by themselves."""
    queue: Any = getattr(worker.executors.get("default"), "_work_queue", None)
    line: Line | None = getattr(queue, "line", None)
    return line


def hear_of(worker: Worker, key: Any) -> bool:
    """Note that the state machine hears of a task now; tell whether a thread has begun with it."""
    line = line_of(worker)
    item = None if line is None else line.foretold.get(key)
    if item is None:
        return False
    item.is_heard = True
    return True


def _nothing_next() -> None:
    """Stand for nobody who foretells."""


def _fail_nothing(error: Exception) -> None:
    raise error


def _nothing_else() -> None:
    """Stand for nobody who foretells."""


def _nothing_to_hear() -> bool:
    """Stand for nobody who foretells."""
    return False


def settling_handle_stimulus(original: Callable[..., None]) -> Callable[..., None]:
    """Make a `Worker.handle_stimulus` that first tells what threads have done."""

    def handle_stimulus(self: Worker, *stims: Any) -> None:
        line = line_of(self)
        if line is None:
            original(self, *stims)
        elif not (line.foretold and _change_nothing(self.state, stims)):
            # What `original` does, which was read.
            line.handle(*stims)

    return handle_stimulus


def _change_nothing(state: WorkerStateMachine, stimuli: tuple[Any, ...]) -> bool:
    """Tell whether a state machine would do nothing, and log nothing, for certain events.

    Each second it is to look for what is missing, and is told of what threads have begun before.
    """
    if not all(type(each) is FindMissingEvent for each in stimuli):
        return False
    if hasattr(state, "core_owner"):
        return not state.core_owner.has_missing()
    return not state.missing_dep_flight and not state.data_needed and not state.validate


def _is_plain(worker: Worker) -> bool:
    """Tell whether the state machine names tasks by their order alone, and nobody looks on."""
    state = worker.state
    if (
        not state.running
        or worker.status is not Status.running
        or state.constrained
        or state.actors
        or not _is_known(type(state))
    ):
        return False
    slots = slots_of(state)
    if slots is not None and not slots.is_idle:
        return False
    # A plugin hears of each task when it starts.
    return no_plugin_hears_of_transitions(state)


def _is_known(kind: Any) -> bool:
    """Tell whether a state machine is of Dask's class, or of ours, which may be behind."""
    if hasattr(kind, "is_behind"):
        kind = kind.__base__
    return kind is WorkerStateMachine or kind is SlottedWorkerState


def _in_memory(data: Any, inputs: list[tuple[Any, Any]]) -> bool:
    """Tell whether results are where looking at them reads no disk."""
    if type(data) is dict:
        return all(key in data for key, _ in inputs)
    fast = getattr(data, "fast", None)
    return not inputs or (fast is not None and all(key in fast for key, _ in inputs))


def _first(tasks: HeapSet[Any], count: int) -> Iterator[Any]:
    """Give the first tasks of a heap in their order; the heap is not sorted for it."""
    heap, members = tasks._heap, tasks._data
    seen: set[Any] = set()
    candidates = [(heap[0], 0)] if heap else []
    while candidates and len(seen) < count:
        (_, _, reference), at = heappop(candidates)
        task = reference()
        if task in members and task not in seen:
            seen.add(task)
            yield task
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heappush(candidates, (heap[child], child))
