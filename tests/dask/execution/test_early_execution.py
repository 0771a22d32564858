"""Threads of workers that begin with tasks before the event loop handles the messages."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from operator import add
from typing import TYPE_CHECKING, Any

import pytest
from dask.sizeof import sizeof
from distributed import (
    Client,
    Nanny,
    Scheduler,
    Worker,
    WorkerPlugin,
    get_worker,
    rejoin,
    secede,
    worker_client,
)
from distributed.core import Status
from distributed.worker import get_data_from_worker
from distributed.worker_state_machine import ComputeTaskEvent, UnpauseEvent

from backhaul.dask import resources
from backhaul.dask.comm.inbox import SharedInbox
from backhaul.dask.compat import activation
from backhaul.dask.worker.core.ownership import StateOwner
from backhaul.dask.worker.early_execution import EarlyExecution
from backhaul.dask.worker.early_reader import EarlyReader
from tests.dask.execution.tasks import cluster

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually

#: Keys that threads have begun with by themselves, those whose end they have told, and those that
#: the state machine went through in one step
begun: list[Any] = []
told: list[Any] = []
whole: list[Any] = []
gates: dict[str, threading.Event] = {}
#: How often a task ran
counted: Counter[Any] = Counter()


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Note what threads begin with and tell."""
    begun.clear()
    told.clear()
    whole.clear()
    gates.clear()
    counted.clear()
    begin, tell = EarlyReader._begin, EarlyExecution.tell_ahead

    def noting_begin(self: EarlyReader, message: dict[str, Any]) -> EarlyExecution | None:
        found = begin(self, message)
        if found is not None:
            begun.append(message["key"])
        return found

    def noting_tell(self: EarlyExecution, *, is_last: bool) -> bool:
        is_told = tell(self, is_last=is_last)
        if is_told:
            told.append(self._key)
        return is_told

    def noting_lived(self: StateOwner, message: dict[str, Any], done: Any, **looks: bool) -> Any:
        key = message["key"]
        answer = in_rust(self, message, done, **looks)
        if answer is not None and answer[0]:
            whole.append(key)
        return answer

    in_rust = StateOwner.apply_completed_task
    monkeypatch.setattr(StateOwner, "apply_completed_task", noting_lived)
    monkeypatch.setattr(EarlyReader, "_begin", noting_begin)
    monkeypatch.setattr(EarlyExecution, "tell_ahead", noting_tell)
    activation.install()
    yield
    for gate in gates.values():
        gate.set()


def inc(value: int) -> int:
    return value + 1


async def chain(client: Client, count: int, value: int = 0) -> Any:
    """Run tasks, each of which waits for the one before it."""
    future: Any = client.submit(inc, value, pure=False)
    for _ in range(count - 1):
        future = client.submit(inc, future, pure=False)
    return await future


async def until_ahead(client: Client, eventually: Eventually) -> None:
    """Run tasks until a thread has begun with one by itself."""

    async def is_ahead() -> bool:
        await chain(client, 5)
        return bool(begun)

    for _ in range(1000):
        if await is_ahead():
            return
    pytest.fail("no thread began with a task by itself")


def watch_nothing(worker: Worker) -> None:
    """Turn off the checks of a test's state machine, by Dask's functions."""
    worker.state.validate = False
    worker.state.transition_counter_max = False


@pytest.mark.parametrize("validates", [True, False])
def test_a_chain_is_run_ahead_and_the_state_machine_goes_through_it(validates: bool) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        if not validates:
            watch_nothing(worker)
        for _ in range(5):
            assert await chain(client, 40) == 40
        assert len(told) > 50
        assert Counter(begun).most_common(1)[0][1] == 1
        assert worker.state.executed_count == 200
        # The story of one: as of any task
        key = told[-1]
        steps = [(each[1], each[2]) for each in worker.state.story(key) if each[0] == key]
        assert ("ready", "executing") in steps
        assert ("executing", "memory") in steps
        events = [each for each in worker.state.stimulus_log if getattr(each, "key", None) == key]
        assert [type(each).__name__ for each in events][:2] == [
            "ComputeTaskEvent",
            "ExecuteSuccessEvent",
        ]
        assert bool(whole) is not validates
        assert not worker.active_keys
        assert not worker._async_instructions
        worker.state.validate_state()

    run()


