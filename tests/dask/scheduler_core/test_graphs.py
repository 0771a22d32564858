"""Graphs that the core takes as bytes, with the engine and without."""

from __future__ import annotations

import asyncio
import operator
from typing import Any

import distributed
import pytest
from dask._task_spec import Alias, DataNode, Task, TaskRef
from distributed.client import FutureCancelledError
from distributed.utils_test import gen_test, inc, slowinc

import dask
from backhaul.dask.serialize.pickled_task import PickledTask
from tests.dask.scheduler_core.test_calls import BOTH, SETTINGS, all_gone, graphs_of
from tests.dask.scheduler_core.test_streams import add, cluster


def tree_of(leaves: list[Any]) -> Any:
    """Add delayed objects up, two by two."""
    while len(leaves) > 1:
        pairs = zip(leaves[::2], leaves[1::2], strict=True)
        leaves = [dask.delayed(operator.add)(*pair) for pair in pairs]
    return leaves[0]


def tree(count: int) -> Any:
    return tree_of([dask.delayed(inc)(number) for number in range(count)])


@BOTH
@gen_test()
async def test_a_graph_becomes_no_python_objects(engine: bool) -> None:
    async with cluster(**SETTINGS[engine]) as (c, s, core, _):
        for _ in range(2):
            future = c.compute(tree(64))
            assert await future == 64 * 65 // 2
            assert not core.specs
            assert core.texts.are_keys
            del future
            await all_gone(s)
        assert not core.escapes
        (event, _) = graphs_of(s, c)
        assert (event["status"], event["metrics"]["new_tasks"]) == ("OK", 127)
        names = [sorted(group.name for group in one.groups) for one in s.computations]
        assert names == [["add", "inc"]] * 2


@BOTH
@gen_test()
async def test_keys_that_are_no_texts_become_no_python_objects(engine: bool) -> None:
    async with cluster(**SETTINGS[engine]) as (c, s, core, _):
        dsk: dict[Any, Any] = {("x-0a1b2c3d", n): (inc, n) for n in range(40)}
        dsk |= {("y", n): (operator.add, ("x-0a1b2c3d", n), n) for n in range(40)}
        dsk["total"] = (sum, [("y", n) for n in range(40)])
        futures = c.get(dsk, ["total", ("y", 3)], sync=False)
        assert await c.gather(futures) == [sum(2 * n + 1 for n in range(40)), 7]
        assert not core.specs
        assert not core.escapes
        assert len(s.tasks) == 81
        assert ("y", 3) in s.tasks
        assert ("y", 3.0) in s.tasks
        assert ("y", 40) not in s.tasks
        # Another graph on it, and one whose key is equal and not the same
        more = {"z": Task("z", inc, TaskRef(("y", 3))), "w": Task("w", inc, TaskRef(("y", 3.0)))}
        both = c.get(more, ["z", "w"], sync=False)
        assert await c.gather(both) == [8, 8]
        assert not core.escapes
        # A program that reads finds Dask's own.
        ts = s.tasks[("y", 3)]
        assert (ts.group.name, ts.group.prefix.name) == ("y", "y")
        assert not core.escapes
        core.escape("to look")
        assert [one.key for one in ts.dependencies] == [("x-0a1b2c3d", 3)]
        s.validate_state()
        del futures, both, ts
        await all_gone(s)


@BOTH
@gen_test()
async def test_nodes_of_every_kind_are_run_and_found(engine: bool) -> None:
    async with cluster(**SETTINGS[engine]) as (c, s, core, _):
        values = {"captured": 5}
        dsk: dict[Any, Any] = {
            "data-1": DataNode("data-1", 7),
            "slow-1": Task("slow-1", slowinc, TaskRef("data-1"), delay=0.2),
            "alias-1": Alias("alias-1", "slow-1"),
            "closure-1": Task("closure-1", lambda x: x + values["captured"], TaskRef("alias-1")),
        }
        futures = c.get(dsk, ["closure-1", "alias-1"], sync=False)
        while not len(s.tasks):
            await asyncio.sleep(0.01)
        assert not core.specs
        core.escape("to look")
        specs: dict[Any, Any] = {ts.key: ts.run_spec for ts in s.tasks.values()}
        assert {key: type(spec) for key, spec in specs.items()} == {
            "data-1": DataNode,
            "slow-1": PickledTask,
            "alias-1": Alias,
            "closure-1": PickledTask,
        }
        for key, spec in specs.items():
            assert spec.dependencies == dsk[key].dependencies
            needs = {ts.key for ts in s.tasks[key].dependencies}
            assert needs == dsk[key].dependencies
        assert specs["slow-1"].func is slowinc
        assert await c.gather(futures) == [13, 8]
        s.validate_state()


@BOTH
@gen_test()
async def test_a_graph_on_results_goes_on_and_is_cancelled_with_them(engine: bool) -> None:
    async with cluster(**SETTINGS[engine]) as (c, _, core, _):
        first = c.map(inc, range(8), key="first")
        futures = c.compute([dask.delayed(add)(*first), dask.delayed(inc)(first[0])])
        assert await c.gather(futures) == [36, 2]
        assert not core.escapes
        lost: Any = distributed.Future("nobody-made-this", c)
        (orphan,) = c.get({"x-1": Task("x-1", inc, TaskRef(lost.key))}, ["x-1"], sync=False)
        with pytest.raises(FutureCancelledError, match="lost dependencies"):
            await orphan


@BOTH
@gen_test()
async def test_groups_that_dask_has_to_name_stay_in_the_core(engine: bool) -> None:
    async with cluster(**SETTINGS[engine]) as (c, _, core, _):
        dsk: dict[Any, Any] = {5: (inc, 1), ("x", 1.5): (inc, 5), "_y": (inc, ("x", 1.5))}
        (future,) = c.get(dsk, ["_y"], sync=False)
        assert await future == 4
        assert not core.escapes
        # As tasks, which are pickles still
        assert {type(spec) for spec, _ in core.specs.values()} <= {PickledTask}
