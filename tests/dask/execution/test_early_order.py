"""Order of tasks that threads begin early, of messages and of failures."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from operator import add
from typing import TYPE_CHECKING, Any

import pytest
from distributed import (
    Client,
    Nanny,
    Scheduler,
    Worker,
)
from distributed.core import Status
from distributed.worker import get_data_from_worker
from distributed.worker_state_machine import ComputeTaskEvent, UnpauseEvent

from backhaul.dask.comm.inbox import SharedInbox
from backhaul.dask.worker.early_execution import EarlyExecution
from tests.dask.conftest import FORKED
from tests.dask.execution.early import (
    begun,
    chain,
    fail,
    gates,
    inc,
    told,
    until_ahead,
    watch_nothing,
    whole,
)
from tests.dask.execution.tasks import cluster

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually

pytestmark = pytest.mark.usefixtures("watched")


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
        for number in range(200):
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
    config = {"distributed.scheduler.allowed-failures": 100, **FORKED}

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
