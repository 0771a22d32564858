"""Resources with identity on real schedulers, workers and streams, with upstream's validation."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker, get_worker, secede, wait

import dask
from backhaul.dask import get_resources, resource_id, resources
from backhaul.dask.compat.names import threads_lock
from backhaul.dask.resource_pools import scheduler_slots, worker_state
from backhaul.dask.resource_pools.leases import current_lease
from backhaul.dask.resource_pools.overflow_pool import OverflowThreadPoolExecutor
from backhaul.errors import ConfigError, ResourceError
from tests.dask.conftest import Eventually
from tests.dask.slotted_cluster import ISLANDS, all_is_free, cluster, gate, slots

#: Workers live in this process: tasks leave here what they hold.
holders: Counter[int] = Counter()
overbooked: list[int] = []
lock = threading.Lock()


@pytest.fixture(autouse=True)
def fresh_gate() -> Any:
    gate.clear()
    holders.clear()
    overbooked.clear()
    yield
    gate.set()


@resources(GPU=1, CPU=0)
def on_gpu(number: int) -> Any:
    return resource_id("GPU"), get_resources()


def gated_held(_: Any) -> Any:
    gate.wait(60)
    return get_resources()


@resources(GPU=1, CPU=0)
def exclusive(number: int) -> None:
    """Count holders of the unit, of which there may never be two."""
    unit = resource_id("GPU")
    assert isinstance(unit, int)
    with lock:
        holders[unit] += 1
        if holders[unit] > 1:
            overbooked.append(unit)
    # Others get a chance to take it meanwhile.
    os.sched_yield()
    sum(range(1000))
    with lock:
        holders[unit] -= 1


@resources(GPU=1, CPU=0)
def gated_gpu(number: int) -> int:
    assert gate.wait(300)
    return number


@resources(CPU=0)
def gated_io(number: int) -> int:
    assert gate.wait(300)
    return number


@resources(GPU=1)
def gated_gpu_and_thread(number: int) -> int:
    assert gate.wait(300)
    return number


@resources(GPU=1)
def leaves() -> str:
    secede()
    assert gate.wait(300)
    with pytest.raises(ResourceError, match="gave back all it held"):
        resource_id("GPU")
    return str(get_resources())


def gated(number: int) -> int:
    assert gate.wait(300)
    return number


def quick(number: int) -> int:
    return number


@pytest.mark.asyncio
async def test_a_task_sees_its_unit_and_what_else_it_holds() -> None:
    async with cluster(ISLANDS) as (client, _, (worker,)):
        unit, held = await client.submit(on_gpu, 1)
        assert unit in range(4)
        assert held == {"GPU": (unit,), "CPU": 0}

        @resources(GPU=2, MEMORY=1e9)
        def pair() -> Any:
            try:
                resource_id("MEMORY")
            except ResourceError as error:
                return resource_id("GPU"), get_resources(), str(error)

        units, held, refusal = await client.submit(pair)
        assert units in [(0, 1), (2, 3)]
        assert held == {"GPU": units, "MEMORY": 1e9, "CPU": 1}
        assert refusal == "MEMORY has no ids: the task holds an amount of it, 1e+09"
        assert await client.submit(lambda: get_resources()) == {}
        assert all_is_free(worker)


def test_outside_of_a_task_there_is_no_unit() -> None:
    with pytest.raises(ResourceError, match="none is running here"):
        resource_id("GPU")
    assert get_resources() == {}


@pytest.mark.asyncio
async def test_no_unit_has_two_holders_and_all_come_back() -> None:
    async with cluster(ISLANDS) as (client, _, (worker,)):
        await client.gather(client.map(exclusive, range(200)))
        assert overbooked == []
        assert all_is_free(worker)


@pytest.mark.asyncio
async def test_a_free_resource_is_not_kept_from_a_task_by_a_blocked_one(
    eventually: Eventually,
) -> None:
    async with cluster({"GPU": 1, "DISK": 1}) as (client, _, (worker,)):
        holder = client.submit(gated, 0, resources={"GPU": 1})
        await eventually(lambda: slots(worker).held)
        blocked = client.submit(quick, 1, resources={"GPU": 1}, priority=10)
        await eventually(lambda: worker.state.constrained)
        # dask/distributed#6136: it waited for the one ahead of it.
        assert await client.submit(quick, 2, resources={"DISK": 1}) == 2
        assert await client.submit(quick, 3) == 3
        assert blocked.status == "pending"
        gate.set()
        assert await client.gather([holder, blocked]) == [0, 1]


@pytest.mark.asyncio
async def test_tasks_without_cpu_run_beside_full_threads_and_the_reverse(
    eventually: Eventually,
) -> None:
    async with cluster({"GPU": 1}) as (client, _, (worker,)):
        full = client.map(gated, range(20))
        await eventually(lambda: worker.state.executing_count == 2)
        assert await client.submit(on_gpu, 1)
        gate.set()
        await client.gather(full)
        gate.clear()
        beside = [client.submit(gated_gpu, 0), *client.map(gated_io, range(1, 100))]
        await eventually(lambda: slots(worker).beside == 100)
        assert await client.gather(client.map(quick, range(20))) == list(range(20))
        gate.set()
        assert await client.gather(beside) == list(range(100))
        await eventually(lambda: all_is_free(worker))
        # Threads that are not needed any more are gone.
        executor: Any = worker.executors["backhaul-beside"]
        await eventually(lambda: len(executor._threads) < 20)


def test_threads_that_are_about_to_leave_are_not_counted_on() -> None:
    pool: Any = OverflowThreadPoolExecutor()
    try:
        together = threading.Barrier(21)
        pool.grow(20)
        for _ in range(20):
            pool.submit(together.wait, 60)
        together.wait(300)
        # Twelve have to leave, and cannot yet.
        with threads_lock:
            pool.shrink(0)
            together = threading.Barrier(13)
            pool.grow(12)
            for _ in range(12):
                pool.submit(together.wait, 60)
        # All of them run at once, or this breaks.
        together.wait(300)
    finally:
        pool.shutdown(wait=False)


@pytest.mark.asyncio
async def test_roots_are_not_held_back_by_tasks_without_cpu(eventually: Eventually) -> None:
    async with cluster({"GPU": 4}) as (client, scheduler, (worker,)):
        beside = client.map(gated_gpu, range(4))
        await eventually(lambda: slots(worker).beside == 4)
        # More than two for each thread: Dask would queue them at the scheduler.
        assert await client.gather(client.map(quick, range(50))) == list(range(50))
        assert worker.address in scheduler.idle
        gate.set()
        await client.gather(beside)


@pytest.mark.asyncio
async def test_tasks_that_ask_for_several_threads_are_not_starved(eventually: Eventually) -> None:
    @resources(CPU=2)
    def wide() -> int:
        worker = get_worker()
        return len(worker.state.executing)

    async with cluster({}) as (client, _, (worker,)):
        first = client.map(gated, range(20))
        await eventually(lambda: worker.state.executing_count == 2)
        running = client.submit(wide, priority=10)
        await eventually(lambda: slots(worker).waiting)
        gate.set()
        assert await running == 1
        await client.gather(first)


@pytest.mark.asyncio
async def test_tasks_are_spread_and_wait_at_the_scheduler_for_room(eventually: Eventually) -> None:
    async with cluster({"GPU": 2}, {"GPU": 2}) as (client, scheduler, workers):
        eight = client.map(gated_gpu, range(8))
        await eventually(lambda: sum(len(slots(worker).held) for worker in workers) == 4)
        assert [len(ws.processing) for ws in scheduler.workers.values()] == [4, 4]
        more = client.map(gated_gpu, range(8, 20))
        await eventually(lambda: len(scheduler.unrunnable) == 12)
        gate.set()
        assert await client.gather(eight + more) == list(range(20))
        assert not scheduler.unrunnable
        assert not any(any(ws.used_resources.values()) for ws in scheduler.workers.values())


@pytest.mark.asyncio
async def test_a_worker_that_joins_takes_of_what_waits(eventually: Eventually) -> None:
    async with cluster({"GPU": 1}) as (client, scheduler, _):
        futures = client.map(gated_gpu, range(20))
        await eventually(lambda: len(scheduler.unrunnable) == 18)
        with dask.config.set({"backhaul.resources": {"GPU": 4}}):
            async with Worker(scheduler.address, nthreads=1, host="127.0.0.1") as joined:
                await eventually(lambda: len(slots(joined).held) == 4)
                gate.set()
                assert await client.gather(futures) == list(range(20))


@pytest.mark.asyncio
async def test_tasks_do_not_wait_where_waiting_would_fail_them(eventually: Eventually) -> None:
    with dask.config.set({"distributed.scheduler.no-workers-timeout": "1h"}):
        async with cluster({"GPU": 1}, {"GPU": 1}) as (client, scheduler, _):
            futures = client.map(gated_gpu, range(12))
            processing = scheduler.workers.values()
            await eventually(lambda: [len(ws.processing) for ws in processing] == [6, 6])
            assert not scheduler.unrunnable
            gate.set()
            assert await client.gather(futures) == list(range(12))


@pytest.mark.asyncio
async def test_chains_stay_on_the_unit_of_their_inputs() -> None:
    @resources(GPU=1, CPU=0, affinity=["GPU"])
    def step(before: tuple[int, ...]) -> tuple[int, ...]:
        unit = resource_id("GPU")
        assert isinstance(unit, int)
        return (*before, unit)

    async with cluster(ISLANDS) as (client, _, _):
        for start in range(4):
            first = client.submit(step, (), key=f"first-{start}")
            chain = first
            for link in range(5):
                chain = client.submit(step, chain, key=f"chain-{start}-{link}")
            assert len(set(await chain)) == 1


@pytest.mark.asyncio
async def test_leases_come_back_through_error_cancel_and_secede(eventually: Eventually) -> None:
    @resources(GPU=1, CPU=0)
    def fails() -> None:
        raise RuntimeError("on purpose")

    async with cluster({"GPU": 1}) as (client, scheduler, (worker,)):
        for _ in range(3):
            with pytest.raises(RuntimeError, match="on purpose"):
                await client.submit(fails, pure=False)
        assert all_is_free(worker)

        left = client.submit(leaves)
        await eventually(lambda: worker.state.long_running)
        assert await client.submit(on_gpu, 1)
        gate.set()
        assert await left == "{}"

        gate.clear()
        cancelled = client.submit(gated_gpu, 7)
        await eventually(lambda: slots(worker).held)
        await client.cancel(cancelled)
        gate.set()
        await eventually(lambda: all_is_free(worker))
        assert await client.submit(on_gpu, 2)
        await eventually(lambda: not scheduler_slots.slots_of(scheduler).booked)  # type: ignore[union-attr]


@pytest.mark.asyncio
async def test_leases_come_back_when_a_worker_is_lost(eventually: Eventually) -> None:
    async with cluster({"GPU": 1}, {"GPU": 1}) as (client, scheduler, workers):
        four = client.map(gated_gpu, range(4))
        await eventually(lambda: all(slots(worker).held for worker in workers))
        await workers[0].close(executor_wait=False)
        gate.set()
        assert await client.gather(four) == list(range(4))
        await eventually(lambda: all_is_free(workers[1]))
        (ws,) = scheduler.workers.values()
        assert ws.used_resources["GPU"] == 0


@pytest.mark.asyncio
async def test_units_in_use_stay_in_use_when_units_are_added(eventually: Eventually) -> None:
    async with cluster({"GPU": 1}) as (client, scheduler, (worker,)):
        first = client.submit(gated_gpu, 0)
        await eventually(lambda: slots(worker).held)
        second = client.submit(gated_gpu, 1)
        await eventually(lambda: slots(worker).waiting)
        await worker.set_resources(GPU=2)
        (ws,) = scheduler.workers.values()
        assert ws.used_resources == {"GPU": 2}
        await eventually(lambda: len(slots(worker).held) == 2)
        gate.set()
        await client.gather([first, second])
        assert ws.used_resources == {"GPU": 0}


@pytest.mark.asyncio
async def test_a_request_that_no_worker_can_meet_is_logged_once_and_waits(
    caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    async with cluster({"GPU": 2}) as (client, scheduler, _):
        with caplog.at_level(
            logging.WARNING, logger="backhaul.dask.resource_pools.scheduler_slots"
        ):
            futures = client.map(quick, range(5), resources={"GPU": 3})
            await eventually(lambda: len(scheduler.unrunnable) == 5)
        (record,) = (each for each in caplog.records if each.name == scheduler_slots.__name__)
        assert "3 of GPU are more than the 2 that there are" in record.getMessage()
        with dask.config.set({"backhaul.resources": {"GPU": 4}}):
            async with Worker(scheduler.address, nthreads=1, host="127.0.0.1"):
                assert await client.gather(futures) == list(range(5))


@pytest.mark.asyncio
async def test_the_decorator_survives_fusion_and_pickling() -> None:
    array = pytest.importorskip("dask.array")
    async with cluster({"GPU": 2}) as (client, _, _):

        @resources(GPU=1, CPU=0)
        def block(x: Any) -> Any:
            resource_id("GPU")
            return x + 1

        x = array.ones((4, 4), chunks=2).map_blocks(block, dtype=float) * 2
        assert (await client.compute(x.sum())) == 64
        bag = pytest.importorskip("dask.bag").from_sequence(range(4)).map(block)
        assert await client.compute(bag) == [1, 2, 3, 4]
        graph = {"x": 1, "y": (block, "x")}
        assert await client.get(graph, "y", sync=False) == 2


@pytest.mark.asyncio
async def test_cpu_is_never_a_restriction_of_dasks() -> None:
    async with cluster({"GPU": 1}) as (client, scheduler, _):
        future = client.submit(quick, 1, resources={"GPU": 1, "CPU": 0})
        assert await future == 1
        assert scheduler.tasks[future.key].resource_restrictions == {"GPU": 1}


@pytest.mark.asyncio
async def test_resources_that_are_named_as_ours_are_told_from_them(eventually: Eventually) -> None:
    named = {"CPU": 1.0, "declared CPU": 1.0, "tasks without CPU": 1.0}
    async with (
        Scheduler(
            protocol="backhaul", host="127.0.0.1", port=0, dashboard_address=":0"
        ) as scheduler,
        Worker(scheduler.address, nthreads=3, resources=named, validate=True) as worker,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        without_threads = client.map(gated_io, range(4))
        await eventually(lambda: worker.state.executing_count == 4)
        each = [client.submit(gated_held, name, resources={name: 1}) for name in named]
        await eventually(lambda: worker.state.executing_count == 7)
        more = client.submit(gated_held, 2, resources={"declared CPU": 1})
        await eventually(lambda: more.key in worker.state.tasks)
        assert worker.state.executing_count == 7
        gate.set()
        assert await client.gather(without_threads) == list(range(4))
        others = ("declared CPU", "declared declared CPU", "declared tasks without CPU")
        for found, name in zip(
            await client.gather([*each, more]), [*others, others[1]], strict=True
        ):
            assert found.keys() == {name, "CPU"}
        assert not worker.state.available_resources.keys() - named.keys()


@pytest.mark.parametrize(
    ("amounts", "affinity", "message"),
    [
        ({"GPU": -1}, (), "cannot ask for that much GPU: -1 is negative"),
        ({"GPU": float("nan")}, (), "cannot ask for that much GPU: NaN is no amount"),
        ({"GPU": "two"}, (), "cannot ask for 'two' of GPU: it is no number"),
        ({"GPU": 1}, ["NIC"], "affinity to NIC, of which the task asks for nothing"),
        ({"CPU": 1}, ["CPU"], "affinity to CPU: the threads of a worker have no ids"),
    ],
)
def test_an_impossible_request_is_refused(amounts: Any, affinity: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resources(affinity=affinity, **amounts)


@pytest.mark.asyncio
async def test_an_impossible_annotation_fails_the_graph() -> None:
    async with cluster({"GPU": 1}) as (client, _, _):
        future = client.submit(quick, 1, resources={"GPU": float("nan")})
        with pytest.raises(ConfigError, match="cannot ask for that much GPU: NaN is no amount"):
            await future


@pytest.mark.asyncio
async def test_spans_and_coroutines_hold_what_they_ask_for(eventually: Eventually) -> None:
    from distributed import span

    @resources(GPU=1, CPU=0)
    async def waits() -> Any:
        await asyncio.sleep(0)
        return resource_id("GPU")

    async with cluster({"GPU": 1}) as (client, _, (worker,)):
        full = client.map(gated, range(2))
        await eventually(lambda: worker.state.executing_count == 2)
        assert await client.submit(waits) == 0
        with span("named"):
            found = client.submit(on_gpu, 3)
        assert (await found)[0] == 0
        gate.set()
        await wait(full)


def has_lease() -> bool:
    return current_lease.get() is not None


async def has_lease_while_it_waits() -> bool:
    await asyncio.sleep(0)
    return current_lease.get() is not None


@resources(GPU=1)
async def gated_gpu_in_the_event_loop(_: int) -> None:
    while not gate.is_set():
        await asyncio.sleep(0.005)


@pytest.mark.asyncio
@pytest.mark.parametrize("first", [gated_gpu_and_thread, gated_gpu_in_the_event_loop])
async def test_callbacks_of_a_task_hold_none_of_its_units(
    first: Any, eventually: Eventually
) -> None:
    async with cluster({"GPU": 1}, nthreads=1) as (client, _, (worker,)):
        before = client.submit(first, 1)
        await eventually(lambda: worker.state.executing)
        behind = [client.submit(each) for each in (has_lease, has_lease_while_it_waits)]
        await eventually(lambda: len(worker.state.ready) == len(behind))
        gate.set()
        await before
        assert await client.gather(behind) == [False, False]
        # Threads begin with some of these by themselves.
        assert not any([await client.submit(has_lease, pure=False) for _ in range(20)])


@pytest.mark.asyncio
async def test_without_our_execution_tasks_hold_what_they_ask_for() -> None:
    from backhaul.dask.compat import activation

    key = "distributed.comm.backhaul.hot-path.execution"
    activation.uninstall()
    try:
        with dask.config.set({key: False}):
            async with cluster({"GPU": 1}) as (client, _, _):
                assert (await client.submit(on_gpu, 1))[0] == 0
    finally:
        activation.uninstall()
        activation.install()


@pytest.mark.asyncio
async def test_switched_off_all_is_as_upstream() -> None:
    with dask.config.set({"distributed.comm.backhaul.resources.enabled": False}):
        async with cluster({}) as (client, scheduler, (worker,)):
            assert scheduler_slots.slots_of(scheduler) is None
            assert worker_state.slots_of(worker.state) is None
            assert await client.submit(quick, 1) == 1


@resources(CORE=1, CPU=0)
def on_core(number: int) -> Any:
    return resource_id("CORE"), os.sched_getaffinity(0), threading.get_ident()


@pytest.mark.asyncio
async def test_a_task_runs_on_the_cores_that_it_holds() -> None:
    allowed = os.sched_getaffinity(0)
    async with cluster({"CORE": "all"}) as (client, _, (worker,)):
        assert worker.state.total_resources == {"CORE": len(allowed)}
        for core, cpus, _thread in await client.gather(client.map(on_core, range(8))):
            assert core in allowed
            assert cpus == {core}
        executor: Any = worker.executors["backhaul-beside"]
        # The threads of the pool are as they were.
        assert executor.submit(os.sched_getaffinity, 0).result(60) == allowed
        assert all_is_free(worker)


class FakeLibrary:
    """Stands for CuPy: it remembers which device each thread uses."""

    def __init__(self, devices: int) -> None:
        self.used: list[tuple[int, int]] = []
        library = self

        class Device:
            def __init__(self, number: int) -> None:
                self.number = number

            def use(self) -> None:
                library.used.append((threading.get_ident(), self.number))

        class Runtime:
            getDeviceCount = staticmethod(lambda: devices)

        class Cuda:
            runtime = Runtime

        Cuda.Device = Device  # type: ignore[attr-defined]
        self.cuda = Cuda


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("devices", "device_of"), [(4, lambda unit: unit), (2, lambda unit: unit // 2)]
)
async def test_the_device_of_the_unit_is_current_in_the_thread_of_the_task(
    monkeypatch: pytest.MonkeyPatch, devices: int, device_of: Callable[[int], int]
) -> None:
    library = FakeLibrary(devices)
    monkeypatch.setitem(__import__("sys").modules, "cupy", library)

    @resources(GPU=1, CPU=0)
    def where(number: int) -> Any:
        return threading.get_ident(), resource_id("GPU")

    async with cluster(ISLANDS) as (client, _, _):
        found = await client.gather(client.map(where, range(4)))
    assert {(thread, device_of(unit)) for thread, unit in found} == set(library.used)
