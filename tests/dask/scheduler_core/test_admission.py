"""Tasks that ask for resources stay in the core, which sends each where there is room for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from distributed import Client, Scheduler, SchedulerPlugin, Status, Worker, secede, wait
from distributed.utils_test import gen_test, inc

import dask
from backhaul.dask import resource_id, resources
from backhaul.dask.resource_pools import scheduler_slots
from backhaul.dask.scheduler.core.live_core import LiveCore
from tests.dask.conftest import Eventually
from tests.dask.scheduler_core.test_live import add, cluster
from tests.dask.slotted_cluster import all_is_free, gate

pytestmark = pytest.mark.usefixtures("by_engine")

#: Units in use, by worker and unit; a task that finds one in use records a clash
in_use: set[tuple[int, Any]] = set()
clashes: list[tuple[int, Any]] = []
lock = threading.Lock()


@pytest.fixture(autouse=True)
def fresh_gate() -> Any:
    gate.clear()
    in_use.clear()
    clashes.clear()
    yield
    gate.set()


@resources(GPU=1, CPU=0)
def exclusive(number: int, of: int = 0) -> int:
    """Hold a unit that no other task may hold."""
    unit = of, resource_id("GPU")
    with lock:
        clashes.extend(unit for _ in in_use & {unit})
        in_use.add(unit)
    sum(range(1000))
    with lock:
        in_use.discard(unit)
    return number + 1


@resources(GPU=1)
def gated(number: int) -> int:
    assert gate.wait(300)
    return number + 1


@resources(GPU=1)
def leaves(number: int) -> int:
    secede()
    assert gate.wait(300)
    return number + 1


@resources(GPU=2)
def wants_both(number: int) -> int:
    return number + 1


@contextlib.asynccontextmanager
async def with_gpus(
    *declared: Any,
) -> AsyncIterator[tuple[Client, Scheduler, LiveCore, list[Worker]]]:
    """Start a cluster with a worker for each declaration."""
    async with cluster(workers=0) as (c, s, core, _), contextlib.AsyncExitStack() as stack:
        workers = []
        for each in declared:
            with dask.config.set({"backhaul.resources": each}):
                # With a limit, one that is paused goes on as soon as its memory is looked at.
                worker = Worker(s.address, nthreads=2, validate=True, memory_limit=0)
                workers.append(await stack.enter_async_context(worker))
        try:
            yield c, s, core, workers
        finally:
            gate.set()


def slots_of(s: Scheduler) -> scheduler_slots.SchedulerSlots:
    found = scheduler_slots.slots_of(s)
    assert found is not None
    return found


def state_of(core: LiveCore, key: Any) -> str:
    """Give the state of a task of the core, or that there is none."""
    text = core.texts.known(key)
    return "" if text is None else core.core.state_of(text) or ""


@gen_test()
async def test_tasks_with_requests_stay_in_the_core_beside_tasks_without(
    eventually: Eventually,
) -> None:
    async with with_gpus({"GPU": [0, 1]}, {"GPU": [0]}) as (c, s, core, workers):
        with dask.annotate(workers=[workers[0].address]):
            asking = c.map(exclusive, range(40), of=0, pure=False)
        with dask.annotate(workers=[workers[1].address]):
            asking += c.map(exclusive, range(20), of=1, pure=False)
        plain = c.map(inc, range(100), pure=False)
        after = c.submit(add, *asking, *plain)
        assert await after == sum(range(1, 41)) + sum(range(1, 21)) + sum(range(1, 101))
        assert not clashes
        assert core.is_active, core.escapes
        assert not core.escapes
        annotated: Any = c.map(inc, range(30), resources={"GPU": 0.5}, pure=False)
        assert await c.gather(annotated) == list(range(1, 31))
        assert not core.escapes
        await eventually(lambda: all(map(all_is_free, workers)))
        core.escape("to look at it")
        s.validate_state()
        assert not slots_of(s).booked
        assert not slots_of(s).waiting


@gen_test()
async def test_no_worker_has_more_than_twice_what_it_can_run(eventually: Eventually) -> None:
    async with with_gpus({"GPU": [0]}, {"GPU": [0, 1]}) as (c, _, core, _workers):
        asking = c.map(gated, range(10), pure=False)
        await eventually(lambda: core.is_active and core.core.has_any("unrunnable"))
        states = [state_of(core, future.key) for future in asking]
        assert states.count("processing") == 6
        assert states.count("no-worker") == 4
        # The first ones by priority go first.
        assert states == ["processing"] * 6 + ["no-worker"] * 4
        gate.set()
        assert await c.gather(asking) == list(range(1, 11))
        assert not core.escapes


@pytest.mark.parametrize("goes_on", [False, True], ids=["dasks", "next"])
@gen_test()
async def test_an_escape_while_some_wait_and_some_hold(
    goes_on: bool, eventually: Eventually
) -> None:
    async with with_gpus({"GPU": [0]}, {"GPU": [0]}) as (c, s, core, workers):
        seceded = c.submit(leaves, 0, pure=False)
        await eventually(lambda: core.is_active and sum(map(all_is_free, workers)) == 2)
        seceded_key = seceded.key
        await eventually(lambda: state_of(core, seceded_key) == "processing")
        asking = c.map(gated, range(9), pure=False)
        both = c.submit(wants_both, 1, pure=False)
        both_key = both.key
        await eventually(lambda: state_of(core, both_key) == "no-worker")
        keys = [one.key for one in asking]
        await eventually(lambda: sum(state_of(core, key) == "processing" for key in keys) > 3)
        core.escape("to look at it")
        s.validate_state()
        slots = slots_of(s)
        sent = [s.tasks[one.key] for one in asking if s.tasks[one.key].state == "processing"]
        assert set(slots.booked.values()) == set(sent)
        assert sum(s.tasks[one.key].state == "no-worker" for one in asking) == 9 - len(sent)
        assert s.tasks[both.key].state == "no-worker"
        for ws in s.workers.values():
            number = slots.number_of(ws)
            requests = [slots.asked.by(ts) for ts in sent]
            signatures = {asked.signature for asked in requests if asked is not None}
            assert None not in requests
            booked = sum(slots.places.booked(signature, number) for signature in signatures)
            assert booked == sum(ts.processing_on is ws for ts in sent)
        async with contextlib.AsyncExitStack() as stack:
            if goes_on:
                with dask.config.set({"backhaul.resources": {"GPU": [0, 1]}}):
                    await stack.enter_async_context(Worker(s.address, nthreads=2))
                assert await both == 2
            gate.set()
            assert await c.gather(asking) == list(range(1, 10))
            assert await seceded == 1
            await eventually(lambda: not slots.booked)
            if not goes_on:
                assert s.tasks[both.key].state == "no-worker"
            del asking, seceded, both
            await eventually(lambda: not len(s.tasks))
            assert await c.submit(exclusive, 1) == 2
            assert core.is_active
            assert not slots.waiting
            assert len(core.escapes) == 1


@pytest.mark.parametrize("has_core", [False, True], ids=["dasks", "core"])
@gen_test()
async def test_a_key_that_comes_again_while_the_first_waited(
    has_core: bool, eventually: Eventually
) -> None:
    async with with_gpus({"GPU": [0]}) as (c, s, core, _):
        if not has_core:
            s.add_plugin(_Listens())
        asking = c.map(gated, range(2), pure=False)
        key = "again"
        first = c.submit(gated, 1, key=key)

        def waits() -> bool:
            if has_core:
                return core.is_active and state_of(core, key) == "no-worker"
            return key in s.tasks and s.tasks[key].state == "no-worker"

        await eventually(waits)
        del first
        await eventually(lambda: key not in s.tasks)
        again = c.submit(gated, 2, key=key)
        await eventually(waits)
        gate.set()
        assert await again == 3
        assert await c.gather(asking) == [1, 2]
        assert core.is_active is has_core


class _Listens(SchedulerPlugin):
    """Listens to transitions, so that the state is Dask's from the beginning."""

    def transition(self, *args: object, **kwargs: object) -> None: ...


