"""Maps whose calls the core takes as bytes, with the engine and without."""

from __future__ import annotations

import asyncio
import operator
from typing import Any

import distributed
import pytest
from distributed import Client, Scheduler
from distributed.client import FutureCancelledError
from distributed.utils_test import gen_test, inc, slowinc

from backhaul.dask.scheduler.core.live_core import LiveCore
from backhaul.dask.serialize.pickled_task import PickledTask
from tests.dask.scheduler_core.test_streams import cluster

#: By engine, whether it is on; a look for what could be stolen, on a busy machine, is an escape
SETTINGS = {
    engine: {
        "distributed.comm.backhaul.hot-path.scheduler-engine": engine,
        "distributed.scheduler.work-stealing": False,
    }
    for engine in (True, False)
}
BOTH = pytest.mark.parametrize("engine", [True, False])


async def all_gone(scheduler: Scheduler) -> None:
    """Wait until a scheduler has no tasks."""
    while len(scheduler.tasks):
        await asyncio.sleep(0.01)


def graphs_of(scheduler: Scheduler, client: Client) -> list[dict[str, Any]]:
    """List what the scheduler wrote down of a client's graphs."""
    events = [event for _, event in scheduler.get_events(client.id)]
    return [event for event in events if event["action"] == "update-graph"]


def has_made_objects(core: LiveCore) -> bool:
    """Tell whether something of a task has been made for Python."""
    return bool(core.specs) or not core.texts.are_keys


@BOTH
@gen_test()
async def test_a_map_becomes_no_python_objects(engine: bool) -> None:
    async with cluster(**SETTINGS[engine]) as (c, s, core, _):
        for number in range(2):
            futures = c.map(inc, range(number, 200), pure=False)
            assert await c.gather(futures) == list(range(number + 1, 201))
            assert not has_made_objects(core)
            assert len(s.tasks) == 200 - number
            del futures
            await all_gone(s)
        assert not core.escapes
        (event, other) = graphs_of(s, c)
        assert (event["status"], event["metrics"]["tasks"]) == ("OK", 200)
        assert other["metrics"]["new_tasks"] == 199
        # Last, as it is a look: each map has begun a computation of its own.
        assert [[group.name for group in one.groups] for one in s.computations] == [["inc"]] * 2


@BOTH
@gen_test()
async def test_maps_of_results_stay_in_the_core(engine: bool) -> None:
    async with cluster(**SETTINGS[engine]) as (c, s, core, _):
        first = c.map(inc, range(100))
        second = c.map(operator.add, first, [*first[1:], 5], key="pairs")
        total = c.map(sum, [second, second[:3]], key="total")
        named = c.map(round, [2.345], ndigits=first[0], key="named")
        assert await c.gather(total) == [10_104, 3 + 5 + 7]
        assert await c.gather(named) == [2.3]
        assert not has_made_objects(core)
        assert not core.escapes
        del first, second, total, named
        await all_gone(s)


@BOTH
@gen_test()
async def test_calls_may_depend_on_keys_that_are_no_text(engine: bool) -> None:
    async with cluster(**SETTINGS[engine]) as (c, s, core, _):
        inputs = c.map(inc, [1, 2], key=[("x", 1), ("x", 2)])
        futures = c.map(operator.add, inputs, [10, 20], key="sums")
        assert await c.gather(futures) == [12, 23]
        assert not core.escapes
        assert len(core.specs) == 2
        # A program that reads finds the same.
        needs = [s.tasks[future.key].dependencies for future in futures]
        assert [[ts.key for ts in some] for some in needs] == [[("x", 1)], [("x", 2)]]


@BOTH
@gen_test()
async def test_a_read_finds_tasks_and_the_job_goes_on(engine: bool) -> None:
    async with cluster(**SETTINGS[engine]) as (c, s, core, _):
        first = c.map(slowinc, range(20), delay=0.02, key="first")
        second = c.map(operator.add, first, range(20), key="second")
        await first[2]
        assert not has_made_objects(core)
        found: list[Any] = [s.tasks[future.key] for future in (first[7], second[7])]
        core.escape("to see all")
        same: Any = s.tasks[first[7].key]
        assert found[0] is same
        assert {type(ts.run_spec) for ts in s.tasks.values()} == {PickledTask}
        assert [ts.group_key for ts in found] == ["first", "second"]
        assert [ts.priority[2] for ts in found] == [7, 7]
        assert [dts.key for dts in found[1].dependencies] == [first[7].key]
        # It was opened by the look at its function.
        assert found[0].run_spec.func is slowinc
        assert found[0].run_spec.kwargs == {"delay": 0.02}
        assert found[1].run_spec.args[1] == 7
        assert await c.gather(second) == [2 * number + 1 for number in range(20)]
        del first, second, found
        await all_gone(s)
        # And the next one is the core's again.
        futures = c.map(inc, range(5), key="again")
        assert await c.gather(futures) == [1, 2, 3, 4, 5]
        assert not has_made_objects(core)
        assert core.adoptions == 2


@BOTH
@gen_test()
async def test_calls_that_need_lost_data_are_cancelled(engine: bool) -> None:
    async with cluster(**SETTINGS[engine]) as (c, s, *_):
        assert await c.gather(c.map(inc, range(3))) == [1, 2, 3]
        lost: Any = distributed.Future("nobody-made-this", c)
        futures = c.map(operator.add, [lost, 1], [1, 2], key="orphan")
        for future in futures:
            with pytest.raises(FutureCancelledError, match="lost dependencies"):
                await future
        assert graphs_of(s, c)[-1]["status"] == "cancelled"
        assert await c.gather(c.map(inc, range(3, 6))) == [4, 5, 6]


@BOTH
@gen_test()
async def test_groups_that_dask_has_to_name_are_dask_s(engine: bool) -> None:
    async with cluster(**SETTINGS[engine]) as (c, s, core, _):
        futures = c.map(inc, range(4), key="größe")
        assert await c.gather(futures) == [1, 2, 3, 4]
        assert len(core.specs) == 4
        assert not core.escapes
        # Several of one map, each by its name
        keys = ["a-1", "b-1", "a-2", "b-c-1"]
        futures += c.map(inc, range(4), key=keys)
        assert (await c.gather(futures))[4:] == [1, 2, 3, 4]
        assert len(core.specs) == 4
        groups = {name: len(group) for name, group in s.task_groups.items()}
        assert {name: groups[name] for name in ("a", "b", "b-c")} == {"a": 2, "b": 1, "b-c": 1}


@BOTH
@gen_test()
async def test_calls_that_fail_and_calls_that_are_known(engine: bool) -> None:
    async with cluster(**SETTINGS[engine]) as (c, s, *_):
        futures = c.map(operator.truediv, [1, 2, 3], [1, 0, 2], key="ratio")
        assert isinstance(await futures[1].exception(), ZeroDivisionError)
        assert await futures[2] == 1.5
        del futures
        await all_gone(s)
        one = c.map(inc, range(5))
        assert await c.gather(one) == [1, 2, 3, 4, 5]
        # The client knows them; another one asks for the same.
        async with Client(s.address, asynchronous=True, set_as_default=False) as other:
            again = other.map(inc, range(7))
            assert await other.gather(again) == [1, 2, 3, 4, 5, 6, 7]
            assert graphs_of(s, other)[-1]["metrics"]["new_tasks"] == 2
