"""No task waits for ever or without need: on real schedulers, workers and pools."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from time import sleep
from typing import Any

import pytest
from distributed import get_client, rejoin, secede
from distributed.worker_state_machine import WorkerState

import dask
from backhaul._native import ResourcePools
from backhaul.dask import get_resources, resource_id, resources
from backhaul.dask.local import resource_gate
from backhaul.dask.local.resource_gate import Gate
from backhaul.dask.resource_pools import rejoin as rejoin_module
from backhaul.dask.resource_pools import scheduler_slots
from backhaul.dask.resource_pools.declarations import checked
from backhaul.dask.resource_pools.requests import Needs
from backhaul.dask.resource_pools.scheduler_slots import SchedulerSlots
from backhaul.dask.resource_pools.worker_state import SlottedWorkerState, slots_of
from backhaul.errors import ResourceError
from tests.dask.conftest import Eventually
from tests.dask.gates import Gates
from tests.dask.slots_checks import PASSES_MAX, check_slots
from tests.dask.slotted_cluster import ISLANDS, all_is_free, cluster, gate, slots

#: Tasks in the order in which they began, and what each of them waits for
begun: list[Any] = []
gates = Gates()


@pytest.fixture(autouse=True)
def fresh_globals() -> Iterator[None]:
    gate.clear()
    begun.clear()
    gates.clear()
    yield
    gate.set()
    gates.open_all()


@resources(GPU=1, CPU=0)
def single(number: int) -> int:
    begun.append(number)
    assert gates[number].wait(300)
    return number


@resources(GPU=2, CPU=0)
def pair() -> Any:
    begun.append("pair")
    return resource_id("GPU")


@pytest.mark.asyncio
async def test_a_whole_group_is_had_while_single_units_keep_being_asked_for(
    eventually: Eventually,
) -> None:
    async with cluster({"GPU": [[0, 1]]}) as (client, _, (worker,)):
        futures = dict(enumerate(client.map(single, range(6), priority=1)))
        await eventually(lambda: len(begun) == 2)
        both = client.submit(pair)
        futures |= dict(enumerate(client.map(single, range(6, 90)), 6))
        ended: set[int] = set()

        def running() -> list[int]:
            return [number for number in begun if number not in ended and number != "pair"]

        # One at a time, so that both units are never free at once by chance.
        while "pair" not in begun and len(ended) < 80:
            await eventually(lambda: running() or "pair" in begun)
            if running():
                number = running()[0]
                ended.add(number)
                gates[number].set()
                await futures[number]
        # Those before it, and those that may go past it at the scheduler and at the worker
        assert begun.index("pair") <= 6 + 2 * (PASSES_MAX + 4)
        for number in futures:
            gates[number].set()
        assert await both == (0, 1)
        assert await client.gather(list(futures.values())) == list(range(90))
        await eventually(lambda: all_is_free(worker))


@resources(GPU=1, CPU=0)
def comes_back() -> Any:
    first = resource_id("GPU")
    secede()
    begun.append("left")
    assert gate.wait(300)
    rejoin()
    return first, resource_id("GPU"), get_resources()


@pytest.mark.asyncio
async def test_a_task_that_rejoins_holds_its_units_again(eventually: Eventually) -> None:
    async with cluster({"GPU": 1}) as (client, _, (worker,)):
        leaves = client.submit(comes_back)
        await eventually(lambda: "left" in begun)
        holder = client.submit(single, 0)
        await eventually(lambda: 0 in begun)
        waits = client.submit(single, 1)
        gates[1].set()
        gate.set()
        await eventually(lambda: slots(worker)._returning)
        assert not leaves.done()
        gates[0].set()
        # It runs already, so it is the next.
        assert await leaves == (0, 0, {"GPU": (0,), "CPU": 0})
        assert await client.gather([holder, waits]) == [0, 1]
        await eventually(lambda: all_is_free(worker))
        check_slots(worker.state)


@resources(GPU=1, CPU=0)
def comes_back_and_leaves_again() -> Any:
    for number in ("first", "second", "third"):
        secede()
        begun.append(number)
        assert gates[number].wait(300)
        rejoin()
    return resource_id("GPU")


@pytest.mark.asyncio
async def test_a_task_that_secedes_again_returns_its_units_again(eventually: Eventually) -> None:
    async with cluster({"GPU": 1}) as (client, _, (worker,)):
        leaves = client.submit(comes_back_and_leaves_again)
        for number, name in enumerate(("first", "second", "third")):
            await eventually(partial(begun.__contains__, name))
            # There is one unit, which others have meanwhile.
            gates[number].set()
            assert await client.submit(single, number) == number
            check_slots(worker.state)
            gates[name].set()
        assert await leaves == 0
        await eventually(lambda: all_is_free(worker))
        check_slots(worker.state)


@resources(GPU=1)
def computes_inside() -> Any:
    inner = get_client().get({"x": (abs, -2)}, "x")
    return inner, resource_id("GPU")


@pytest.mark.asyncio
async def test_a_task_that_computes_a_graph_inside_holds_its_unit_afterwards(
    eventually: Eventually,
) -> None:
    async with cluster({"GPU": 2}, nthreads=1) as (client, _, (worker,)):
        found = await client.gather([client.submit(computes_inside, pure=False) for _ in range(6)])
        assert {inner for inner, _ in found} == {2}
        assert {unit for _, unit in found} <= {0, 1}
        await eventually(lambda: all_is_free(worker))


@resources(GPU=1, CPU=0)
def leaves_and_is_back() -> Any:
    secede()
    rejoin()
    # The event loop may handle the first only now.
    sleep(0.01)
    return resource_id("GPU")


@pytest.mark.asyncio
async def test_a_task_that_rejoins_immediately_holds_units_too(eventually: Eventually) -> None:
    async with cluster({"GPU": 2}) as (client, _, (worker,)):
        futures = [client.submit(leaves_and_is_back, pure=False) for _ in range(20)]
        assert set(await client.gather(futures)) <= {0, 1}
        await eventually(lambda: all_is_free(worker))


@pytest.mark.asyncio
async def test_a_task_that_cannot_hold_its_units_again_gets_an_error(
    eventually: Eventually,
) -> None:
    async with cluster({"GPU": 1}) as (client, _, (worker,)):
        leaves = client.submit(comes_back)
        await eventually(lambda: "left" in begun)
        await worker.set_resources(GPU=0)
        gate.set()
        with pytest.raises(ResourceError, match=r"cannot rejoin: worker .* has less by now"):
            await leaves


@resources(GPU=1)
def comes_back_to_a_thread() -> Any:
    secede()
    begun.append("left")
    assert gate.wait(300)
    rejoin()
    return resource_id("GPU")


def stays() -> None:
    gates["stays"].set()
    assert gates["is to end"].wait(300)


def leaves() -> None:
    gates["leaves"].set()
    assert gates["is to leave"].wait(300)
    secede()


@pytest.mark.asyncio
async def test_a_task_that_rejoins_takes_no_thread_that_has_begun_another_task(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()
    loop = asyncio.get_running_loop()
    call = loop.call_soon_threadsafe

    def noting(function: Any, *args: Any, **options: Any) -> asyncio.Handle:
        handle = call(function, *args, **options)
        if function is rejoin_module._ask:
            asked.set()
        return handle

    monkeypatch.setattr(loop, "call_soon_threadsafe", noting)
    async with cluster({"GPU": 1}, nthreads=1) as (client, _, (worker,)):
        returns = client.submit(comes_back_to_a_thread)
        await eventually(lambda: worker.state.long_running)
        first = client.submit(stays)
        await eventually(gates["stays"].is_set)
        second = client.submit(leaves)
        await eventually(lambda: worker.state.ready)
        # The event loop stands still, and handles all this afterwards.
        gate.set()
        assert asked.wait(300)
        gates["is to end"].set()
        assert gates["leaves"].wait(300)
        await first
        state = worker.state.tasks[second.key].state
        gates["is to leave"].set()
        assert state == "executing"
        assert await client.gather([returns, second]) == [0, None]
        await eventually(lambda: all_is_free(worker))
        check_slots(worker.state)


class Steps(Executor):
    """A pool that runs its functions on demand, one at a time."""

    def __init__(self) -> None:
        self.given: deque[Callable[[], Any]] = deque()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.given.append(lambda: fn(*args, **kwargs))
        return Future()


@pytest.mark.parametrize("passes_max", [PASSES_MAX, 1000])
def test_the_gate_of_local_schedulers_lets_large_requests_through(
    monkeypatch: pytest.MonkeyPatch, passes_max: int
) -> None:
    pools = partial(ResourcePools, passes_max=passes_max)
    monkeypatch.setattr(resource_gate, "ResourcePools", pools)
    pool = Steps()
    one, both = Needs({"GPU": 1, "CPU": 0}), Needs({"GPU": 2, "CPU": 0})
    needs: dict[Any, Needs] = {"pair": both, **dict.fromkeys(range(200), one)}
    found = Gate(checked({"GPU": [[0, 1]], "CPU": 1.0}), needs, pool)

    def run(batch: Any) -> None:
        ((key, _),) = batch
        begun.append(key)
        # Each task that ends is followed by another one, as long as there are any.
        if key != "pair" and key + 2 < 200:
            found.submit(run, [(key + 2, None)])

    for key in (0, 1, "pair"):
        found.submit(run, [(key, None)])
    while pool.given:
        pool.given.popleft()()
    # Without turns, it comes when there are no others left.
    assert (begun.index("pair") < 30) == (passes_max < 1000)
    assert len(begun) == 201


def random_work(seed: int) -> list[tuple[Callable[..., Any], dict[str, float]]]:
    chosen = random.Random(seed)

    def plain(number: int) -> int:
        sleep(0.001 * (number % 3))
        return number

    def fails(number: int) -> int:
        raise ZeroDivisionError(number)

    def leaves(number: int) -> int:
        secede()
        sleep(0.001)
        if number % 2:
            rejoin()
        return number

    kinds = [plain, plain, plain, fails, leaves]
    asked: list[dict[str, float]] = [
        {}, {"GPU": 1, "CPU": 0}, {"GPU": 2, "CPU": 0}, {"GPU": 0.5}, {"GPU": 1, "MEMORY": 30e9},
        {"MEMORY": 40e9, "CPU": 0}, {"CPU": 2}, {"CPU": 0},
    ]  # fmt: skip
    return [(chosen.choice(kinds), chosen.choice(asked)) for _ in range(120)]


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(2))
async def test_no_slot_is_idle_while_a_task_waits_that_may_run(
    seed: int, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    broken: list[str] = []
    woken: set[int] = set()
    drain = SchedulerSlots.drain

    def handle_stimulus(self: Any, *events: Any) -> Any:
        woken.discard(id(self))
        instructions = WorkerState.handle_stimulus(self, *events)
        try:
            # Not if it has asked to look again.
            if id(self) not in woken:
                check_slots(self)
        except AssertionError as error:
            broken.append(f"after {events}: {error}")
        return instructions

    def noting(wake: Callable[[], object], state: int) -> Callable[[], object]:
        def noted() -> None:
            woken.add(state)
            wake()

        return noted

    def checked_drain(self: SchedulerSlots) -> None:
        drain(self)
        for ts in self.waiting.values():
            asked = self.asked.by(ts)
            if ts.state != "no-worker" or asked is None or ts.worker_restrictions:
                continue
            number = self.places.least_loaded(asked.signature)
            if number is not None and self.places.has_room(asked.signature, number):
                broken.append(f"{ts} waits for {asked}, for which there is room")

    monkeypatch.setattr(SlottedWorkerState, "handle_stimulus", handle_stimulus, raising=False)
    monkeypatch.setattr(SchedulerSlots, "drain", checked_drain)
    chosen = random.Random(seed)
    async with cluster(ISLANDS, ISLANDS) as (client, scheduler, workers):
        for worker in workers:
            own = slots_of(worker.state)
            assert own is not None
            own._wake = noting(own._wake, id(worker.state))
        futures = []
        for number, (function, amounts) in enumerate(random_work(seed)):
            with dask.annotate(resources=amounts) if amounts else dask.annotate():
                futures.append(client.submit(function, number, pure=False))
            if number % 10 == 9:
                await asyncio.sleep(0)
                await futures[chosen.randrange(len(futures))].cancel()
        await eventually(lambda: all(future.done() for future in futures))
        await eventually(lambda: all(all_is_free(worker) for worker in workers))
        found = scheduler_slots.slots_of(scheduler)
        assert found is not None
        await eventually(lambda: not found.booked)
    assert broken == []