def test_another_worker_gets_a_result_that_a_thread_has_reported() -> None:
    """The event loop catches up before it says that there is no such result."""

    # In processes of their own: one event loop for all has always caught up.
    @cluster(1, 1, Worker=Nanny, timeout=300)
    async def run(client: Client, scheduler: Scheduler, a: Nanny, b: Nanny) -> None:
        here, there = a.worker_address, b.worker_address
        for address in (here, there):
            for number in range(5):
                await client.submit(inc, number, workers=[address], pure=False)
        for number in range(60):
            first = client.submit(inc, number, workers=[here], pure=False)
            second = client.submit(inc, first, workers=[there], pure=False)
            assert await second == number + 2

        def count(dask_worker: Worker) -> tuple[int, int]:
            log = [entry for entry in dask_worker.state.log if len(entry) > 2]
            told_ahead = sum(type(entry[-2]).__name__ == "SentStimulusId" for entry in log)
            return told_ahead, sum(entry[1] == "missing-dep" for entry in log)

        counted = await client.run(count)
        assert counted[here][0]
        assert not counted[there][1]

    run()


def test_reports_are_those_of_dask() -> None:
    """The messages of the same tasks, with and without."""
    found: dict[bool, list[dict[str, Any]]] = {}
    for is_on in (True, False):
        messages: list[dict[str, Any]] = []

        @cluster(
            1, config={"distributed.comm.backhaul.hot-path.worker-threads": is_on}, timeout=300
        )
        async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
            handle = scheduler.stream_handlers["task-finished"]

            def noting(**message: Any) -> Any:
                messages.append(dict(message))  # noqa: B023 - the cluster runs at once
                return handle(**message)

            scheduler.stream_handlers["task-finished"] = noting
            for number in range(60):
                future = client.submit(inc, number, key=f"inc-{number}")
                assert await future == number + 1
                ts = scheduler.tasks[f"inc-{number}"]
                assert (ts.nbytes, ts.type) == (sizeof(number + 1), "int")
                del future
            # Nothing is reported twice.
            keys = [each["key"] for each in messages]  # noqa: B023
            assert keys == [f"inc-{number}" for number in range(60)]

        run()
        found[is_on] = messages
    assert len(told) > 10
    changing = {"run_id", "stimulus_id", "thread", "startstops", "worker"}
    for ours, theirs in zip(found[True], found[False], strict=True):
        assert ours.keys() == theirs.keys()
        assert {k: v for k, v in ours.items() if k not in changing} == {
            k: v for k, v in theirs.items() if k not in changing
        }
        for message in (ours, theirs):
            assert message["stimulus_id"].startswith("task-finished-")
            # A result that takes more than 5 ms to be stored counts as written to disk.
            span, *stored = message["startstops"]
            assert span["action"] == "compute"
            assert all(each["action"] == "disk-write" for each in stored)
            assert span["start"] <= span["stop"]
            assert type(message["thread"]) is int


def test_a_task_that_asks_for_the_worker_is_executing(eventually: Eventually) -> None:
    def look() -> tuple[str, str]:
        worker = get_worker()
        (mine,) = worker.active_threads.values()
        return str(mine), worker.state.tasks[mine].state

    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        await until_ahead(client, eventually)
        looked: list[Any] = []
        for number in range(50):
            key, state = await client.submit(look, key=f"look-{number}")
            assert (key, state) == (f"look-{number}", "executing")
            looked.append(key)
            await chain(client, 3)
        assert set(looked) & set(begun)

    run()


def leave() -> int:
    secede()
    time.sleep(0.01)
    rejoin()
    return 1


def ask() -> int:
    with worker_client() as client:
        return int(client.submit(inc, 1, pure=False).result())


def fail(number: int) -> None:
    raise ValueError(number)


def test_tasks_that_leave_the_pool_ask_or_fail(eventually: Eventually) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        await until_ahead(client, eventually)
        for number in range(10):
            assert await client.submit(leave, key=f"leave-{number}") == 1
            assert await client.submit(ask, key=f"ask-{number}") == 2
            with pytest.raises(ValueError, match=str(number)):
                await client.submit(fail, number, key=f"fail-{number}")
            assert await chain(client, 3) == 3
        names = {str(key).split("-")[0] for key in begun}
        assert {"leave", "ask", "fail", "inc"} <= names
        assert not {key for key in told if str(key).startswith(("fail", "leave", "ask"))}

    run()


@resources(CPU=0)
def waits_for_others(ran: Any) -> str:
    counted[ran] += 1
    return threading.current_thread().name


