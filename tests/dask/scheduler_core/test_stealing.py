"""Tasks that idle workers take from busy ones while the core has the state."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from distributed import Scheduler, Worker, wait
from distributed.utils_test import gen_test, inc, slowinc

from tests.dask.conftest import Eventually
from tests.dask.scheduler_core.test_live import add, cluster

#: As often as Dask does
OFTEN = {"distributed.scheduler.work-stealing-interval": "100ms"}

#: Nothing is held back, so that all of it is with workers
UNQUEUED = {**OFTEN, "distributed.scheduler.worker-saturation": float("inf")}


pytestmark = pytest.mark.usefixtures("by_engine")


def slow_after(one: int, number: int, delay: float) -> int:
    """Take a while, with the result of another task."""
    time.sleep(delay)
    return one + number


def stealing_of(s: Scheduler) -> Any:
    return s.extensions["stealing"]


@gen_test()
async def test_a_worker_that_joins_takes_tasks_of_those_that_wait() -> None:
    async with cluster(workers=1, settings=UNQUEUED) as (c, s, core, workers):
        futures = c.map(slowinc, range(100), delay=0.02, pure=False)
        await wait(futures[:3])
        assert core.is_active, core.escapes
        async with Worker(s.address, nthreads=1, validate=True) as late:
            assert await c.gather(futures) == list(range(1, 101))
            assert late.state.executed_count > 10
            assert workers[0].state.executed_count > 10
            assert core.is_active, core.escapes
            assert not core.escapes
            stealing = stealing_of(s)
            assert sum(stealing.metrics["request_count_total"].values()) > 0
            assert sum(stealing.metrics["request_cost_total"].values()) > 0
            assert stealing.count > 0
            told = [event for _, event in s.get_events("stealing")]
            requested = [one for event in told if event[0] == "request" for one in event[1]]
            confirmed = [event for event in told if event[0] == "confirm"]
            assert confirmed
            assert {event[1] for event in confirmed} <= {one[2] for one in requested}
            assert {one[4] for one in requested} == {workers[0].address}
            assert {one[6] for one in requested} == {late.address}
            assert stealing.story(confirmed[0][1])
            assert core.is_active
            assert not stealing.in_flight
            assert not core.is_active
            s.validate_state()


@gen_test()
async def test_requests_are_dasks_after_an_escape_in_the_middle() -> None:
    async with cluster(workers=1, settings=UNQUEUED) as (c, s, core, _):
        futures = c.map(slowinc, range(100), delay=0.02, pure=False)
        await wait(futures[:3])
        async with Worker(s.address, nthreads=1, validate=True):
            stealing = stealing_of(s)
            while not (core.core.stealing() or {}).get("in_flight"):
                stealing.balance()
                await asyncio.sleep(0)
            assert core.is_active, core.escapes
            said = core.core.stealing()
            assert said is not None
            core.escape("to look at it")
            assert [
                (ts.key, info["victim"].address, info["thief"].address, info["stimulus_id"])
                for ts, info in stealing.in_flight.items()
            ] == [(key, victim, thief, by) for key, victim, thief, _, _, by in said["in_flight"]]
            assert all(s.tasks[ts.key] is ts for ts in stealing.key_stealable)
            assert stealing._request_counter == said["requests"]
            assert not stealing._in_flight_event.is_set()
            s.validate_state()
            assert await c.gather(futures) == list(range(1, 101))
            await stealing.stop()
            assert not stealing.in_flight
            assert not any(stealing.in_flight_tasks.values())


@pytest.mark.parametrize("seed", range(4))
@gen_test()
async def test_random_uneven_work_with_workers_that_come_and_go(
    seed: int, eventually: Eventually
) -> None:
    chance = random.Random(seed)
    settings = {**OFTEN, "distributed.scheduler.worker-saturation": chance.choice([1.1, 20.0])}
    async with cluster(workers=2, settings=settings) as (c, s, core, _):
        extra: list[Worker] = []
        try:
            for _ in range(3):
                roots = c.map(inc, range(4), pure=False)
                futures = [
                    c.submit(slow_after, chance.choice(roots[:2]), number, 0.005, pure=False)
                    for number in range(chance.randrange(20, 60))
                ]
                await asyncio.sleep(chance.random() / 10)
                if chance.random() < 0.7:
                    extra.append(await Worker(s.address, nthreads=1, validate=True))
                total = c.submit(add, *futures, pure=False)
                if extra and chance.random() < 0.4:
                    await chance.choice(extra).close()
                if chance.random() < 0.3:
                    core.escape("to look at it")
                    s.validate_state()
                results = await c.gather(futures)
                assert sum(results) == await total
                del roots, futures, total
                await eventually(lambda: not len(s.tasks))
            core.escape("the end")
            s.validate_state()
            assert not any(stealing_of(s).in_flight_tasks.values())
        finally:
            for worker in extra:
                await worker.close()


@gen_test()
async def test_methods_of_the_extension_kept_from_the_core_work_after_it(
    eventually: Eventually,
) -> None:
    settings = {**UNQUEUED, "distributed.scheduler.work-stealing-interval": "1h"}
    async with cluster(workers=1, settings=settings) as (c, s, core, _):
        futures = c.map(slowinc, range(40), delay=0.02, pure=False)
        await wait(futures[:1])
        assert core.is_active, core.escapes
        # As a timer does that is made now.
        balance = stealing_of(s).balance
        async with Worker(s.address, nthreads=1, validate=True) as late:
            await eventually(lambda: len(s.running) == 2)
            core.escape("a test")
            balance()
            assert sum(stealing_of(s).metrics["request_count_total"].values()) > 0
            assert await c.gather(futures) == list(range(1, 41))
            assert late.state.executed_count > 0


@gen_test()
async def test_idle_workers_are_computed_anew_on_request() -> None:
    async with cluster(workers=1, settings=UNQUEUED) as (c, s, core, workers):
        futures = c.map(slowinc, range(10), delay=0.1, pure=False)
        await wait(futures[:1])
        assert core.is_active, core.escapes
        (ws,) = s.workers.values()
        # Busy for no time at all, however much it has.
        s.check_idle_saturated(ws, 0.0)
        assert not core.escapes
        core.escape("a test")
        assert workers[0].address in s.idle
        assert await c.gather(futures) == list(range(1, 11))


@gen_test()
async def test_idle_workers_follow_the_occupancy_without_an_argument() -> None:
    async with cluster(workers=1, settings=UNQUEUED) as (c, s, core, workers):
        futures = c.map(slowinc, range(10), delay=0.1, pure=False)
        await wait(futures[:1])
        (ws,) = s.workers.values()
        s.check_idle_saturated(ws, 0.0)
        s.check_idle_saturated(ws)
        assert not core.escapes
        core.escape("a test")
        assert workers[0].address not in s.idle
        assert await c.gather(futures) == list(range(1, 11))
