"""Tasks that a thread takes one after another: their order, and what the state machine sees."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter
from time import sleep
from typing import TYPE_CHECKING, Any

import pytest
from distributed import (
    Client,
    Reschedule,
    Scheduler,
    Worker,
    WorkerPlugin,
    get_worker,
    rejoin,
    secede,
    wait,
)
from distributed.core import Status
from distributed.worker_state_machine import ComputeTaskEvent, StealRequestEvent

from backhaul.dask.compat import activation
from backhaul.dask.worker.local_queue import AHEAD_MAX, LocalQueue
from tests.dask.execution.tasks import cluster, is_idle
from tests.dask.gates import Gates

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually

#: Names of tasks in the order in which they began, and what each waits for
begun: list[Any] = []
gates = Gates()
#: Keys of tasks that a thread took by itself
taken: list[Any] = []

ALL_AT_ONCE = {"distributed.scheduler.worker-saturation": "inf"}


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Note what threads take, and check what is laid out each time."""
    begun.clear()
    gates.clear()
    taken.clear()
    ended, lay_out = LocalQueue.ended, LocalQueue._stage_ready_tasks

    def noting_ended(self: LocalQueue, item: Any, *, is_last: bool) -> Any:
        following: Any = ended(self, item, is_last=is_last)
        if following is not None:
            taken.append(following.task_state.key)
        return following

    def checked_lay_out(self: LocalQueue) -> None:
        lay_out(self)
        check(self)

    monkeypatch.setattr(LocalQueue, "ended", noting_ended)
    monkeypatch.setattr(LocalQueue, "_stage_ready_tasks", checked_lay_out)
    activation.install()
    yield
    gates.open_all()


def check(line: LocalQueue) -> None:
    """See that what is laid out comes first, and the state machine knows what threads do."""
    state = line.worker.state
    ready: list[Any] = sorted(state.ready, key=attrgetter("priority"))
    laid_out = [item.task_state for item in line._next]
    assert laid_out == ready[: len(laid_out)]
    assert len(state.executing) <= state.nthreads
    for key in list(line.worker.active_threads.values()):
        # Its message is still to be handled, or the worker has been paused since.
        if key in line.early_tasks:
            continue
        assert state.tasks[key].state in ("executing", "long-running", "cancelled", "resumed")


def begin(name: str) -> str:
    begun.append(name)
    return name


def held(name: str) -> str:
    begun.append(name)
    assert gates[name].wait(300)
    return name


def local_queue_of(worker: Worker) -> LocalQueue:
    line: LocalQueue = worker.executors["default"]._work_queue.local_queue  # type: ignore[attr-defined]
    return line


async def until_begun(name: str, eventually: Eventually) -> None:
    await eventually(lambda: name in begun)


async def hold(client: Client, eventually: Eventually) -> Any:
    """Keep the one thread busy, so that what is submitted waits."""
    first = client.submit(held, "first", key="first", priority=1000)
    await until_begun("first", eventually)
    return first


def in_order(client: Client, *functions: Any) -> list[Any]:
    """Submit functions that are called with a, b, c… and are to run in that order."""
    return [
        client.submit(function, name, key=name, priority=-number, pure=False)
        for number, (function, name) in enumerate(zip(functions, "abcdefgh", strict=False))
    ]


