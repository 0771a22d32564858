"""A worker whose threads, event loop and scheduler run in a random schedule.

The code of the product is under test: the inbox, the early reader, the local queue, the items, the
handlers of messages, the state in Rust; and Dask's state machine. Replaced are the edges: the
event loop, the native `Lookout`, the connection, the loop of a thread of the pool, and the clock.
"""

from __future__ import annotations

import contextvars
import itertools
import queue
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dask._task_spec import Task, TaskRef
from distributed import Status, Worker
from distributed.threadpoolexecutor import ThreadPoolExecutor
from distributed.worker_state_machine import ComputeTaskEvent, FreeKeysEvent, WorkerState

from backhaul.dask.comm import inbox
from backhaul.dask.compat import activation
from backhaul.dask.compat.names import pool_thread_state
from backhaul.dask.worker import early_execution, early_reader, local_queue
from backhaul.dask.worker.event_stream import _Stream
from backhaul.dask.worker.finished_message import _described
from backhaul.dask.worker.idle_thread import Wait
from backhaul.dask.worker.lazy_collections import data_of, install
from backhaul.dask.worker.local_queue import LocalQueue, flushing_handle_stimulus
from backhaul.dask.worker.task_start import _prepare, start_execution
from tests.dask.schedules import Schedule, ScheduledEvent, ScheduledLock
from tests.dask.simulated_edges import Endpoint, Lookout, Loop, Pending, new_inbox

__all__ = ["Simulation", "simulated"]

_asking = early_execution.catching_up_variable(contextvars.ContextVar("worker", default=None))


class SimulatedWorker(Worker):
    """A worker without a server."""

    def __init__(self, simulation: Simulation, nthreads: int, *, validate: bool) -> None:
        schedule = simulation.schedule
        self._simulation = simulation
        self.loop = simulation.loop  # type: ignore[assignment]
        self._status = Status.running
        self._address = f"tcp://127.0.0.1:{simulation.seed + 1}"
        self.state = WorkerState(nthreads=nthreads, address=self._address, validate=validate)
        install(self.state)
        self.threads = self.state.threads
        self.executors = {"default": ThreadPoolExecutor(nthreads)}
        executor: Any = self.executors["default"]
        executor._work_queue = Pending(schedule)
        executor._adjust_thread_count = lambda: None
        self.batched_stream = simulation  # type: ignore[assignment]
        self.active_threads_lock = threading.Lock()
        self.active_threads = {}
        self.execution_state = {}
        self.scheduler_delay = 0
        self._async_instructions = set()
        self.active_keys = set()
        self.handle_stimulus = flushing_handle_stimulus(self)  # type: ignore[method-assign]
        self.digests = None
        self.digests_total = defaultdict(float)
        self.digests_total_since_heartbeat = defaultdict(float)
        self.digests_max = defaultdict(float)

    def __repr__(self) -> str:
        return "<SimulatedWorker>"

    def __del__(self) -> None:
        """Without a server there is nothing to close."""

    def _start_async_instruction(self, *args: Any, **options: Any) -> None:
        _, _, key = args
        assert start_execution(self, key, **options)


