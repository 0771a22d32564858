"""What a worker's state machine goes through when somebody looks, and not before."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from operator import add
from typing import TYPE_CHECKING, Any

import pytest
from distributed import Client, Scheduler, Status, Worker, WorkerPlugin, get_worker
from distributed.worker import get_data_from_worker

from backhaul.dask.compat import activation
from backhaul.dask.worker import backlog
from backhaul.dask.worker.backlog import Backlog
from backhaul.dask.worker.backlog_replay import Lived
from backhaul.dask.worker.local_queue import line_of
from tests.dask.execution.tasks import cluster

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually

#: How much was worked off, each time
worked_off: list[int] = []


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Note what is worked off."""
    worked_off.clear()
    work_off = Backlog.work_off

    def noting(self: Backlog, most: int | None = None) -> None:
        before = len(self._noted)
        work_off(self, most)
        if before:
            worked_off.append(before - len(self._noted))

    monkeypatch.setattr(Backlog, "work_off", noting)
    activation.install()


#: Nothing is noted while Rust has the state
IN_PYTHON = {"distributed.comm.backhaul.hot-path.worker-core": False}


def backlog_of(worker: Worker) -> Backlog:
    line: Any = line_of(worker)
    found: Backlog = line.backlog
    return found


def inc(value: int) -> int:
    return value + 1


