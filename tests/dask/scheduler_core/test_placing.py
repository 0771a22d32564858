"""A running scheduler whose state is in the core, and that places tasks by what links cost."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from distributed import Client, Scheduler, Worker
from distributed.utils_test import gen_test, inc

import dask
from backhaul import _native
from backhaul.dask.placement.link_placement import LinkPlacement, install
from backhaul.dask.scheduler.core.live_core import LiveCore
from backhaul.dask.scheduler.core.placement import placement_of
from tests.dask.conftest import Eventually

from .test_live import cluster

pytestmark = pytest.mark.usefixtures("plain_dask", "by_engine")

PLACES = {"distributed.comm.backhaul.placement.enabled": True}

#: Functions of tasks wait for it, in this process
go_on = threading.Event()


@pytest.fixture(autouse=True)
def fresh() -> None:
    go_on.clear()


def waits_for(value: Any) -> Any:
    assert go_on.wait(60)
    return value


def block(number: int) -> bytes:
    """Make a result of a size that decides where it is combined."""
    return bytes(100_000 + number)


def joined(*blocks: bytes) -> int:
    return sum(map(len, blocks))


def placement_on(scheduler: Scheduler) -> LinkPlacement:
    found = placement_of(scheduler)
    assert found is not None
    return found


def pairs(client: Client, count: int, tag: str) -> Any:
    """Submit what combines two results that are made first, as one graph."""
    graph: dict[str, Any] = {}
    for number in range(count):
        for side in "ab":
            graph[f"block-{tag}{side}{number}"] = (block, number)
        graph[f"joined-{tag}{number}"] = (joined, *(f"block-{tag}{side}{number}" for side in "ab"))
    keys = [f"joined-{tag}{number}" for number in range(count)]
    return client.get(graph, keys, sync=False)


async def computed(client: Client, core: LiveCore, tag: str) -> None:
    futures = pairs(client, 20, tag)
    assert await client.gather(futures) == [2 * (100_000 + number) for number in range(20)]
    assert core.is_active, core.escapes


@gen_test()
async def test_tasks_are_placed_without_leaving_the_core(eventually: Eventually) -> None:
    async with cluster(workers=2, settings=PLACES) as (c, s, core, _):
        placement = placement_on(s)
        for tag in ("x", "y", "z"):
            await computed(c, core, tag)
        said = core.core.placing()
        assert said is not None
        # The last of a size counts for an eighth.
        assert 100_000 < said["result_bytes"]["block"] < 100_100
        assert said["hints"] == {}
        assert await c.submit(inc, c.submit(inc, 1)) == 3
        failing = c.submit(divmod, 1, 0)
        with pytest.raises(ZeroDivisionError):
            await failing
        failing.release()
        await eventually(lambda: not len(s.tasks))
        assert placement.mirror.promises() == 0
        assert core.is_active
        assert not core.escapes
        core.escape("a look")
        assert placement.result_bytes == said["result_bytes"] | {
            "inc": placement.result_bytes["inc"]
        }


@gen_test()
async def test_plans_end_with_the_core_and_sizes_stay(eventually: Eventually) -> None:
    async with cluster(workers=0, settings=PLACES) as (c, s, core, _):
        placement = placement_on(s)
        # Two hosts, as far as addresses show
        async with (
            Worker(s.address, nthreads=1, host="127.0.0.1", validate=True),
            Worker(s.address, nthreads=1, host="127.0.0.2", validate=True),
        ):
            assert len(placement.hosts) == 2
            await computed(c, core, "x")
            # Both are busy when the next graph comes, so that its roots wait.
            busy = c.map(waits_for, range(4), pure=False)
            await eventually(lambda: sum(len(ws.processing) for ws in s.workers.values()) == 4)
            futures = pairs(c, 20, "y")
            await eventually(lambda: "joined-y0" in s.tasks)
            assert core.is_active, core.escapes
            said = core.core.placing()
            assert said is not None
            hints = said["hints"]
            assert len(hints) > 20
            assert set(hints.values()) == set(s.workers)
            # Roots that are combined are planned for one worker.
            apart = sum(
                hints.get(f"block-ya{number}") != hints.get(f"block-yb{number}")
                for number in range(20)
            )
            assert apart <= 4
            core.escape("a look")
            assert placement.result_bytes == said["result_bytes"]
            assert placement.mirror.promises() == 0
            assert len(placement.hosts) == 2
            go_on.set()
            assert await c.gather(futures) == [2 * (100_000 + number) for number in range(20)]
            del futures, busy
            await eventually(lambda: not s.tasks)
            # The next graph is the core's again, and what was learned with it.
            await computed(c, core, "z")
            assert core.adoptions == 2


@gen_test()
async def test_a_worker_that_leaves_is_given_nothing(eventually: Eventually) -> None:
    # It has the shortest queue of its host as soon as its tasks are taken from it.
    async with cluster(workers=2, settings=PLACES) as (c, s, core, workers):
        placement_on(s)
        data = await c.scatter(b"x" * 1000, workers=[workers[0].address], hash=False)
        # Each a group of its own: those of a large one are roots.
        futures = [c.submit(waits_for, data, key=f"waits{n}for") for n in range(12)]

        def begun() -> bool:
            return all(len(ws.processing) > 1 for ws in s.workers.values())

        await eventually(begun)
        leaving = workers[1].address
        await s.remove_worker(leaving, stimulus_id="leaves", expected=True)
        assert leaving not in s.workers
        left = {ts.processing_on.address for ts in s.tasks.values() if ts.processing_on}
        assert left == {workers[0].address}
        assert core.is_active, core.escapes
        go_on.set()
        assert await c.gather(futures) == [b"x" * 1000] * 12


@gen_test()
async def test_a_graph_on_data_that_was_put_there_is_planned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Such data has no priority.
    async with cluster(workers=2, settings=PLACES) as (c, s, _, _):
        placement_on(s)
        data = await c.scatter([1, 2])
        assert await c.gather(c.map(inc, data)) == [2, 3]
        assert await c.submit(sum, data) == 3
    assert "TypeError" not in caplog.text


def _detach(scheduler: Scheduler) -> None:
    placement_on(scheduler).detach()


def _remove(scheduler: Scheduler) -> None:
    scheduler.remove_plugin(name=LinkPlacement.name)


@pytest.mark.parametrize("switch_off", [_detach, _remove])
@gen_test()
async def test_placement_that_is_switched_off_is_noticed(
    switch_off: Callable[[Scheduler], None], eventually: Eventually
) -> None:
    async with cluster(workers=2, settings=PLACES) as (c, s, core, _):
        await computed(c, core, "x")
        switch_off(s)
        assert core.escapes == {"placement is switched": 1}
        await eventually(lambda: not s.tasks)
        # A worker that is not in the costs gets tasks all the same.
        async with Worker(s.address, nthreads=1, validate=True):
            futures = pairs(c, 20, "y")
            assert await c.gather(futures) == [2 * (100_000 + number) for number in range(20)]
            assert core.is_active
            assert core.core.placing() is None


@gen_test()
async def test_placement_that_is_switched_on_is_noticed(eventually: Eventually) -> None:
    async with cluster(workers=2) as (c, s, core, _):
        await computed(c, core, "x")
        assert core.core.placing() is None
        with dask.config.set(PLACES):
            assert install(s) is placement_on(s)
        assert core.escapes == {"placement is switched": 1}
        await eventually(lambda: not s.tasks)
        await computed(c, core, "y")
        assert core.core.placing() is not None


class _Slow:
    """A worker whose attributes are read by Python code, as Dask's hash is."""

    address = "tcp://slow"
    nthreads = 1
    nbytes = 0
    task_prefix_count: ClassVar[dict[str, int]] = {}

    def __hash__(self) -> int:
        return sum(range(100))


def test_another_thread_may_ask_while_a_worker_is_chosen() -> None:
    worker = _Slow()
    mirror = _native.Placement(beta=1.0, beta_private=1.0)
    mirror.add_worker(worker, 0, 0)
    result = SimpleNamespace(nbytes=8, who_has={worker}, dependencies=())
    task = SimpleNamespace(dependencies=[result], dependents=())
    scheduler = SimpleNamespace(task_prefixes={})
    chosen = []

    def choose() -> None:
        for _ in range(3000):
            chosen.append(mirror.choose(task, scheduler, 0.5, {worker}, 0.0))

    def ask() -> None:
        while len(chosen) < 3000:
            mirror.promises()

    threads = [threading.Thread(target=act, daemon=True) for act in (choose, ask)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert chosen == [worker] * 3000