class Simulation:
    """A worker with the tasks of a seed.

    Attributes
    ----------
    schedule : Schedule
        The schedule.
    comm : object
        True, as a stream with a connection; the worker's stream is this object.
    """

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seed = seed
        self.schedule = schedule = Schedule(seed)
        self.loop = loop = Loop(schedule)
        self.comm = self
        self.buffer: list[Any] = []
        #: Messages of the worker that the scheduler has not read
        self._reported: deque[dict[str, Any]] = deque()
        self.reports: Counter[Any] = Counter()
        self.runs: Counter[Any] = Counter()
        self.early: list[Any] = []
        self._sent: list[Any] = []
        self._batches = 0
        #: Reads of the state: those that are handled, those that were requested, and how many were
        #: requested before each task
        self._looks_handled = self._looks = 0
        self._looks_before: dict[str, int] = {}
        self._is_over = False
        chance = schedule.chance
        _described[int] = b"int", "int"
        patch = monkeypatch.setattr
        patch(inbox, "Lookout", lambda _: Lookout(schedule, loop))
        patch(inbox, "RLock", partial(ScheduledLock, schedule))
        patch(local_queue, "RLock", partial(ScheduledLock, schedule))
        patch(early_reader, "monotonic", lambda: schedule.now_s)
        event = SimpleNamespace(Event=partial(ScheduledEvent, schedule))
        patch(early_execution, "threading", event)
        self._endpoint = Endpoint(schedule)
        nthreads = chance.choice((1, 1, 2, 3))
        self.worker = worker = SimulatedWorker(self, nthreads, validate=chance.random() < 0.3)
        handlers = {
            "compute-task": worker._handle_remote_stimulus(ComputeTaskEvent),
            "free-keys": worker._handle_remote_stimulus(FreeKeysEvent),
            "look": self._look,
        }
        self._stream = _Stream(handlers, self, {})  # type: ignore[arg-type]
        self.inbox = new_inbox(self._endpoint, loop, monkeypatch, self._stream.handle_now)
        executor: Any = worker.executors["default"]
        self.line = executor._work_queue.local_queue = LocalQueue(
            worker, executor, _prepare, self._make_reader
        )
        executor._work_queue.reader = self.line.early.waits
        schedule.on_idle = self._check_idle
        self._programs = [self._run_scheduler, self._run_loop, *[self._run_thread] * nthreads]

    def _make_reader(self, worker: Any, line: LocalQueue) -> Any:
        self._reader = reader = early_reader.EarlyReader(worker, line, self.inbox)
        reader._post = ScheduledLock(self.schedule)  # type: ignore[assignment]
        reader._lock = ScheduledLock(self.schedule)  # type: ignore[assignment]
        return reader

    # As the worker's stream and comm

    def post_in_thread(self, *messages: dict[str, Any], is_last: bool = False) -> bool:
        self._reported += messages
        self.early += [each["key"] for each in messages]
        return True

    def send(self, *messages: dict[str, Any]) -> None:
        self._reported += messages

    def given_up(self) -> bool:
        return False

    def _look(self, **_: Any) -> None:
        self._looks_handled += 1
        self.line.show()

    # The threads

    def _run_loop(self) -> None:
        async def main() -> None:
            while not self._is_over:
                try:
                    batches, frames = await self.inbox.take()
                except ConnectionError:
                    return
                if frames is not None:
                    await self.loop.turn()
                    batches = [each.batch for each in cast(Any, frames)]
                for batch in batches:
                    await self._stream.handle(batch)
                if self.inbox.readable():
                    self.inbox.rest()
                    await self.loop.turn()

        try:
            self.loop.run(main())
        finally:
            self.inbox.close()

    def _run_thread(self) -> None:
        pool_thread_state.proceed = True
        work_queue = self.worker.executors["default"]._work_queue  # type: ignore[attr-defined]
        while True:
            try:
                item = work_queue.get(timeout=1)
            except queue.Empty:
                if self._is_over:
                    return
                continue
            if item is None:
                work_queue.put(None)
                return
            item.run()

    def _run_scheduler(self) -> None:
        """Send tasks when their inputs are reported, results that are freed, and reads."""
        chance = self.schedule.chance
        inputs = {
            number: {chance.randrange(number) for _ in range(chance.choice((0, 0, 1, 1, 2)))}
            if number
            else set()
            for number in range(chance.randint(1, 10))
        }
        needed = Counter(itertools.chain.from_iterable(inputs.values()))
        unsent = dict(inputs)
        free: list[int] = []
        while True:
            while self._reported:
                message = self._reported.popleft()
                if message["op"] == "task-finished":
                    self.reports[message["key"]] += 1
                    free += [int(message["key"])] if not needed[int(message["key"])] else []
            able = [n for n, before in unsent.items() if all(self.reports[str(b)] for b in before)]
            batch = []
            for number in able[: chance.randint(1, 4)]:
                batch.append(self._task(number, unsent.pop(number)))
                for each in inputs[number]:
                    needed[each] -= 1
            self._sent += [each["key"] for each in batch]
            if free and chance.random() < 0.5:
                keys = [str(n) for n in free if not needed[n] and chance.random() < 0.7]
                free = [n for n in free if str(n) not in keys]
                batch.append({"op": "free-keys", "keys": keys, "stimulus_id": "free"})
            if chance.random() < 0.1:
                batch.insert(chance.randint(0, len(batch)), {"op": "look"})
            if chance.random() < 0.7:
                # When no thread has anything to do
                self._sleep(0.0001)
            for message in batch:
                self._looks += message["op"] == "look"
                if message["op"] == "compute-task":
                    self._looks_before[message["key"]] = self._looks
            if batch:
                self._batches += 1
                self._endpoint.deliver(batch if len(batch) > 1 else batch[0])
            elif unsent or self._missing():
                self.schedule.step(lambda: self._reported or not (unsent or self._missing()))
            else:
                break
        self._is_over = True
        self._endpoint.end()
        self.worker.executors["default"]._work_queue.put(None)  # type: ignore[attr-defined]

    def _missing(self) -> bool:
        """Tell whether the worker has something left to do."""
        return (
            len(self.reports) < len(self._sent)
            or self.inbox.taken < self._batches
            or self.inbox.is_handling
            or bool(self.line.early_tasks or self.line._ended or self.worker._async_instructions)
        )

    def _task(self, number: int, inputs: set[int]) -> dict[str, Any]:
        key = str(number)
        here = [str(each) for each in sorted(inputs)]
        return {
            "op": "compute-task",
            "stimulus_id": f"compute-{key}",
            "key": key,
            "run_id": number,
            "who_has": dict.fromkeys(here, (self.worker._address,)),
            "nbytes": dict.fromkeys(here, 28),
            "priority": (0, number),
            "run_spec": Task(key, self._run_task, number, *map(TaskRef, here)),
            "resource_restrictions": {},
            "actor": False,
            "annotations": {},
            "span_id": None,
        }

    def _run_task(self, number: int, *inputs: int) -> int:
        self.runs[str(number)] += 1
        assert self._looks_handled >= self._looks_before[str(number)], "a task went ahead of a read"
        chance = self.schedule.chance
        self.schedule.step()
        if chance.random() < 0.3:
            self._sleep(chance.choice((0.0005, 0.003, 0.02)))
        if chance.random() < 0.2:
            # As `distributed.get_worker`
            _asking.get()

        return number

    def _check_idle(self) -> None:
        """Check that no thread sleeps in vain: it would begin a task only after some time."""
        messages, idle = self._reader._messages, self._reader._idle
        messages.validate()
        idle.validate()
        assert (
            not messages.waiting
            or messages.is_closed
            or idle.state is Wait.ABSENT
            or not self.line.may_start_early()
        ), "a thread waits, and could begin a task"
        executor: Any = self.worker.executors["default"]
        # Of several threads, one waits for messages.
        is_only_thread = self.worker.state.nthreads == 1 and executor._work_queue.waiting
        assert not (is_only_thread and self.inbox.may_look()), "no thread reads messages"

    def _sleep(self, seconds: float) -> None:
        until_s = self.schedule.now_s + seconds
        self.schedule.step(lambda: False, lambda: until_s)

    def run(self) -> None:
        """Run all, and check what is left."""
        errors = self.schedule.run(*self._programs)
        if errors:
            raise errors[0]
        sent = self._sent
        assert self.runs == self.reports == Counter(sent)
        line, state = self.line, self.worker.state
        assert not line.early_tasks
        assert not line._ended
        assert not line._items
        with line.lock:
            line.validate()
        heard = [each.key for each in state.stimulus_log if type(each) is ComputeTaskEvent]
        assert heard == sent
        state.validate_state()
        assert {ts.state for ts in state.tasks.values()} <= {"memory"}
        assert set(data_of(self.worker)) == set(state.tasks)


@contextmanager
def simulated(seed: int) -> Iterator[Simulation]:
    """Make a simulation; the product has its own classes again at the end."""
    activation.install()
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Simulation(seed, monkeypatch)
