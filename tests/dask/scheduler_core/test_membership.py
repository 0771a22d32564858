"""Workers that come, go, pause and go on while the core has the state, which stays there."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import random
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from distributed import KilledWorker, Scheduler, SchedulerPlugin, Status, Worker, wait
from distributed.utils_test import captured_logger, gen_test, inc, slowinc

from tests.dask.conftest import Eventually
from tests.dask.scheduler_core.test_live import KEY, add, cluster

go_on = threading.Event()


def when_told(number: int) -> int:
    """Wait until told."""
    assert go_on.wait(300)
    return number + 1


pytestmark = pytest.mark.usefixtures("by_engine", "is_told")


@pytest.fixture
def is_told() -> Iterator[None]:
    """Let tasks wait for an event, until the end of the test at the latest."""
    go_on.clear()
    yield
    go_on.set()


@gen_test()
async def test_a_worker_that_ends_loses_nothing_and_the_core_goes_on(
    eventually: Eventually,
) -> None:
    async with cluster(workers=3) as (c, s, core, workers):
        futures = c.map(slowinc, range(60), delay=0.01)
        total = c.submit(add, *futures)
        await wait(futures[:5])
        address = workers[0].address
        await workers[0].close()
        assert await total == sum(range(1, 61))
        await eventually(lambda: address not in s.workers)
        assert core.is_active, core.escapes
        assert not core.escapes
        assert address not in core.core.dump(tasks=False)["workers"]
        core.escape("to look at it")
        s.validate_state()
        assert set(s.workers) == {worker.address for worker in workers[1:]}


@gen_test()
async def test_results_that_one_worker_had_are_computed_again(eventually: Eventually) -> None:
    async with cluster() as (c, s, core, workers):
        futures = c.map(inc, range(40), pure=False)
        await wait(futures)
        # A worker's thread reports a result before its event loop files that.
        await eventually(lambda: sum(len(worker.data) for worker in workers) == 40)
        lost = {str(key) for key in workers[0].data}
        assert lost
        address = workers[0].address
        await s.remove_worker(address, stimulus_id="test", close=True)
        assert await c.gather(futures) == list(range(1, 41))
        assert core.is_active, core.escapes
        (told,) = (event for _, event in s.get_events(address) if "lost-computed-tasks" in event)
        assert told["lost-computed-tasks"] == lost
        assert told["processing-tasks"] == told["lost-scattered-tasks"] == set()
        assert not told["expected"]


@gen_test()
async def test_a_client_that_could_not_fetch_asks_again_and_is_answered() -> None:
    async with cluster() as (c, _, core, _):
        future: Any = c.submit(inc, 1)
        assert await future == 2
        # As `Client.gather` does with what a worker that has left was asked for.
        c.futures[future.key].lose()
        assert future.status == "lost"
        c._send_to_scheduler({"op": "report-key", "key": future.key})
        await wait(future)
        assert future.status == "finished"
        assert core.is_active, core.escapes
        assert not core.escapes


@gen_test()
async def test_a_task_that_kills_its_workers_is_blamed_as_in_dask(eventually: Eventually) -> None:
    settings = {"distributed.scheduler.allowed-failures": 1}
    async with cluster(workers=3, settings=settings) as (c, s, core, _):
        try:
            bad = c.submit(when_told, 1, key="bad")
            waits = c.submit(inc, bad, key="waits")
            names = []
            ws: Any = None
            for _ in range(2):
                await eventually(lambda: "bad" in s.tasks and s.tasks["bad"].processing_on)
                ws = s.tasks["bad"].processing_on
                names.append(ws.name)
                await s.remove_worker(ws.address, stimulus_id="test", close=False)
            with pytest.raises(KilledWorker) as raised:
                await bad
            assert raised.value.last_worker.name == names[1]
            # It names the one that failed.
            with pytest.raises(KilledWorker, match="Attempted to run task 'bad'"):
                await waits
            assert core.is_active, core.escapes
            seen = pickle.loads(cast("Any", s.tasks["bad"]).exception)
            core.escape("to compare")
            dasks = pickle.loads(cast("Any", s.tasks["bad"]).exception)
            assert str(dasks) == str(seen) == str(raised.value)
            assert dasks.last_worker.address == seen.last_worker.address == ws.address
        finally:
            # Workers wait for their threads as they close.
            go_on.set()


@gen_test()
async def test_a_worker_that_joins_takes_part_by_the_core(by_engine: bool) -> None:
    async with cluster(workers=1) as (c, s, core, _):
        futures = c.map(slowinc, range(60), delay=0.01)
        await wait(futures[:3])
        assert core.is_active
        async with Worker(s.address, nthreads=1, validate=True) as late:
            assert await c.submit(add, *futures) == sum(range(1, 61))
            assert late.state.executed_count > 0
            assert core.is_active, core.escapes
            if by_engine:
                before = core.engine_counts()["task-finished"]
                more = c.map(inc, range(50), pure=False, workers=None)
                await wait(more)
                # Reports that came in one batch with any other message were Python's.
                assert before + 25 < core.engine_counts()["task-finished"] <= before + 50
            assert s.workers[late.address].nbytes == core.core.worker_bytes(late.address)
        assert not core.escapes
        core.escape("to look at it")
        s.validate_state()


@gen_test()
async def test_tasks_that_no_worker_could_run_go_to_the_first_that_joins(
    eventually: Eventually,
) -> None:
    async with cluster(workers=0) as (c, s, core, _):
        futures = c.map(inc, range(20))
        await eventually(lambda: len(s.tasks) == 20)
        assert core.is_active, core.escapes
        async with Worker(s.address, nthreads=2, validate=True):
            assert await c.gather(futures) == list(range(1, 21))
            assert core.is_active, core.escapes


@gen_test()
async def test_a_worker_is_retired_with_what_it_holds() -> None:
    async with cluster(workers=3) as (c, s, core, workers):
        futures = c.map(inc, range(30), pure=False)
        await wait(futures)
        retired = workers[0].address
        assert workers[0].data
        assert list(await c.retire_workers([retired])) == [retired]
        assert core.is_active, core.escapes
        assert await c.gather(futures) == list(range(1, 31))
        assert not any(
            "lost-computed-tasks" in event and event["lost-computed-tasks"]
            for _, event in s.get_events(retired)
        )
        assert core.is_active, core.escapes
        core.escape("to look at it")
        s.validate_state()


@gen_test()
async def test_a_worker_that_pauses_is_sent_nothing_until_it_goes_on(
    eventually: Eventually,
) -> None:
    # Or a worker goes on by itself, as it has memory.
    async with cluster(settings={"distributed.worker.memory.pause": False}) as (
        c,
        s,
        core,
        workers,
    ):
        assert await c.submit(inc, 1) == 2
        ws: Any = s.workers[workers[0].address]
        workers[0].status = Status.paused
        await eventually(lambda: ws.status == Status.paused)
        assert core.is_active, core.escapes
        assert ws not in s.running
        assert ws.address not in s.idle
        futures = c.map(inc, range(30), pure=False)
        await wait(futures)
        keys = {future.key for future in futures}
        assert not keys & {ts.key for ts in ws.has_what}
        workers[0].status = Status.running
        await eventually(lambda: ws.status == Status.running)
        more = c.map(inc, range(30), pure=False)
        await wait(more)
        assert {future.key for future in more} & {ts.key for ts in ws.has_what}
        assert not core.escapes
        core.escape("to look at it")
        s.validate_state()


class Hears(SchedulerPlugin):
    """Listens to workers, and reads their state."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    async def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        await asyncio.sleep(0)
        ws = scheduler.workers[worker]
        self.heard.append(("add", worker, len(ws.processing), ws.occupancy))

    def remove_worker(self, scheduler: Scheduler, worker: str, **more: Any) -> None:
        self.heard.append(("remove", worker, worker in scheduler.workers))