@gen_test()
async def test_a_missing_resource_is_logged_once_and_its_tasks_go_to_the_next_worker_with_it(
    caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    async with with_gpus({"GPU": [0]}) as (c, s, core, _):
        with caplog.at_level(logging.WARNING, "backhaul.dask.resource_pools.scheduler_slots"):
            waiting = c.map(wants_both, range(5), pure=False)

            def said() -> list[str]:
                return [one.getMessage() for one in caplog.records if "can ever meet" in one.msg]

            await eventually(said)
            more = c.submit(wants_both, 7, pure=False)
            await eventually(lambda: state_of(core, more.key) == "no-worker")
        assert len(said()) == 1
        assert "2 of GPU are more than the 1 that there are" in said()[0]
        with dask.config.set({"backhaul.resources": {"GPU": [0, 1]}}):
            async with Worker(s.address, nthreads=2, validate=True):
                assert await c.gather(waiting) == list(range(1, 6))
                assert await more == 8
                assert not core.escapes


@pytest.mark.parametrize("has_core", [False, True], ids=["dasks", "core"])
@gen_test()
async def test_tasks_bound_to_a_worker_block_no_other_task(
    has_core: bool, eventually: Eventually
) -> None:
    async with with_gpus({"GPU": [0]}, {"FOO": 1.0}) as (c, s, core, workers):
        if not has_core:
            s.add_plugin(_Listens())
        able, unable = workers
        with dask.annotate(workers=[unable.address]):
            never = c.submit(gated, 1, pure=False)
        asking = c.map(gated, range(2), pure=False)
        await eventually(lambda: len(able.state.tasks) == 2)
        with dask.annotate(workers=[unable.address], allow_other_workers=True):
            loose = c.map(gated, range(3), pure=False)
        gate.set()
        assert await c.gather(loose) == [1, 2, 3]
        assert await c.gather(asking) == [1, 2]
        assert not never.done()
        assert core.is_active is has_core


async def full_and_loose(
    client: Client, worker: Worker, eventually: Eventually
) -> tuple[list[Any], Any]:
    """Give a worker all the tasks that it takes, then more that may run elsewhere."""
    with dask.annotate(workers=[worker.address]):
        asking: list[Any] = client.map(gated, range(2), pure=False)
    await eventually(lambda: len(worker.state.tasks) == 2)
    with dask.annotate(workers=[worker.address], allow_other_workers=True):
        return asking, client.submit(exclusive, 1, pure=False)


@pytest.mark.parametrize("has_core", [False, True], ids=["dasks", "core"])
@gen_test()
async def test_tasks_that_may_run_elsewhere_do_so_when_their_worker_leaves(
    has_core: bool, eventually: Eventually
) -> None:
    async with with_gpus({"GPU": [0]}, {"GPU": [0]}) as (c, s, core, workers):
        if not has_core:
            s.add_plugin(_Listens())
        asking, loose = await full_and_loose(c, workers[0], eventually)
        await eventually(
            lambda: len(s.unrunnable) if not has_core else core.core.has_any("unrunnable")
        )
        closing = asyncio.ensure_future(workers[0].close(executor_wait=False))
        assert await loose == 2
        gate.set()
        await closing
        assert core.is_active is has_core
        del asking


@pytest.mark.parametrize("has_core", [False, True], ids=["dasks", "core"])
@gen_test()
async def test_tasks_that_may_run_elsewhere_do_so_when_their_worker_pauses(
    has_core: bool, eventually: Eventually
) -> None:
    async with with_gpus({"GPU": [0]}, {"GPU": [0]}) as (c, s, core, workers):
        if not has_core:
            s.add_plugin(_Listens())
        asking, loose = await full_and_loose(c, workers[0], eventually)
        await eventually(
            lambda: len(s.unrunnable) if not has_core else core.core.has_any("unrunnable")
        )
        workers[0].status = Status.paused
        # Nothing ends meanwhile.
        assert await loose == 2
        assert not any(one.done() for one in asking)
        workers[0].status = Status.running
        gate.set()
        assert await c.gather(asking) == [1, 2]
        assert core.is_active is has_core
        assert not core.escapes


@gen_test()
async def test_a_core_that_comes_after_an_escape_notices_workers_that_pause(
    eventually: Eventually,
) -> None:
    async with with_gpus({"GPU": [0]}, {"GPU": [0]}) as (c, s, core, workers):
        assert await c.submit(exclusive, 1) == 2
        core.escape("to look at it")
        await eventually(lambda: not len(s.tasks))
        assert await c.submit(exclusive, 2) == 3
        assert core.is_active
        workers[0].status = Status.paused
        await eventually(lambda: s.workers[workers[0].address].status == Status.paused)
        futures = c.map(exclusive, range(9), of=1)
        assert await c.gather(futures) == list(range(1, 10))
        # Earlier results may be there still.
        kept = core.core.keys_in("has_what", workers[0].address)
        assert not {future.key for future in futures} & set(kept)
        assert core.is_active
        assert len(core.escapes) == 1


@gen_test()
async def test_nothing_is_kept_for_a_request_that_was_cancelled_before_an_escape(
    eventually: Eventually,
) -> None:
    async with with_gpus({"GPU": [0, 1]}) as (c, s, core, _):
        asking = c.map(gated, range(4), pure=False)
        both = c.submit(wants_both, 1, pure=False)
        later = c.map(exclusive, range(60), pure=False)
        await eventually(lambda: core.is_active and state_of(core, later[-1].key) == "no-worker")
        assert state_of(core, both.key) == "no-worker"
        await c.cancel([both])
        await eventually(lambda: not state_of(core, both.key))
        core.escape("to look at it")
        assert len(slots_of(s).state(str).passed) == 1
        gate.set()
        assert await c.gather(later) == list(range(1, 61))
        assert await c.gather(asking) == list(range(1, 5))
        state = slots_of(s).state(str)
        assert (state.passed, state.kept, state.kept_worker) == ([], None, None)


@pytest.mark.parametrize("priority", [float("nan"), float("inf")])
@gen_test()
async def test_priorities_that_are_odd(priority: Any, eventually: Eventually) -> None:
    async with with_gpus({"GPU": [0]}) as (c, s, core, _):
        asking = c.map(gated, range(4), pure=False)
        await eventually(lambda: core.is_active and core.core.has_any("unrunnable"))
        with dask.annotate(priority=priority):
            odd = c.submit(exclusive, 1, pure=False)
            plain = c.submit(inc, 1, pure=False)
        await eventually(lambda: odd.key in s.tasks and plain.key in s.tasks)
        gate.set()
        assert await odd == 2
        assert await plain == 2
        assert await c.gather(asking) == list(range(1, 5))
        assert await c.submit(inc, 5, pure=False) == 6


@gen_test()
async def test_a_worker_that_goes_gives_its_tasks_to_others(eventually: Eventually) -> None:
    async with with_gpus({"GPU": [0]}, {"GPU": [0]}) as (c, s, core, workers):
        asking = c.map(exclusive, range(30), pure=False)
        await wait(asking[:1])
        await workers[1].close()
        await eventually(lambda: len(s.workers) == 1)
        assert await c.gather(asking) == list(range(1, 31))
        assert core.is_active, core.escapes
        assert not core.escapes
        await eventually(lambda: all_is_free(workers[0]))


@gen_test()
async def test_tasks_that_hold_and_wait_for_units_are_taken_over(eventually: Eventually) -> None:
    async with with_gpus({"GPU": [0, 1]}) as (c, s, core, workers):
        gate.clear()
        held = c.map(gated, range(10), pure=False)
        both = c.submit(wants_both, 1, pure=False, priority=1)
        await eventually(lambda: both.key in s.tasks and s.tasks[both.key].state == "no-worker")
        before: Any = core.core.room()
        # Two run and two are ahead; those that wait come in two lines.
        assert len(before.booked) == 4
        assert len(before.waiting) == 7
        core.escape("a look")
        s.validate_state()
        other = c.submit(inc, 1, pure=False)
        await eventually(lambda: other.key in s.tasks)
        assert core.is_active, core.escapes
        assert core.core.room() == before
        gate.set()
        assert await c.gather(held) == list(range(1, 11))
        assert await both == 2
        assert await other == 2
        assert core.is_active, core.escapes
        await eventually(lambda: all_is_free(workers[0]))
        after: Any = core.core.room()
        assert (after.booked, after.waiting, after.passed) == ([], [], [])


@gen_test()
async def test_an_adoption_that_fails_leaves_units_as_they_are(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    async with with_gpus({"GPU": [0]}) as (c, s, core, _):
        gate.clear()
        held = c.map(gated, range(4), pure=False)
        await eventually(lambda: held[-1].key in s.tasks)
        core.escape("a look")
        slots = slots_of(s)
        before = slots.state(str)
        assert len(before.waiting) == 2
        monkeypatch.setattr("backhaul.dask.scheduler.core.live_core.Stealing", int)
        assert await c.submit(inc, 1, pure=False) == 2
        assert not core.is_active
        assert slots.state(str) == before
        gate.set()
        assert await c.gather(held) == list(range(1, 5))


@gen_test()
async def test_an_invalid_declaration_of_a_worker_is_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with with_gpus({"GPU": [0]}) as (c, s, core, workers):
        ws: Any = s.workers[workers[0].address]
        ws.extra["backhaul-resources"] = {"GPU": [[0], [0]]}
        with caplog.at_level(logging.WARNING, "backhaul.dask.resource_pools.worker_inventory"):
            assert await c.submit(inc, 1) == 2
        assert core.is_active
        assert "makes no sense" in caplog.text


@pytest.mark.parametrize(
    "odd", [{"GPU": -1}, {"GPU": float("nan")}, {"GPU": 10**400}, {"GPU": "1"}, {"GPU": 1e-9}]
)
@gen_test()
async def test_an_impossible_request_is_the_clients_error(odd: Any, eventually: Eventually) -> None:
    async with with_gpus({"GPU": [0]}) as (c, s, core, _):
        assert await c.submit(inc, 1) == 2
        assert core.is_active
        with dask.annotate(resources=odd):
            refused = c.compute(dask.delayed(add)(dask.delayed(inc)(1), 2))
        with pytest.raises(Exception, match=r"GPU|-1|nan|number|large"):
            await asyncio.wait_for(asyncio.ensure_future(refused.result()), 60)
        del refused
        # Nothing is left of it, so the next graph is the core's.
        await eventually(lambda: not len(s.tasks))
        assert await c.submit(exclusive, 1) == 2
        assert core.is_active
        assert not core.escapes or core.adoptions == 2