@cluster(1, config=ALL_AT_ONCE)
async def test_a_thread_takes_tasks_in_the_order_of_the_state_machine(
    client: Client,
    scheduler: Scheduler,
    worker: Worker,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # How far the scheduler's clock is off, which corrects times of tasks. Heartbeats measure
    # it, badly on a busy machine, and those that are under way count.
    uncorrected = property(lambda _: 0.0, lambda _, value: None)
    monkeypatch.setattr(Worker, "scheduler_delay", uncorrected, raising=False)
    first = await hold(client, eventually)
    urgencies = random.Random(1).sample(range(100), 100)
    futures = [
        client.submit(begin, f"task-{urgency}", key=f"task-{urgency}", priority=urgency)
        for urgency in urgencies
    ]
    await eventually(lambda: len(worker.state.ready) == 100)
    gates["first"].set()
    await wait([first, *futures])
    expected = [f"task-{urgency}" for urgency in sorted(urgencies, reverse=True)]
    assert begun == ["first", *expected]
    assert len(taken) >= AHEAD_MAX
    told = [entry[0] for entry in worker.state.log if entry[1:3] == ("ready", "executing")]
    assert told == begun
    # On a busy machine, to store a result may take so long that it counts as a write to disk.
    starts = [
        next(each for each in worker.state.tasks[key].startstops if each["action"] == "compute")
        for key in expected
    ]
    for before, after in pairwise(starts):
        assert before["stop"] <= after["start"] + 1e-3
    await eventually(lambda: is_idle(worker))
    assert not local_queue_of(worker)._items


@cluster(1, config=ALL_AT_ONCE)
async def test_a_task_that_a_thread_has_taken_is_found_executing(
    client: Client, scheduler: Scheduler, worker: Worker, eventually: Eventually
) -> None:
    first = await hold(client, eventually)
    futures = in_order(client, begin, held)
    await eventually(lambda: len(worker.state.ready) == 2)
    # The event loop waits here, so that it handles nothing.
    gates["first"].set()
    for _ in range(6000):
        if "b" in begun:
            break
        sleep(0.01)
    states = {name: worker.state.tasks[name].state for name in ("first", "a", "b")}
    assert states == {"first": "executing", "a": "ready", "b": "ready"}
    worker.handle_stimulus(StealRequestEvent(key="b", stimulus_id="steal"))
    states = {name: worker.state.tasks[name].state for name in ("first", "a", "b")}
    assert states == {"first": "memory", "a": "memory", "b": "executing"}
    gates["b"].set()
    assert await client.gather([first, *futures]) == ["first", "a", "b"]
    assert taken == ["a", "b"]


@cluster(1, config=ALL_AT_ONCE)
async def test_a_result_does_not_wait_for_a_long_task_behind_it(
    client: Client, scheduler: Scheduler, worker: Worker, eventually: Eventually
) -> None:
    first = await hold(client, eventually)
    short, long = in_order(client, begin, held)
    await eventually(lambda: len(worker.state.ready) == 2)
    gates["first"].set()
    assert await asyncio.wait_for(short, 300) == "a"
    await eventually(lambda: worker.state.tasks["b"].state == "executing")
    assert not long.done()
    # It can be cancelled as any task that executes, and is wanted again.
    await long.cancel()
    await eventually(lambda: worker.state.tasks["b"].state == "cancelled")
    again = client.submit(held, "b", key="b", pure=False)
    await eventually(lambda: worker.state.tasks["b"].state == "executing")
    gates["b"].set()
    assert await again == "b"
    assert await first == "first"


@cluster(1, config=ALL_AT_ONCE)
async def test_a_dependent_task_goes_before_tasks_that_were_laid_out(
    client: Client, scheduler: Scheduler, worker: Worker, eventually: Eventually
) -> None:
    first = await hold(client, eventually)
    later = in_order(client, begin, begin, begin)
    await eventually(lambda: len(worker.state.ready) == 3)
    # The scheduler would send it only later.
    needs = ComputeTaskEvent.dummy(
        "needs", who_has={"first": [worker.address]}, priority=(-2000,), stimulus_id="needs"
    )
    like: Any = worker.state.tasks["a"]
    needs.run_spec = like.run_spec.substitute({}, key="needs")
    needs.span_id = like.span_id
    worker.handle_stimulus(needs)
    assert worker.state.tasks["first"].dependents
    gates["first"].set()
    await wait(later)
    # The task that is next when the first one ends is known before its result is there.
    told = [entry[0] for entry in worker.state.log if entry[1:3] == ("ready", "executing")]
    assert told == ["first", "a", "needs", "b", "c"]
    assert first.status != "error"


class Listening(WorkerPlugin):
    """Notes each start, and what had begun by then."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, bool]] = []

    def setup(self, worker: Worker) -> None:
        self.worker = worker

    def transition(self, key: Any, start: Any, finish: Any, **_: Any) -> None:
        if finish == "executing":
            self.heard.append((key, key in begun))


@cluster(1, config=ALL_AT_ONCE)
async def test_a_plugin_is_called_for_each_task_before_it_begins(
    client: Client, scheduler: Scheduler, worker: Worker, eventually: Eventually
) -> None:
    plugin = Listening()
    await worker.plugin_add(plugin, name="listening")
    first = await hold(client, eventually)
    futures = in_order(client, *[begin] * 8)
    await eventually(lambda: len(worker.state.ready) == 8)
    gates["first"].set()
    await wait([first, *futures])
    assert plugin.heard == [(name, False) for name in ("first", *"abcdefgh")]
    assert not taken
    # As soon as it is gone, threads go on by themselves again.
    await worker.plugin_remove(name="listening")
    gates.clear()
    begun.clear()
    again = client.submit(held, "again", key="again")
    await until_begun("again", eventually)
    more = client.map(begin, range(20))
    await eventually(lambda: len(worker.state.ready) == 20)
    gates["again"].set()
    await wait([again, *more])
    assert taken


def leave(name: str) -> str:
    secede()
    return held(name)


@cluster(1, config=ALL_AT_ONCE)
async def test_a_task_that_leaves_the_pool_takes_nothing_more_with_it(
    client: Client, scheduler: Scheduler, worker: Worker, eventually: Eventually
) -> None:
    first = await hold(client, eventually)
    futures = in_order(client, begin, leave, begin)
    await eventually(lambda: len(worker.state.ready) == 3)
    gates["first"].set()
    assert await asyncio.wait_for(futures[2], 300) == "c"
    assert worker.state.tasks["b"].state == "long-running"
    more = client.map(begin, range(5))
    await wait(more)
    gates["b"].set()
    assert await client.gather([first, futures[1]]) == ["first", "b"]
    assert taken[:2] == ["a", "b"]


@cluster(1, config=ALL_AT_ONCE)
async def test_a_worker_that_pauses_begins_nothing_more(
    client: Client, scheduler: Scheduler, worker: Worker, eventually: Eventually
) -> None:
    # It has a worker go on that is paused for no want of memory.
    worker.periodic_callbacks["memory_monitor"].stop()
    first = await hold(client, eventually)
    futures = in_order(client, begin, held, begin)
    await eventually(lambda: len(worker.state.ready) == 3)
    gates["first"].set()
    await until_begun("b", eventually)
    worker.status = Status.paused
    gates["b"].set()
    await eventually(lambda: is_idle(worker))
    assert "c" not in begun
    assert worker.state.tasks["c"].state == "ready"
    worker.status = Status.running
    assert await client.gather([first, *futures]) == ["first", "a", "b", "c"]


def come_back(name: str) -> int:
    secede()
    begun.append(name)
    assert gates[name].wait(300)
    rejoin()
    return len(begun)


def slow(number: int) -> None:
    begun.append(number)
    sleep(0.01)
    if number == 3:
        gates["a"].set()


@cluster(1, config=ALL_AT_ONCE)
async def test_a_thread_that_comes_back_does_not_wait_for_the_end_of_a_run(
    client: Client, scheduler: Scheduler, worker: Worker, eventually: Eventually
) -> None:
    (returning,) = in_order(client, come_back)
    await until_begun("a", eventually)

    futures = [client.submit(slow, number, priority=-number, pure=False) for number in range(40)]
    assert await returning < 35
    await wait(futures)
    assert taken


def count_down(number: int, kind: str) -> int:
    worker = get_worker()
    left: dict[int, int] = worker.__dict__.setdefault("_left", {})
    if kind == "reschedule" and left.setdefault(number, 2) > 0:
        left[number] -= 1
        raise Reschedule
    if kind == "fail":
        raise ValueError(number)
    if kind == "secede":
        secede()
    if kind == "sleep":
        sleep(0.002)
    return number


KINDS = [*["quick"] * 12, "sleep", "sleep", "fail", "reschedule", "secede"]


@pytest.mark.parametrize("seed", range(3))
def test_random_work_ends_as_it_should(seed: int) -> None:
    @cluster(1, 3, config=ALL_AT_ONCE, timeout=300)
    async def run(client: Client, scheduler: Scheduler, a: Worker, b: Worker) -> None:
        chosen = random.Random(seed)
        wanted: list[tuple[Any, int, str]] = []
        cancelled = []
        for number in range(300):
            kind = chosen.choice(KINDS)
            # Many depend on others, whatever becomes of these.
            needs = [future for future, _, its in wanted[-20:] if its != "fail"]
            inputs = chosen.sample(needs, min(len(needs), chosen.choice([0, 0, 1, 3])))
            future = client.submit(
                lambda number, kind, *_: count_down(number, kind),
                number,
                kind,
                *inputs,
                key=f"{kind}-{number}",
                priority=chosen.randrange(5),
                pure=False,
            )
            if chosen.random() < 0.1 and kind != "fail":
                cancelled.append(future)
            else:
                wanted.append((future, number, kind))
            if number % 40 == 0:
                await asyncio.sleep(0.01)
                for gone in cancelled:
                    await gone.cancel()
                cancelled.clear()
                paused = chosen.choice([a, b])
                paused.status = Status.paused
                await asyncio.sleep(0.005)
                paused.status = Status.running
        for future, number, kind in wanted:
            if kind == "fail":
                with pytest.raises(ValueError, match=str(number)):
                    await future
            else:
                assert await future == number
        assert taken

    run()


def test_the_invariants_of_the_queue_are_checked_where_dask_validates() -> None:
    checks: list[None] = []

    class Validated(LocalQueue):
        def validate(self) -> None:
            super().validate()
            checks.append(None)

    @cluster(1)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        assert worker.state.validate
        assert await client.gather(client.map(abs, range(50))) == list(range(50))
        line: Any = local_queue_of(worker)
        line.__class__ = Validated
        assert await client.gather(client.map(abs, range(50, 100))) == list(range(50, 100))
        assert checks
        with line.lock:
            timer, line._timer = line._timer, None
            line._is_called = False
            # An ended task for which the event loop is not called
            line._ended.append(None)
            with pytest.raises(AssertionError, match="nothing wakes the event loop"):
                line.validate()
            line._ended.pop()
            line._timer = timer

    run()