async def _story(is_core: bool, eventually: Eventually) -> tuple[list[Any], dict[str, Any]]:
    """Let workers come, pause, go on and go; return events and the state that is left."""
    go_on.clear()
    async with cluster(settings={KEY: is_core}) as (c, s, core, workers):
        plugin = Hears()
        s.add_plugin(plugin)
        futures = c.map(when_told, range(6), key=[f"waits-{number}" for number in range(6)])
        await eventually(lambda: len(s.tasks) == 6)
        async with Worker(s.address, nthreads=1, name="late") as late:
            await eventually(
                lambda: s.workers[late.address].status == Status.running and late.state.tasks
            )
            names = {late.address: "late", workers[0].address: "one", workers[1].address: "two"}
            for status in ("paused", "running"):
                s.handle_worker_status_change(status, workers[1].address, f"to-{status}")
            had = {ts.key for ts in s.workers[workers[0].address].processing}
            assert had
            await s.remove_worker(workers[0].address, stimulus_id="gone", expected=True)
            go_on.set()
            assert sorted(await c.gather(futures)) == list(range(1, 7))
            assert core.is_active is is_core, core.escapes
            state = {
                "running": {names[ws.address] for ws in s.running},
                "workers": {names[address] for address in s.workers},
                "threads": s.total_nthreads,
                "memory": s.total_memory == sum(ws.memory_limit for ws in s.workers.values()),
                "aliases": sorted(names[address] for address in s.aliases.values()),
                "hosts": {host: info["nthreads"] for host, info in s.host_info.items()},
                "added": s._workers_added_total,
                "removed": s._workers_removed_total,
                "bandwidth": s.bandwidth,
            }

            def named(value: Any) -> Any:
                return names.get(value, value) if isinstance(value, str) else value

            events = [
                {
                    # Which of idle workers has which task, Dask leaves to chance.
                    name: "all" if name == "processing-tasks" and value == had else named(value)
                    for name, value in event.items()
                    # Named by the time where the worker says it
                    if not str(value).startswith("worker-status-change-")
                }
                for topic in ("all", *names)
                for _, event in s.get_events(topic)
                if event["action"] in ("add-worker", "remove-worker", "worker-status-change")
            ]
            heard = [(what, names[worker], *more) for what, worker, *more in plugin.heard]
            return [events, heard], state


