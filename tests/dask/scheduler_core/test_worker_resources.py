"""Workers that have resources: tasks that ask for Dask's own, and amounts that change."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from distributed import Client, Scheduler, SchedulerPlugin, Worker, get_worker, wait
from distributed.utils_test import gen_test, inc, slowinc

import dask
from backhaul.dask import resources
from backhaul.dask.scheduler.core.live_core import LiveCore
from tests.dask.conftest import Eventually
from tests.dask.scheduler_core.conftest import configured
from tests.dask.scheduler_core.test_live import add, cluster
from tests.dask.slotted_cluster import gate

pytestmark = pytest.mark.usefixtures("by_engine")


@contextlib.asynccontextmanager
async def with_resources() -> AsyncIterator[tuple[Client, Scheduler, LiveCore, list[Worker]]]:
    """Start a cluster whose second worker has two GPUs."""
    async with (
        cluster(workers=1) as (c, s, core, workers),
        Worker(s.address, nthreads=1, resources={"GPU": 2, "disk": 0.5}, validate=True) as able,
    ):
        yield c, s, core, [*workers, able]


@gen_test()
async def test_tasks_without_requests_stay_in_the_core() -> None:
    async with with_resources() as (c, s, core, (_, able)):
        futures = c.map(inc, range(50), pure=False)
        assert await c.submit(add, *futures) == sum(range(1, 51))
        assert core.adoptions == 1
        assert not core.escapes
        assert s.resources == {"GPU": {able.address: 2}, "disk": {able.address: 0.5}}
        core.escape("to look at it")
        s.validate_state()
        assert s.resources == {"GPU": {able.address: 2}, "disk": {able.address: 0.5}}
        ws = s.workers[able.address]
        assert ws.resources == {"GPU": 2, "disk": 0.5}
        assert ws.used_resources == {"GPU": 0, "disk": 0}


@gen_test()
async def test_a_task_with_a_request_runs_and_the_core_keeps_the_state(
    eventually: Eventually,
) -> None:
    async with with_resources() as (c, s, core, (_, able)):
        plain = c.map(inc, range(10), pure=False)
        await wait(plain)
        assert core.is_active
        asking = c.map(slowinc, range(4), delay=0.01, resources={"GPU": 1}, pure=False)
        assert await c.gather(asking) == [1, 2, 3, 4]
        assert not core.escapes
        assert {future.key for future in asking} <= set(able.data)
        with dask.annotate(resources={"disk": 0.5}):
            assert await c.compute(dask.delayed(inc)(5)) == 6
        del plain, asking
        await eventually(lambda: not len(s.tasks))
        again = c.map(inc, range(10), pure=False)
        assert await c.gather(again) == list(range(1, 11))
        assert core.is_active
        assert core.adoptions == 1
        assert not core.escapes
        core.escape("to look at it")
        s.validate_state()
        assert s.workers[able.address].used_resources == {"GPU": 0, "disk": 0}


@gen_test()
async def test_workers_with_resources_come_and_go() -> None:
    async with cluster(workers=1) as (c, s, core, _):
        futures = c.map(slowinc, range(30), delay=0.01)
        await wait(futures[:2])
        async with Worker(s.address, nthreads=1, resources={"GPU": 1}, validate=True) as able:
            # The last of what is on its way to it comes before it goes.
            await c.gather(c.map(inc, range(20), pure=False))
            assert s.resources["GPU"] == {able.address: 1}
        assert await c.submit(add, *futures) == sum(range(1, 31))
        assert s.resources["GPU"] == {}
        assert core.is_active, core.escapes
        assert not core.escapes
        core.escape("to look at it")
        s.validate_state()
        assert s.resources["GPU"] == {}


class Looks(SchedulerPlugin):
    """Reads the log as soon as a worker comes: before the core has the worker."""

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        len(scheduler.transition_log)


@gen_test()
async def test_one_that_the_core_does_not_know_yet_keeps_what_it_has() -> None:
    async with with_resources() as (c, s, core, (_, able)):
        future = c.submit(inc, 1)
        assert await future == 2
        assert core.is_active
        s.add_plugin(Looks())
        async with Worker(s.address, resources={"GPU": 3, "fan": 1}, validate=True) as late:
            assert list(core.escapes) == ["Scheduler.transition_log"]
            assert s.resources == {
                "GPU": {able.address: 2, late.address: 3},
                "disk": {able.address: 0.5},
                "fan": {late.address: 1},
            }
            s.validate_state()
            asking: Any = c.submit(inc, 5, resources={"fan": 1})
            assert await asking == 6
            assert asking.key in late.data


@gen_test()
async def test_resources_that_change_are_dasks() -> None:
    async with with_resources() as (c, s, core, (plain, able)):
        future = c.submit(inc, 1)
        assert await future == 2
        assert core.is_active
        await plain.set_resources(fan=1)
        assert not core.is_active
        assert await c.submit(inc, 3, resources={"fan": 1}) == 4
        assert s.resources["fan"] == {plain.address: 1}
        assert s.resources["GPU"] == {able.address: 2}


@gen_test()
async def test_resources_that_are_no_numbers_keep_the_state_out() -> None:
    async with cluster(workers=1) as (c, s, core, workers):
        ws: Any = s.workers[workers[0].address]
        ws.resources["odd"] = "many"
        assert await c.submit(inc, 1) == 2
        assert core.adoptions == 0


#: How many calls of `most_at_once` run, and ran at most
running: list[int] = []
most: list[int] = []


def most_at_once(number: int, *inputs: object) -> str:
    """Note how many of these run, and say where this one does."""
    running.append(number)
    most.append(len(running))
    assert gate.wait(300)
    running.remove(number)
    return str(get_worker().name)


@resources(CPU=2)
def wants_threads(number: int) -> str:
    return str(get_worker().name)


PLACEMENT = "distributed.comm.backhaul.placement.enabled"
CORE = "distributed.comm.backhaul.hot-path.scheduler-core"


@pytest.fixture(
    params=[{}, {PLACEMENT: True}, {CORE: False}, {CORE: False, PLACEMENT: True}],
    ids=["core", "core-places", "dasks", "dasks-places"],
)
def by_settings(request: pytest.FixtureRequest) -> Iterator[dict[str, bool]]:
    """Let the core have the state, or Dask, and place by links or not."""
    gate.set()
    running.clear()
    most.clear()
    with configured(request.param):
        yield request.param
    gate.set()


@contextlib.asynccontextmanager
async def plain_cluster() -> AsyncIterator[tuple[Client, Scheduler]]:
    """Start a scheduler and a worker that declares nothing."""
    async with (
        Scheduler(
            host="backhaul://127.0.0.1", dashboard=False, dashboard_address=":0", validate=True
        ) as s,
        Worker(s.address, nthreads=1, name="plain", validate=True),
        Client(s.address, asynchronous=True) as c,
    ):
        yield c, s
        gate.set()


@pytest.mark.parametrize("joins", [True, False], ids=["joins", "told-later"])
@gen_test()
async def test_a_task_that_waits_for_cpu_goes_to_the_first_worker_that_has_it(
    by_settings: dict[str, bool], joins: bool, eventually: Eventually
) -> None:
    async with plain_cluster() as (c, s):
        gate.clear()
        first = c.submit(most_at_once, 0, pure=False)
        waiting = c.map(most_at_once, range(1, 4), resources={"CPU": 2}, pure=False)
        later: Any = c.submit(most_at_once, 4, first, resources={"CPU": 2}, pure=False)
        threads = c.submit(wants_threads, 5, pure=False)
        await eventually(lambda: most == [1] and threads.key in s.tasks)
        given: Any = {"CPU": 2} if joins else {}
        async with Worker(s.address, nthreads=1, name="late", resources=given) as late:
            if not joins:
                await late.set_resources(CPU=2)
            await eventually(lambda: most == [1, 2])
            gate.set()
            assert await c.gather(waiting) == ["late"] * 3
            assert await first == "plain"
            assert await later == "late"
            # That is of threads, which neither has.
            assert not threads.done()
            async with Worker(s.address, nthreads=2, name="two"):
                assert await threads == "two"
                s.validate_state()
                for future in (first, *waiting, later, threads):
                    future.release()
                await eventually(lambda: not len(s.tasks))
                again = c.map(most_at_once, range(4), resources={"CPU": 1}, pure=False)
                assert await c.gather(again) == ["late"] * 4


@gen_test()
async def test_cpu_that_a_worker_has_is_counted_beside_its_threads(
    by_settings: dict[str, bool], eventually: Eventually
) -> None:
    async with (
        plain_cluster() as (c, s),
        Worker(s.address, nthreads=4, name="able", resources={"CPU": 2, "GPU": 1}) as able,
    ):
        gate.clear()
        # From here on what is asked for is heeded by us.
        asking = c.map(most_at_once, range(3), resources={"GPU": 0.5, "CPU": 1}, pure=False)
        await eventually(lambda: len(most) == 2)
        of_cpu = c.map(most_at_once, range(3, 6), resources={"CPU": 1}, pure=False)
        beside = c.submit(inc, 1, workers=["able"])
        assert await beside == 2
        await eventually(lambda: all(one.key in s.tasks for one in of_cpu))
        gate.set()
        assert await c.gather([*asking, *of_cpu]) == ["able"] * 6
        assert max(most) == 2
        await eventually(lambda: s.workers[able.address].used_resources == {"CPU": 0, "GPU": 0})
        assert able.state.available_resources == {"CPU": 2, "GPU": 1}
        odd: Any = c.submit(inc, 1, resources={"CPU": -1}, pure=False)
        with pytest.raises(Exception, match="CPU"):
            await odd


@pytest.mark.parametrize("wants", [{"CPU": 1}, {"GPU": 0.5, "CPU": 1}], ids=["dasks", "ours"])
@gen_test()
async def test_tasks_that_ask_for_cpu_that_a_worker_has_keep_the_state_out(
    wants: dict[str, float], eventually: Eventually
) -> None:
    gate.clear()
    running.clear()
    most.clear()
    has: Any = {"CPU": 2, "GPU": 1}
    async with cluster(workers=1) as (c, s, core, _), contextlib.AsyncExitStack() as stack:
        stack.callback(gate.set)

        def keeps_out() -> bool:
            core.pause.until_s = 0
            return not core.adopt()

        async with Worker(s.address, name="able", resources=has):
            asking = c.map(most_at_once, range(5), resources=wants, pure=False)
            await eventually(lambda: most == [1, 2])
            assert keeps_out()
            gate.set()
            assert await c.gather(asking) == ["able"] * 5
            assert keeps_out()
        # They run again where they can, not where there are only threads.
        assert keeps_out()
        await stack.enter_async_context(Worker(s.address, name="next", resources=has))
        assert await c.gather(asking) == ["next"] * 5
        del asking
        await eventually(lambda: not len(s.tasks))
        assert core.adopt()
        assert await c.submit(inc, 1, pure=False) == 2
        core.escape("to look at it")
        s.validate_state()