def test_a_task_that_asks_for_no_thread_is_run_beside_the_others_once(
    eventually: Eventually,
) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        await until_ahead(client, eventually)
        for number in range(20):
            assert "Beside" in await client.submit(waits_for_others, number)
            await chain(client, 3)
        assert counted == dict.fromkeys(range(20), 1)

    run()


def hold(name: str) -> str:
    assert gates[name].wait(300)
    return name


def state_is(worker: Worker, key: str, state: str) -> bool:
    return getattr(worker.state.tasks.get(key), "state", None) == state


def runs(worker: Worker, key: str) -> bool:
    return key in worker.active_threads.values()


def lacks(worker: Worker, key: str) -> bool:
    return key not in worker.state.tasks


def has_heard_of(worker: Worker, scheduler: Scheduler, key: str) -> bool:
    """Tell whether a task has come, or waits at the scheduler."""
    queued = getattr(scheduler.tasks.get(key), "state", None) == "queued"
    return key in worker.state.tasks or queued


def test_a_long_task_holds_nothing_up(eventually: Eventually) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        for number in range(8):
            await chain(client, 3)
            name = f"hold-{number}"
            gates[name] = threading.Event()
            future = client.submit(hold, name, key=name)
            # The state machine handles it while it runs.
            await eventually(partial(state_is, worker, name, "executing"))
            # So does what comes now: another task waits for its turn.
            second = client.submit(inc, number, key=f"second-{number}")
            await eventually(partial(has_heard_of, worker, scheduler, f"second-{number}"))
            gates[name].set()
            assert await future == name
            assert await second == number + 1
        assert {key for key in begun if str(key).startswith("hold")}

    run()


def test_one_that_is_cancelled_while_it_runs_is_gone(eventually: Eventually) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        for number in range(8):
            await chain(client, 3)
            name = f"hold-{number}"
            gates[name] = threading.Event()
            future = client.submit(hold, name, key=name)
            await eventually(partial(runs, worker, name))
            await future.cancel()
            gates[name].set()
            await eventually(partial(lacks, worker, name))
            assert await chain(client, 3) == 3
        await eventually(lambda: not worker.state.executing)
        line = worker.executors["default"]._work_queue.local_queue  # type: ignore[attr-defined]
        assert not line.early_tasks
        assert {key for key in begun if str(key).startswith("hold")}

    run()


def test_a_worker_that_is_paused_begins_nothing(eventually: Eventually) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        # It would have the worker go on
        worker.periodic_callbacks["memory_monitor"].stop()
        await until_ahead(client, eventually)
        worker.status = Status.paused
        before = len(begun)
        futures = [client.submit(inc, number, pure=False) for number in range(3)]
        await asyncio.sleep(0.1)
        assert len(begun) == before
        worker.status = Status.running
        assert await client.gather(futures) == [1, 2, 3]

    run()


class Hears(WorkerPlugin):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        self.heard.append((key, finish))


def test_a_plugin_is_called_before_a_task_begins(eventually: Eventually) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        await until_ahead(client, eventually)
        plugin = Hears()
        await worker.plugin_add(plugin, name="hears")
        await chain(client, 1)
        before = len(begun)
        assert await chain(client, 30) == 30
        assert len(begun) == before
        assert any(finish == "executing" for _, finish in plugin.heard)

    run()


