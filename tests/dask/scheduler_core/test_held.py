"""A core that takes over a scheduler which has tasks, futures and results."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from distributed import Client, Event, Scheduler, SchedulerPlugin, Worker, wait
from distributed.scheduler import TaskState
from distributed.utils_test import gen_test, inc, slowinc

import dask
from backhaul.dask import resources
from backhaul.dask.scheduler.core import adoption_pause
from backhaul.dask.scheduler.core.handlers import Handlers
from backhaul.dask.scheduler.core.plugin_bridge import Watchers
from backhaul.dask.scheduler.core.spans import Spans
from tests.dask.conftest import Eventually

from .test_live import add, cluster

pytestmark = pytest.mark.usefixtures("by_engine")


def fail(number: int) -> int:
    raise ValueError(f"no {number}")


def held_back(number: int, name: str) -> int:
    """Wait for an event of the cluster."""
    Event(name).wait()
    return number


@resources(CPU=0.5)
def takes_half(number: int) -> int:
    return number


@resources(CPU=0.5)
def waits_for_half(number: int, name: str) -> int:
    return held_back(number, name)


@gen_test()
async def test_a_session_that_holds_results_comes_back_to_the_core() -> None:
    async with cluster() as (c, s, core, workers):
        roots = c.map(inc, range(20))
        total = c.submit(add, *roots)
        failed = c.submit(fail, 1)
        after = c.submit(inc, failed)
        scattered = await c.scatter({"here": 7}, broadcast=True)
        await wait([*roots, total, failed, after])
        del roots[10:]
        core.escape("a look")
        kept = s.tasks[roots[0].key]
        group = kept.group
        assert kept.state == "memory"
        more = c.submit(add, total, scattered["here"])
        assert await more == sum(range(1, 21)) + 7
        assert core.is_active
        assert core.adoptions == 2
        # Dask's own objects, which a program has kept, are read from the core.
        assert s.tasks[roots[0].key] is kept
        assert s.task_groups[group.name] is group
        assert kept.state == "memory"
        assert {ws.address for ws in kept.who_has or ()} <= {one.address for one in workers}
        assert group.states["memory"] == 10
        assert sum(computation.states.get("memory", 0) for computation in s.computations) >= 12
        with pytest.raises(ValueError, match="no 1"):
            await after
        assert await c.submit(inc, roots[3]) == 5
        assert await c.gather(roots) == list(range(1, 11))
        assert core.is_active, core.escapes
        core.escape("the end")
        assert s.tasks[roots[0].key] is kept
        s.validate_state()


@gen_test()
async def test_results_that_were_taken_over_are_computed_again_when_they_are_lost() -> None:
    async with cluster(workers=2) as (c, s, core, workers):
        roots = c.map(inc, range(12), pure=False)
        sums = [c.submit(add, *roots[at : at + 3], pure=False) for at in range(0, 12, 3)]
        await wait(sums)
        core.escape("a look")
        assert await c.submit(inc, 1) == 2
        assert core.is_active
        await workers[0].close(nanny=False)
        assert await c.gather(sums) == [6, 15, 24, 33]
        assert core.is_active, core.escapes
        core.escape("the end")
        s.validate_state()


@gen_test()
async def test_tasks_on_their_way_are_taken_over(eventually: Eventually) -> None:
    async with cluster() as (c, s, core, _):
        running = c.map(held_back, range(2), name="go", pure=False)
        queued = c.map(slowinc, range(40), delay=0.001, pure=False)
        waiting = c.submit(add, *running, *queued)
        await eventually(lambda: s.workers[next(iter(s.workers))].processing)
        core.escape("a look")
        states = {ts.state for ts in s.tasks.values()}
        assert {"processing", "queued", "waiting"} <= states
        other = c.submit(inc, 1, pure=False, priority=100)
        await eventually(lambda: other.key in s.tasks)
        assert core.is_active, core.escapes
        await Event("go", client=c).set()
        assert await waiting == 1 + sum(range(1, 41))
        assert await other == 2
        core.escape("the end")
        s.validate_state()


@gen_test()
async def test_a_shuffle_leaves_the_core_only_while_it_lasts(eventually: Eventually) -> None:
    dd = pytest.importorskip("dask.dataframe")
    pd = pytest.importorskip("pandas")
    async with cluster() as (c, s, core, _):
        frame = pd.DataFrame({"key": [number % 7 for number in range(200)], "value": range(200)})
        rows = dd.from_pandas(frame, npartitions=4)
        methods = {"dataframe.shuffle.method": "p2p", "distributed.comm.backhaul.exchange": "off"}
        with dask.config.set(methods):
            shuffled = c.persist(rows.shuffle("key"))
            await wait(shuffled)
        assert any(str(key).startswith("shuffle-barrier") for key in s.tasks)
        assert await c.compute(shuffled["value"].sum()) == sum(range(200))
        assert core.is_active, core.escapes
        plugin: Any = s.plugins["shuffle"]
        assert not plugin.active_shuffles
        assert plugin._shuffles
        del shuffled
        await eventually(lambda: not s.tasks)
        # The core tells the plugin of the barrier that is forgotten.
        await eventually(lambda: not plugin._shuffles)
        assert core.is_active, core.escapes


@gen_test()
async def test_annotations_and_restrictions_are_taken_over(by_engine: bool) -> None:
    async with cluster() as (c, s, core, workers):
        address = workers[1].address
        bound = c.map(inc, range(4), workers=[address], allow_other_workers=True, priority=3)
        retried = c.submit(inc, 9, retries=2, pure=False)
        await wait([*bound, retried])
        core.escape("a look")
        before = _asked(s, bound[0].key), _asked(s, retried.key)
        assert await c.submit(inc, 1, pure=False) == 2
        assert core.is_active
        core.escape("another look")
        assert (_asked(s, bound[0].key), _asked(s, retried.key)) == before
        s.validate_state()


def _asked(s: Any, key: Any) -> dict[str, Any]:
    ts = s.tasks[key]
    names = ("annotations", "worker_restrictions", "loose_restrictions", "priority", "retries")
    return {name: getattr(ts, name) for name in names}


@gen_test()
async def test_tasks_that_ask_for_threads_are_taken_over_while_they_run(
    eventually: Eventually,
) -> None:
    async with cluster(workers=2) as (c, s, core, workers):
        halves = c.map(takes_half, range(8), pure=False)
        waits = c.submit(waits_for_half, 1, name="go", pure=False)
        assert await c.gather(halves) == list(range(8))
        assert core.is_active, core.escapes
        await eventually(lambda: waits.key in s.tasks and s.tasks[waits.key].processing_on)
        core.escape("a look")
        busy: Any = s.tasks[waits.key].processing_on
        (free,) = {worker.address for worker in workers} - {busy.address}
        # Nothing is stolen here, and the other worker has half a thread left.
        assert await c.submit(inc, 1, pure=False, workers=[free]) == 2
        assert core.is_active, core.escapes
        room = core.core.room()
        assert room is not None
        assert room.booked == [waits.key]
        await Event("go", client=c).set()
        assert await waits == 1
        assert await c.submit(inc, 2, pure=False) == 3
        room = core.core.room()
        assert room is not None
        assert not room.booked
        assert await c.gather(c.map(takes_half, range(8, 16), pure=False)) == list(range(8, 16))
        # Results that are lost are computed again, with what their tasks ask for.
        await workers[0].close(nanny=False)
        assert await c.gather(halves) == list(range(8))
        assert core.is_active, core.escapes
        core.escape("the end")
        s.validate_state()


@gen_test()
async def test_a_state_that_the_core_cannot_hold_stays_dasks() -> None:
    async with cluster() as (c, s, core, _):
        kept = c.submit(inc, 1)
        await kept
        core.escape("a look")
        odd = functools.partial(int)
        s.tasks[kept.key].annotations = {"odd": odd}
        assert await c.submit(inc, kept) == 3
        assert not core.is_active
        assert s.tasks[kept.key].annotations == {"odd": odd}
        s.tasks[kept.key].annotations = None
        assert await c.submit(inc, 5) == 6
        assert core.is_active


@gen_test()
async def test_a_pause_bounds_the_cost_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption_pause, "PAUSE_PER_CHANGE", 1e6)
    async with cluster() as (c, _, core, _):
        kept = await c.scatter(1)
        core.escape("a look")
        assert await c.submit(inc, kept) == 2
        assert not core.is_active


@gen_test()
async def test_the_core_comes_back_to_tasks_on_their_way_without_a_graph(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(adoption_pause, "COME_BACK_S", 0.01)
    async with cluster() as (c, s, core, _):
        running = c.map(held_back, range(4), name="go", pure=False)
        await eventually(lambda: any(ws.processing for ws in s.workers.values()))
        core.escape("a look")
        await eventually(lambda: core.is_active)
        assert core.adoptions == 2
        await Event("go", client=c).set()
        assert await c.gather(running) == list(range(4))
        assert core.is_active, core.escapes
        core.escape("the end")
        # Nothing is on its way, so the state stays where it is.
        core.pause.adopt_if_busy()
        assert not core.is_active


@pytest.mark.parametrize("part", [Handlers, Watchers, Spans])
@gen_test()
async def test_nothing_is_lost_if_the_core_cannot_take_its_place(
    part: type, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster() as (c, s, core, _):
        roots = c.map(inc, range(20))
        scattered = await c.scatter(7)
        await wait(roots)
        core.escape("a look")
        kept = s.tasks[roots[0].key]
        keys = set(s.tasks)

        def refuse(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError("not here")

        with monkeypatch.context() as patch:
            name = {Handlers: "install", Watchers: "watch", Spans: "__init__"}[part]
            patch.setattr(part, name, refuse)
            with caplog.at_level("WARNING", "backhaul.dask"):
                assert await c.submit(add, roots[0], scattered) == 8
            assert not core.is_active
            assert "not here" in caplog.text
            assert keys <= set(s.tasks)
            assert type(s) is Scheduler
            assert type(kept) is TaskState
            s.validate_state()
        assert await c.gather(roots) == list(range(1, 21))
        # After a while it tries again.
        core.pause.until_s = 0.0
        assert await c.submit(add, roots[1], scattered) == 9
        assert core.is_active
        core.escape("the end")
        s.validate_state()


@gen_test()
async def test_metadata_of_tasks_goes_with_them() -> None:
    async with cluster() as (c, s, core, _):
        futures = c.map(inc, range(3))
        await wait(futures)
        core.escape("a look")
        s.tasks[futures[0].key].metadata = {"said": "before"}
        assert await c.submit(inc, 10) == 11
        assert core.is_active
        assert s.tasks[futures[0].key].metadata == {"said": "before"}
        view = s.tasks[futures[1].key]
        view.metadata = {"said": "meanwhile"}
        core.escape("another look")
        assert s.tasks[futures[0].key].metadata == {"said": "before"}
        assert s.tasks[futures[1].key].metadata == {"said": "meanwhile"}
        assert s.tasks[futures[2].key].metadata is None


@gen_test()
async def test_the_latest_failures_are_kept_where_few_are() -> None:
    few = {"distributed.diagnostics.erred-tasks.max-history": 2}
    async with cluster(settings=few) as (c, s, core, _):
        failed = c.map(fail, range(5), pure=False)
        await wait(failed)
        latest = [one[0] for one in core.core.dump(tasks=False)["erred_tasks"]][:2]
        core.escape("a look")
        assert [one.key for one in s.erred_tasks] == latest
        assert await c.submit(inc, 1) == 2
        assert core.is_active
        core.escape("another look")
        assert [one.key for one in s.erred_tasks] == latest


@gen_test()
async def test_keys_that_are_no_texts_and_actors_are_taken_over() -> None:
    async with cluster() as (c, s, core, _):
        dsk: dict[Any, Any] = {("x", number): (inc, number) for number in range(5)}
        dsk["y", 7.5] = (sum, [("x", number) for number in range(5)])
        (held,) = c.get(dsk, [("y", 7.5)], sync=False)
        counter: Any = await c.submit(Counter, actor=True)
        assert await held == 15
        assert await counter.more() == 1
        core.escape("a look")
        assert await c.submit(inc, 1) == 2
        assert core.is_active
        assert s.tasks["y", 7.5].state == "memory"
        assert await counter.more() == 2
        assert await c.submit(add, held, 1) == 16
        assert core.is_active, core.escapes
        core.escape("the end")
        s.validate_state()


class SubmitsWhileOneJoins(SchedulerPlugin):
    """Has a client submit a task before the stream of a worker that joins has begun."""

    name = "submits"

    def __init__(self, client: Client) -> None:
        self.client = client
        self.found: list[int] = []

    async def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        self.found.append(await self.client.submit(inc, 1, pure=False))


@gen_test()
async def test_tasks_that_wait_for_a_worker_are_sent_to_one_that_joins_meanwhile(
    eventually: Eventually,
) -> None:
    async with cluster(workers=1) as (c, s, core, _):
        waits = c.submit(inc, 5, workers=["later"], pure=False)
        await eventually(lambda: waits.key in s.tasks and s.tasks[waits.key].state == "no-worker")
        plugin = SubmitsWhileOneJoins(c)
        s.add_plugin(plugin)
        core.escape("a look")
        async with Worker(s.address, nthreads=1, name="later"):
            assert await waits == 6
            assert plugin.found == [2]


class Counter:
    """An actor."""

    number = 0

    def more(self) -> int:
        self.number += 1
        return self.number