def quiet(run: Callable[..., Any]) -> Callable[[], None]:
    """Make a test of a worker whose state machine nobody looks at."""

    @cluster(1, config=IN_PYTHON, timeout=300)
    async def test(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        worker.state.validate = False
        worker.state.transition_counter_max = False
        for name in ("heartbeat", "find-missing", "memory_monitor"):
            if name in worker.periodic_callbacks:
                worker.periodic_callbacks[name].stop()
        await run(client, worker)

    made: Callable[[], None] = test
    return made


async def noted(client: Client, worker: Worker, count: int) -> list[Any]:
    """Run tasks one after another until so many are noted; give their futures."""
    futures: list[Any] = []
    for _ in range(50):
        future: Any = client.submit(inc, 0, pure=False)
        for _ in range(count):
            future = client.submit(inc, future, pure=False)
            futures.append(future)
        await future
        # The event loop hears of what threads have done 10 ms later, with nobody to tell when.
        await asyncio.sleep(0.05)
        if len(backlog_of(worker)._lived) >= count:
            return futures
    pytest.fail("nothing is noted")


def test_who_looks_sees_all_and_who_counts_has_counted(eventually: Eventually) -> None:
    async def run(client: Client, worker: Worker) -> None:
        futures = await noted(client, worker, 20)
        state = worker.state
        was_worked_off = len(worked_off)
        behind = backlog_of(worker)
        keys = set(behind._lived)
        metrics = await worker.get_metrics()
        assert metrics["task_counts"]["memory"] == len(worker.data)
        assert metrics["managed_bytes"] == sum(map(int.__sizeof__, worker.data.values()))
        assert state.executed_count >= len(futures)
        assert len(worked_off) == was_worked_off
        assert behind.has_noted()
        # Now somebody looks.
        assert keys <= state.tasks.keys()
        assert not behind.has_noted()
        assert len(worked_off) == was_worked_off + 1
        state.validate_state()
        for key in keys:
            steps = [(each[1], each[2]) for each in state.story(key) if each[0] == key]
            assert ("ready", "executing") in steps
            assert ("executing", "memory") in steps
        times = [entry[-1] for entry in state.log]
        assert times == sorted(times)
        futures.clear()
        await eventually(lambda: not worker.data)
        assert not state.tasks
        state.validate_state()

    quiet(run)()


def test_who_has_kept_the_tasks_sees_all(eventually: Eventually) -> None:
    @quiet
    async def run(client: Client, worker: Worker) -> None:
        # As long as it had none: the backlog comes with the first task.
        kept = worker.state.tasks
        looks: tuple[Callable[[Any], str], ...] = (
            lambda key: kept[key].state,
            lambda key: (kept.get(key) or kept[key]).state,
            lambda key: dict(kept)[key].state,
            lambda key: {ts.key: ts.state for ts in kept.values()}[key],
        )
        for look in looks:
            futures = await noted(client, worker, 20)
            assert backlog_of(worker).has_noted()
            assert look(futures[-1].key) == "memory"
            assert not backlog_of(worker).has_noted()
            assert kept is worker.state.tasks

    run()


def test_what_is_freed_before_anybody_looks_is_gone_from_data_at_once(
    eventually: Eventually,
) -> None:
    async def run(client: Client, worker: Worker) -> None:
        was_worked_off = -1
        for _ in range(10):
            futures = await noted(client, worker, 20)
            were_all = worker.data.keys() == backlog_of(worker)._lived.keys()
            was_worked_off = len(worked_off)
            del futures
            await eventually(lambda: not worker.data)
            assert worker.state.nbytes == 0
            assert not worker.threads
            assert not worker.state.task_counter.current_count()
            # Of the first ones the state machine was told.
            if were_all:
                break
        assert len(worked_off) == was_worked_off
        assert not worker.state.tasks
        worker.state.validate_state()

    quiet(run)()


def test_much_of_it_is_worked_off_and_what_is_out_of_the_logs_forgotten(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(backlog, "_NOTED_MAX", 30)
    monkeypatch.setattr(backlog, "_WORKED_OFF", 10)

    async def run(client: Client, worker: Worker) -> None:
        futures = await noted(client, worker, 20)
        behind = backlog_of(worker)
        behind._events_max = behind._entries_max = 20
        for _ in range(10):
            futures += await noted(client, worker, 5)
            assert len(backlog_of(worker)._noted) <= 31
        assert worker.state.executed_count >= len(futures)
        del futures
        await eventually(lambda: not worker.data)
        gc.collect()
        were_alive = count_alive(Lived)
        gc.disable()
        try:
            for _ in range(20):
                await noted(client, worker, 5)
                assert len(backlog_of(worker)._noted) <= 31
            await eventually(lambda: not worker.data)
            # What is forgotten is gone at once.
            assert count_alive(Lived) <= were_alive + 31
        finally:
            gc.enable()
        assert not worker.state.tasks
        worker.state.validate_state()

    quiet(run)()


def test_results_are_given_away_without_a_look() -> None:
    @cluster(1, config=IN_PYTHON, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        worker.state.validate = False
        worker.state.transition_counter_max = False
        futures = await noted(client, worker, 20)
        keys = [future.key for future in futures]
        behind = backlog_of(worker)
        asked = [*keys, "unknown"]

        async def get() -> tuple[Any, dict[str, Any]]:
            count = len(worker.transfer_outgoing_log)
            found = await get_data_from_worker(worker.rpc, asked, worker.address, who="me")
            # It is noted behind the answer.
            while len(worker.transfer_outgoing_log) == count:
                await asyncio.sleep(0.001)
            return found, worker.transfer_outgoing_log[-1]

        sent = worker.transfer_outgoing_count_total
        was_worked_off = len(worked_off)
        found, noted_of = await get()
        assert behind.has_noted()
        assert len(worked_off) == was_worked_off
        assert found == {"status": "OK", "data": {key: worker.data[key] for key in keys}}
        assert worker.transfer_outgoing_count_total == sent + 1
        assert (worker.transfer_outgoing_count, worker.transfer_outgoing_bytes) == (0, 0)
        # Dask says the same of it.
        assert keys[0] in worker.state.tasks
        assert not behind.has_noted()
        again, noted_again = await get()
        assert again == found
        timed = {"start", "stop", "middle", "duration", "bandwidth"}
        assert noted_of.keys() == noted_again.keys()
        for name in noted_of.keys() - timed:
            assert noted_of[name] == noted_again[name]
        assert noted_of["bandwidth"] == noted_of["total"] / noted_of["duration"]
        assert noted_of["keys"] == {key: worker.state.tasks[key].nbytes for key in keys}

    run()


def test_dask_says_so_if_a_worker_may_give_nothing_away() -> None:
    @cluster(1, config=IN_PYTHON, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        worker.state.validate = False
        worker.state.transition_counter_max = False
        futures = await noted(client, worker, 20)
        worker.transfer_outgoing_count = 10**6
        asked = scheduler.rpc(worker.address).get_data(keys=[futures[0].key])
        assert await asked == {"status": "busy"}
        worker.transfer_outgoing_count = 0

    run()


def count_alive(kind: type) -> int:
    return sum(type(each) is kind for each in gc.get_objects())


def test_a_task_that_looks_sees_those_before_it() -> None:
    def look(_: Any) -> list[str]:
        worker: Any = get_worker()
        return [task.state for task in worker.state.tasks.values()]

    async def run(client: Client, worker: Worker) -> None:
        futures = await noted(client, worker, 20)
        states = await client.submit(look, futures[-1], pure=False)
        assert states.count("memory") >= 20
        assert states.count("executing") == 1

    quiet(run)()


def test_a_plugin_hears_of_what_comes_after_it() -> None:
    class Hears(WorkerPlugin):
        def __init__(self) -> None:
            self.heard: set[Any] = set()

        def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
            self.heard.add(key)

    async def run(client: Client, worker: Worker) -> None:
        futures = await noted(client, worker, 20)
        before = {future.key for future in futures}
        plugin = Hears()
        await worker.plugin_add(plugin=plugin, name="hears")
        later = [client.submit(inc, number, pure=False) for number in range(5)]
        await client.gather(later)
        assert {future.key for future in later} <= plugin.heard
        assert not plugin.heard & before
        assert not any(each.key in backlog_of(worker)._lived for each in later)
        worker.state.validate_state()

    quiet(run)()


class Data:
    """A result to watch the end of."""


alive: weakref.WeakSet[Data] = weakref.WeakSet()


def make(_: Any) -> Data:
    made = Data()
    alive.add(made)
    return made


def test_tasks_are_noted_whose_inputs_others_have_as_well(eventually: Eventually) -> None:
    # Which gives up copies
    config = {"distributed.scheduler.active-memory-manager.start": False, **IN_PYTHON}

    @cluster(1, 1, config=config, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker, other: Worker) -> None:
        worker.state.validate = False
        worker.state.transition_counter_max = False
        (given,) = await client.scatter([1], broadcast=True)
        # It has a copy, and gets no tasks. The monitor has a worker go on that has memory.
        other.periodic_callbacks["memory_monitor"].stop()
        other.status = Status.paused
        await eventually(lambda: scheduler.workers[other.address].status != Status.running)
        behind: Any = None
        futures: list[Any] = []
        for _ in range(50):
            futures = [client.submit(add, given, number, pure=False) for number in range(30)]
            assert await client.gather(futures) == list(range(1, 31))
            # The event loop hears of what threads have done 10 ms later, with nobody to tell when.
            await asyncio.sleep(0.05)
            behind = behind or getattr(line_of(worker), "backlog", None)
            if behind is not None and behind._count >= 20:
                break
        assert behind._count >= 20
        state = worker.state
        assert state.tasks[given.key].who_has == {other.address}
        assert state.has_what[other.address] == {given.key}
        assert not behind.has_noted()
        state.validate_state()
        await other.close()
        assert await client.submit(add, given, 5, pure=False) == 6
        futures.clear()
        await eventually(lambda: state.tasks.keys() == {given.key})
        state.validate_state()

    run()


def test_results_are_held_by_the_data_alone(eventually: Eventually) -> None:
    async def run(client: Client, worker: Worker) -> None:
        await noted(client, worker, 20)
        futures = [client.submit(make, number, pure=False) for number in range(20)]
        await client.gather(futures)
        assert len(alive) == 20
        del futures
        await eventually(lambda: not alive)

    quiet(run)()


def test_a_key_that_comes_again_is_computed_again(eventually: Eventually) -> None:
    async def run(client: Client, worker: Worker) -> None:
        await noted(client, worker, 20)
        for number in range(30):
            future = client.submit(inc, number, key="again")
            assert await future == number + 1
            del future
            await eventually(lambda: "again" not in worker.data)
        assert worker.state.executed_count >= 50
        worker.state.validate_state()

    quiet(run)()