@gen_test()
async def test_events_and_final_state_are_those_without_the_core(eventually: Eventually) -> None:
    told, state = await _story(True, eventually)
    expected_told, expected = await _story(False, eventually)
    assert told == expected_told
    assert state == expected


async def _log_of_a_loss(is_core: bool, eventually: Eventually) -> list[str]:
    """Let a worker die with data, a result and a task that fails by that; return the log."""
    settings = {KEY: is_core, "distributed.scheduler.allowed-failures": 0}
    go_on.clear()
    async with cluster(workers=1, settings=settings) as (c, s, core, (worker,)):
        data = await c.scatter({"data": 1})
        result = c.submit(inc, 1, key="result")
        await result
        waits = c.submit(when_told, 1, key="waits")
        await eventually(lambda: "waits" in s.tasks and s.tasks["waits"].state == "processing")
        with captured_logger("distributed.scheduler", level=logging.INFO) as log:
            assert core.is_active is is_core, core.escapes
            await s.remove_worker(worker.address, stimulus_id="gone")
        go_on.set()
        assert (await waits.exception()).task == "waits"
        del data
        return [line.replace(worker.address, "worker") for line in log.getvalue().splitlines()]


@gen_test()
async def test_results_lost_with_a_worker_are_logged_where_dask_does(
    eventually: Eventually,
) -> None:
    logged = await _log_of_a_loss(True, eventually)
    assert logged == await _log_of_a_loss(False, eventually)
    assert len(logged) == 5


@pytest.mark.parametrize("seed", range(6))
@gen_test()
async def test_random_work_while_workers_come_and_go(seed: int, eventually: Eventually) -> None:
    chance = random.Random(seed)
    # For so long a worker tries to reach one that has gone, in Dask too.
    settings = {"distributed.comm.timeouts.connect": "10s"}
    async with cluster(workers=3, settings=settings) as (c, s, core, workers):
        extra: list[Worker] = []
        try:
            for _ in range(4):
                futures = c.map(slowinc, range(chance.randrange(5, 60)), delay=0.002, pure=False)
                numbers = [number + 1 for number in range(len(futures))]
                for _ in range(chance.randrange(40)):
                    some = [chance.randrange(len(futures)) for _ in range(chance.randrange(1, 6))]
                    futures.append(c.submit(add, *(futures[one] for one in some), pure=False))
                    numbers.append(sum(numbers[one] for one in some))
                    match chance.randrange(12):
                        case 0:
                            extra.append(await Worker(s.address, nthreads=1, validate=True))
                        case 1 if len(s.workers) > 2:
                            going = chance.choice([*workers, *extra])
                            await going.close(nanny=False)
                        case 2 if len(s.workers) > 2:
                            address = chance.choice(list(s.workers))
                            await s.remove_worker(address, stimulus_id="random")
                        case 3:
                            going = chance.choice([*workers, *extra])
                            if going.status in (Status.paused, Status.running):
                                is_running = going.status == Status.running
                                going.status = Status.paused if is_running else Status.running
                        case 4:
                            await asyncio.sleep(0.01)
                for worker in [*workers, *extra]:
                    if worker.status == Status.paused:
                        worker.status = Status.running
                if not s.workers:
                    extra.append(await Worker(s.address, nthreads=1, validate=True))
                kept = chance.sample(range(len(futures)), chance.randrange(1, len(futures)))
                kept_futures = [futures[one] for one in kept]
                del futures
                assert await c.gather(kept_futures) == [numbers[one] for one in kept]
                del kept_futures
                if chance.random() < 0.5:
                    # Dask's gather, where a result was lost while it waited, is left in a cycle
                    # with the exception that ended the waits, and has the futures.
                    gc.collect()
                    await eventually(lambda: not len(s.tasks))
            assert core.is_active, core.escapes
            core.escape("the end")
            s.validate_state()
        finally:
            for worker in extra:
                await worker.close()
