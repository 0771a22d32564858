"""Plugins that watch ended tasks, while the core has the state: they get all ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from dask.utils import key_split
from distributed import Client, Scheduler, SchedulerPlugin, wait
from distributed.diagnostics.progress import MultiProgress, Progress
from distributed.diagnostics.task_stream import TaskStreamPlugin
from distributed.utils_test import gen_test, inc, slowinc

from tests.dask.scheduler_core.test_live import add, cluster

pytestmark = pytest.mark.usefixtures("by_engine")


def fail_on(number: int) -> int:
    if number % 7 == 3:
        raise ValueError(number)
    return number


async def streamed(c: Client, s: Scheduler) -> list[dict[str, Any]]:
    """Run tasks of which some fail, and give what the task stream says of them."""
    assert c.scheduler is not None
    begin = await c.scheduler.get_task_stream_index()
    futures = c.map(fail_on, range(50))
    behind = c.map(inc, futures[:5])
    await wait(futures + behind)
    found: list[dict[str, Any]] = await c.scheduler.get_task_stream(start_index=begin)
    return found


@gen_test()
async def test_the_task_stream_is_dasks() -> None:
    async with cluster() as (c, s, core, _):
        assert await c.submit(inc, 1) == 2
        ours = await streamed(c, s)
        assert core.is_active, core.escapes
        assert TaskStreamPlugin.name in s.plugins
    async with cluster() as (c, s, core, _):
        # As long as that is there, the state is Dask's.
        s.add_plugin(Listens())
        dasks = await streamed(c, s)
        assert not core.adoptions

    def said(run: dict[str, Any]) -> Any:
        shape = sorted((name, type(value).__name__) for name, value in run.items())
        same = [run.get(name) for name in ("status", "nbytes", "type", "typename", "cause")]
        # Whether inputs had to be fetched, and whether to store a result took so long that it
        # counts as writing, is chance.
        actions = [one["action"] for one in run["startstops"]]
        return key_split(run["key"]), shape, same, actions.count("compute")

    assert len(ours) == 50 + 4
    assert sorted(map(said, ours), key=repr) == sorted(map(said, dasks), key=repr)
    ends = [max(one["stop"] for one in run["startstops"]) for run in ours]
    assert ends == pytest.approx(sorted(ends), abs=0.5)


class Listens(SchedulerPlugin):
    name = "listens"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        self.seen.append((key, start, finish))


class LikeTheTaskStream(TaskStreamPlugin):
    name = "like-the-task-stream"


@pytest.mark.parametrize("own", [True, False])
@gen_test()
async def test_a_plugin_of_the_users_own_has_all_transitions(own: bool) -> None:
    async with cluster() as (c, s, core, _):
        futures = c.map(slowinc, range(20), delay=0.01)
        await wait(futures[:1])
        like_it: Any = LikeTheTaskStream
        plugin: Any = Listens() if own else like_it(s)
        s.add_plugin(plugin)
        assert core.escapes == {"add_plugin": 1}
        await wait(futures)
        seen = plugin.seen if own else plugin.buffer
        assert len(seen) > 0
        s.remove_plugin(plugin.name)
        del futures
        while s.tasks:
            await asyncio.sleep(0.01)
        assert await c.submit(inc, 1) == 2
        assert core.is_active


@gen_test()
async def test_a_removed_task_stream_gets_no_more_runs() -> None:
    async with cluster() as (c, s, core, _):
        plugin = TaskStreamPlugin(s)
        s.add_plugin(plugin)
        await wait(c.map(inc, range(10)))
        s.remove_plugin(plugin.name)
        assert plugin.index == 10
        await wait(c.map(inc, range(100, 110)))
        assert core.is_active, core.escapes
        core.escape("to say all")
        assert plugin.index == 10


#: Reads of a task stream's data; each returns how many runs it finds
READS: dict[str, Callable[[TaskStreamPlugin], int]] = {
    "buffer": lambda plugin: len(plugin.buffer),
    "index": lambda plugin: plugin.index,
    "collect": lambda plugin: len(plugin.collect()),
    # One that took long to store has two.
    "rectangles": lambda plugin: len(set(plugin.rectangles(0)["key"])),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@gen_test()
async def test_a_task_stream_has_the_runs_that_the_client_knows(
    read: Callable[[TaskStreamPlugin], int],
) -> None:
    async with cluster() as (c, s, core, _):
        plugin = TaskStreamPlugin(s)
        s.add_plugin(plugin)
        for done in range(1, 30):
            assert await c.submit(inc, done, pure=False) == done + 1
            assert read(plugin) == done
        futures = c.map(inc, range(100, 140))
        await wait(futures)
        assert await asyncio.to_thread(read, plugin) == 29 + 40
        assert core.is_active, core.escapes


@gen_test()
async def test_buffer_and_index_of_a_task_stream_are_of_one_time() -> None:
    async with cluster() as (c, s, core, _):
        plugin = TaskStreamPlugin(s, maxlen=100_000)
        s.add_plugin(plugin)
        await c.submit(inc, 1)
        futures = c.map(inc, range(2000))
        while plugin.index < 2001:
            await asyncio.sleep(0.001)
            index = plugin.index
            # The engine could go on meanwhile.
            time.sleep(0.002)
            assert len(plugin.buffer) == index
        del futures
        assert core.is_active, core.escapes


@gen_test()
async def test_a_plugin_has_its_own_class_once_it_or_the_core_has_left() -> None:
    async with cluster() as (c, s, core, _):
        stream, again = TaskStreamPlugin(s), TaskStreamPlugin(s)
        again.name = "again"
        s.add_plugin(stream)
        s.add_plugin(again)
        await c.submit(inc, 1)
        assert type(stream) is not TaskStreamPlugin
        assert isinstance(stream, TaskStreamPlugin)
        s.remove_plugin(again.name)
        assert type(again) is TaskStreamPlugin
        core.escape("to have Dask's own")
        assert type(stream) is TaskStreamPlugin
        assert stream.index == again.index == 1
        while s.tasks:
            await asyncio.sleep(0.01)
        assert await c.submit(inc, 2) == 3
        assert core.is_active
        assert stream.index == 2
        assert again.index == 1


@gen_test()
async def test_a_progress_bar_gets_ended_tasks() -> None:
    async with cluster() as (c, s, core, _):
        futures = c.map(slowinc, range(40), delay=0.005)
        total = c.submit(add, *futures)
        await wait(futures[:3])
        progress = MultiProgress([total.key], scheduler=s)
        await progress.setup()
        assert {name: len(keys) for name, keys in progress.all_keys.items()}["add"] == 1
        assert progress.name in s.plugins
        assert await total == sum(range(1, 41))
        while progress.status != "finished":
            await asyncio.sleep(0.01)
        assert not any(progress.keys.values())
        assert progress.name not in s.plugins
        assert core.is_active, core.escapes


@pytest.mark.parametrize("end", ["fails", "is forgotten"])
@gen_test()
async def test_a_progress_bar_of_failed_or_forgotten_tasks_ends(end: str) -> None:
    async with cluster() as (c, s, core, _):
        slow = c.map(slowinc, range(20), delay=0.02)
        bad = c.submit(fail_on, 3) if end == "fails" else c.submit(slowinc, 7, delay=0.3)
        behind = c.submit(add, *slow, bad)
        progress = Progress([behind.key], scheduler=s)
        while behind.key not in s.tasks:
            await asyncio.sleep(0.001)
        await progress.setup()
        if end == "is forgotten":
            behind.release()
            del bad
        while progress.status is None:
            await asyncio.sleep(0.01)
        assert progress.status == "error" if end == "fails" else core.is_active
        assert progress.name not in s.plugins