def test_switched_off_nothing_is_begun_ahead() -> None:
    @cluster(1, config={"distributed.comm.backhaul.hot-path.worker-threads": False}, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        assert await chain(client, 100) == 100
        assert not begun

    run()


def test_a_worker_closes_at_once_while_its_threads_wait(eventually: Eventually) -> None:
    @cluster(2, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        await until_ahead(client, eventually)
        start_s = time.monotonic()
        await worker.close()
        assert time.monotonic() - start_s < 10
        pool = worker.executors["default"]
        await eventually(lambda: not any(t.is_alive() for t in pool._threads))  # type: ignore[attr-defined]

    run()


@pytest.mark.parametrize("seed", range(4))
def test_random_work_with_dependencies_ends_as_it_should(seed: int) -> None:
    @cluster(1, 2, timeout=180)
    async def run(client: Client, scheduler: Scheduler, a: Worker, b: Worker) -> None:
        for worker in (a, b) if seed % 2 == 1 else ():
            watch_nothing(worker)
        chance = random.Random(seed)
        one: Any = None
        other: Any = None
        future: Any = None
        known: list[tuple[Any, int]] = [(client.submit(inc, 0, pure=False), 1)]
        for number in range(400):
            (one, x), (other, y) = chance.choice(known), chance.choice(known)
            if chance.random() < 0.05:
                gone = client.submit(inc, number, pure=False)
                await gone.cancel()
            kind = chance.random()
            if kind < 0.1:
                with pytest.raises(ValueError, match=str(number)):
                    await client.submit(fail, number, pure=False)
                continue
            if kind < 0.15:
                worker = chance.choice([a, b])
                worker.status = Status.paused
                await asyncio.sleep(0.002)
                worker.status = Status.running
            future = client.submit(add, one, other, pure=False)
            known.append((future, x + y))
            known = known[-30:]
            if kind < 0.7:
                assert await future == x + y
        for future, value in known:
            assert await future == value
        assert begun
        known.clear()
        one = other = future = None
        for worker in (a, b):
            line = worker.executors["default"]._work_queue.local_queue  # type: ignore[attr-defined]
            left: set[Any] = set()
            for _ in range(1000):
                # Failed tasks are held by their exceptions.
                left = {ts.state for ts in worker.state.tasks.values()} - {"error"}
                if not left and not line.early_tasks:
                    break
                await asyncio.sleep(0.01)
            assert not line.early_tasks
            assert not left
            worker.state.validate_state()
        assert bool(whole) is (seed % 2 == 1)

    run()


entered: list[str] = []


def wait_for(gate: str) -> int:
    entered.append(gate)
    gates[gate].wait(300)
    return 1


def wait_and_fail(gate: str) -> None:
    gates[gate].wait(300)
    raise ValueError(gate)


def test_a_task_that_comes_before_a_failure_is_handled_is_not_left_out(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    @cluster(1, timeout=180)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        await until_ahead(client, eventually)
        await eventually(lambda: not worker.state.tasks)
        for module in ("early_reader", "early_messages"):
            monkeypatch.setattr(f"backhaul.dask.worker.{module}.BEHIND_S", 60)
        entered.clear()
        for name in "abc":
            gates[name] = threading.Event()
        line = worker.executors["default"]._work_queue.local_queue  # type: ignore[attr-defined]
        inbox = worker.batched_stream.comm.inbox  # type: ignore[union-attr]

        taken = inbox.taken

        async def arrived(count: int) -> None:
            await eventually(lambda: inbox.taken + len(inbox.unhandled) >= taken + count)

        first = client.submit(wait_for, "a", key="first")
        await eventually(lambda: entered)
        while "first" not in begun:
            # The event loop has begun it, as no thread was waiting just then.
            gates["a"].set()
            await first
            del first
            await eventually(lambda: "first" not in worker.state.tasks)
            gates["a"].clear()
            entered.clear()
            taken = inbox.taken
            first = client.submit(wait_for, "a", key="first")
            await eventually(lambda: entered)
        bad = client.submit(wait_and_fail, "b", key="bad")
        await arrived(2)
        third = client.submit(wait_for, "c", key="third")
        await arrived(3)
        gates["a"].set()
        await eventually(lambda: "bad" in begun)
        # No thread has seen this one when the other fails.
        left = client.submit(inc, 1, key="left")
        await arrived(4)
        # The event loop does not handle the failure before there is nothing else to begin.
        gates["b"].set()
        gates["c"].set()
        deadline_s = time.monotonic() + 60
        while "third" not in told and time.monotonic() < deadline_s:
            time.sleep(0.01)
        time.sleep(0.1)
        assert begun[-3:] == ["first", "bad", "third"]
        assert await asyncio.wait_for(left, 30) == 2
        last = client.submit(inc, left, key="last")
        assert await asyncio.wait_for(last, 30) == 3
        assert [await first, await third] == [1, 1]
        with pytest.raises(ValueError, match="b"):
            await bad
        assert not line.early_tasks or set(line.early_tasks) <= set(told)

    run()


def test_a_worker_that_is_killed_loses_nothing() -> None:
    config = {"distributed.scheduler.allowed-failures": 100}

    @cluster(1, 1, config=config, Worker=Nanny, timeout=180)
    async def run(client: Client, scheduler: Scheduler, a: Nanny, b: Nanny) -> None:
        for nanny in (a, b):
            running = asyncio.create_task(chain(client, 300))
            await asyncio.sleep(0.2)
            await nanny.kill()
            assert await asyncio.wait_for(running, 120) == 300

    run()


def test_a_message_that_is_odd_is_the_event_loops_to_refuse(eventually: Eventually) -> None:
    """Its thread goes on, and so does the next worker."""

    @cluster(1, 1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, a: Worker, b: Worker) -> None:
        await until_ahead(client, eventually)
        for message in ({"op": "compute-task", "key": "odd"}, {"op": "free-keys", "keys": 7}):
            scheduler.stream_comms[a.address].send(message)
        # Dask's worker ends where its stream does.
        await eventually(lambda: a.address not in scheduler.workers)
        assert await chain(client, 10) == 10

    run()


def test_ended_tasks_of_a_message_are_handled_and_the_rest_left_to_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message of many tasks takes longer than the event loop may be behind."""
    monkeypatch.setattr("backhaul.dask.worker.early_messages.LEFT_S", 300)
    parts: list[int] = []
    take_parts = SharedInbox._take_parts

    def noting(self: SharedInbox, count: int) -> Any:
        parts.append(count)
        return take_parts(self, count)

    monkeypatch.setattr(SharedInbox, "_take_parts", noting)

    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        watch_nothing(worker)
        executed = 0
        for _ in range(50):
            parts.clear()
            futures = client.map(pause, [0.004] * 20, pure=False)
            assert await client.gather(futures) == [0.004] * 20
            executed += 20
            if parts and {each.key for each in futures} <= set(begun):
                break
        else:
            pytest.fail("the event loop has always begun some of the tasks")
        # Everything once, in order
        assert worker.state.executed_count == executed
        came = [each.key for each in worker.state.stimulus_log if type(each) is ComputeTaskEvent]
        assert came[-20:] == [each.key for each in futures]
        worker.state.validate_state()

    run()


def pause(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def test_a_request_without_need_of_begun_tasks_handles_none_of_them(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a look for missing keys, and for results that are on the worker."""

    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        watch_nothing(worker)
        await until_ahead(client, eventually)
        here = client.submit(inc, 1, pure=False)
        await here
        await eventually(lambda: here.key in worker.data)
        for module in ("early_reader", "early_messages"):
            monkeypatch.setattr(f"backhaul.dask.worker.{module}.BEHIND_S", 60)
        line: Any = worker.executors["default"]._work_queue.local_queue  # type: ignore[attr-defined]
        for _ in range(100):
            gates["first"] = threading.Event()
            first = client.submit(wait_for, "first", pure=False)
            await eventually(lambda: "first" in entered)
            entered.clear()
            if begun[-1] == first.key:
                break
            # The event loop has begun it, as no thread was waiting just then.
            gates["first"].set()
            await first
        else:
            pytest.fail("no thread began with a task by itself")
        worker.find_missing()
        found = await get_data_from_worker(worker.rpc, [here.key], worker.address)
        assert found == {"status": "OK", "data": {here.key: 2}}
        assert first.key in line.early_tasks
        assert not line.early_tasks[first.key].is_announced
        # Any other event makes the loop handle it.
        worker.handle_stimulus(UnpauseEvent(stimulus_id="test"))
        assert first.key not in line.early_tasks
        assert worker.state.tasks[first.key].state == "executing"
        gates["first"].set()
        assert await first == 1
        worker.state.validate_state()

    run()


@pytest.mark.parametrize("validates", [True, False])
def test_a_reported_task_holds_no_context(monkeypatch: pytest.MonkeyPatch, validates: bool) -> None:
    """It gets another one where the state machine handles the release."""
    dropped: list[bool] = []
    made: list[Any] = []
    end, whole_context = EarlyExecution._end, EarlyExecution._whole_context

    def noting_end(self: EarlyExecution) -> None:
        end(self)
        dropped.append(self._context is None)

    def noting_made(self: EarlyExecution) -> Any:
        if self._context is None:
            made.append(self._key)
        return whole_context(self)

    monkeypatch.setattr(EarlyExecution, "_end", noting_end)
    monkeypatch.setattr(EarlyExecution, "_whole_context", noting_made)

    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        if not validates:
            watch_nothing(worker)
        for _ in range(50):
            futures = client.map(inc, range(20), pure=False)
            assert await client.gather(futures) == list(range(1, 21))
            if len(dropped) > 20 and (made or not validates):
                break
        else:
            pytest.fail("no thread began with tasks by itself")
        assert all(dropped)
        states = [worker.state.tasks[each.key].state for each in futures]
        assert states == ["memory"] * 20
        worker.state.validate_state()

    run()
