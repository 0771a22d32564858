"""Reads while the core has the state give what Dask has after an escape."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Set
from typing import Any

import pytest
from dask._task_spec import DataNode, Task, TaskRef
from distributed import Scheduler, wait
from distributed.utils_test import gen_test, inc, slowinc

from backhaul.dask.compat.names import TaskGroup, TaskPrefix, TaskState
from tests.dask.scheduler_core.test_live import add, cluster

pytestmark = pytest.mark.usefixtures("by_engine")

#: All attributes of a task
NAMES = [name for name in TaskState.__slots__ if name not in ("__weakref__", "_hash")]


def counts(collection: Any) -> list[Any]:
    """Look at all that a group or prefix counts."""
    return [
        collection.name,
        len(collection),
        collection.nbytes_total,
        dict(collection.states),
        dict(collection.all_durations),
        collection.duration,
        set(collection.types),
        repr(collection),
    ]


def of_scheduler(s: Scheduler) -> list[Any]:
    """Look at what is counted of all."""
    return [
        list(s.idle),
        {ws.address for ws in s.idle_task_count},
        {ws.address for ws in s.saturated},
        s.total_occupancy,
        s.n_tasks,
        s.generation,
        len(s.queued),
        bool(s.queued),
        dict(s._task_prefix_count_global),
        s._network_occ_global,
        s.is_idle,
        len(s.tasks),
        s.transition_counter,
        [dict(one.states) for one in s.computations],
        s.get_task_prefix_states(),
    ]


def of_workers(s: Scheduler) -> list[Any]:
    """Look at what is counted of workers and clients."""
    return [
        [
            ws.address,
            ws.occupancy,
            ws.nbytes,
            len(ws.processing),
            bool(ws.processing),
            len(ws.long_running),
            len(ws.has_what),
            len(ws.actors),
            dict(ws.task_prefix_count),
            ws._network_occ,
        ]
        for ws in s.workers.values()
    ] + [[cs.client_key, len(cs.wants_what)] for cs in s.clients.values()]


def needs(group: Any) -> set[str]:
    """Look at the groups that one depends on."""
    return {other.name for other in group.dependencies}


def of_groups(s: Scheduler) -> list[Any]:
    """Look at groups and prefixes."""
    return [
        [
            [*counts(tg), tg.start, tg.stop, tg.done, tg.prefix.name, tg.span_id, needs(tg)]
            for tg in s.task_groups.values()
        ],
        [
            [
                *counts(tp),
                dict(tp.state_counts),
                tp.duration_average,
                tp.max_exec_time,
                tp.suspicious,
                [tg.name for tg in tp.groups],
            ]
            for tp in s.task_prefixes.values()
        ],
        list(s.task_groups),
        list(s.task_prefixes),
    ]


def of_tasks(s: Scheduler) -> list[Any]:
    """Look at all attributes of all tasks, and who has which."""

    def plain(value: Any) -> Any:
        if isinstance(value, Set):
            return {plain(one) for one in value}
        # Dask makes neither equal to another of its kind.
        name = getattr(value, "address", None) or getattr(value, "client_key", None)
        if name is None and isinstance(value, TaskGroup | TaskPrefix):
            return f"group or prefix {value.name}"
        return repr(value) if name is None else name

    tasks = s.tasks
    return [
        [[key, [plain(getattr(tasks[key], name)) for name in NAMES]] for key in tasks],
        [
            {ts.key for ts in has}
            for ws in s.workers.values()
            for has in (ws.processing, ws.has_what, ws.long_running, ws.actors)
        ],
        {ts.key for ts in s.queued},
        {ts.key: ts.group for ts in tasks.values()} and len(tasks),
        {w: set(keys) for w, keys in s.get_processing().items()},
        {w: set(keys) for w, keys in s.get_has_what().items()},
        s.get_nbytes(),
        s.get_task_status([*tasks, "nobody"]),
        s.adaptive_target(),
    ]


def all_of(s: Scheduler) -> list[Any]:
    """Look at everything that the core answers."""
    return [of_scheduler(s), of_workers(s), of_groups(s), of_tasks(s)]


@gen_test(timeout=300)
async def test_random_work_looks_the_same_to_dask() -> None:
    dice = random.Random(20261123)
    # On a busy machine tasks take longer than was learned: to take them back is an escape.
    settings = {"distributed.comm.backhaul.work-in-hand.seconds": "1h"}
    async with cluster(workers=3, settings=settings) as (c, s, core, _):
        for _ in range(12):
            roots = c.map(slowinc, range(dice.randint(1, 60)), delay=0.002, pure=False)
            pairs = [c.submit(add, *dice.choices(roots, k=2), pure=False) for _ in range(9)]
            bad = c.submit(lambda: 1 // 0, pure=False) if dice.random() < 0.5 else None
            await wait(roots[: dice.randint(1, len(roots))])
            if dice.random() < 0.5:
                roots = roots[:1]
            await asyncio.sleep(dice.random() / 20)
            assert core.is_active, core.escapes
            seen = all_of(s)
            assert core.is_active, core.escapes
            assert all_of(s) == seen
            core.escape("to compare")
            assert all_of(s) == seen
            s.validate_state()
            del roots
            assert len(await c.gather(pairs)) == 9
            del pairs, bad
            while s.tasks:
                await asyncio.sleep(0.01)
        assert core.adoptions == 12


@gen_test()
async def test_a_kept_dictionary_of_tasks_has_all_of_them() -> None:
    async with cluster() as (c, s, core, _):
        kept = s.tasks
        assert kept == {}
        for _ in range(2):
            futures = c.map(inc, range(3), pure=False)
            # As helpers of upstream's tests wait for a task
            while futures[2].key not in kept or kept[futures[2].key].state != "memory":
                await asyncio.sleep(0.001)
            await wait(futures)
            assert core.is_active, core.escapes
            assert set(kept) == {future.key for future in futures}
            assert dict(kept) == kept
            assert kept is s.tasks
            core.escape("to look at it")
            assert kept is s.tasks
            assert {ts.state for ts in kept.values()} == {"memory"}
            for future in futures:
                future.release()
            while kept:
                await asyncio.sleep(0.001)


@gen_test()
async def test_metadata_of_a_task_goes_with_it() -> None:
    async with cluster() as (c, s, core, _):
        future = c.submit(inc, 1)
        key = future.key
        await wait(future)
        await c.set_metadata(key, "said")
        assert await c.get_metadata(key) == "said"
        assert core.is_active, core.escapes
        del future
        while key in s.tasks:
            await asyncio.sleep(0.001)
        assert await c.get_metadata(key, None) is None
        assert core.is_active, core.escapes


@gen_test()
async def test_data_producers_of_a_graph_that_came_as_bytes_are_known() -> None:
    graph = {
        "data": DataNode("data", 10),
        "producer": Task("producer", inc, TaskRef("data"), _data_producer=True),
        "user": Task("user", inc, TaskRef("producer")),
    }
    async with cluster() as (c, s, core, _):
        future = c.get(graph, "user", sync=False)
        other = c.submit(inc, future)
        assert await other == 13
        # While the graph is there that holds it, or not
        expected: dict[Any, bool] = {"producer": True, "user": False, other.key: False}
        if "data" in s.tasks:
            expected["data"] = True
        for is_view in (True, False):
            assert core.is_active == is_view, core.escapes
            specs: dict[Any, Any] = {key: ts.run_spec for key, ts in s.tasks.items()}
            assert {key: spec.data_producer for key, spec in specs.items()} == expected
            core.escape("to compare")


@gen_test()
async def test_kept_collections_are_dasks_after_an_escape() -> None:
    async with cluster() as (c, s, core, _):
        futures = c.map(slowinc, range(40), delay=0.005)
        await wait(futures[:3])
        prefixes, groups = s.task_prefixes, s.task_groups
        prefix, group = prefixes["slowinc"], next(iter(groups.values()))
        states = group.states
        worker = next(iter(s.workers.values()))
        processing, has_what = worker.processing, worker.has_what
        wants = s.clients[c.id].wants_what
        assert core.is_active
        core.escape("to compare")
        assert s.task_prefixes is prefixes
        assert s.task_groups is groups
        assert prefixes["slowinc"] is prefix
        assert groups == {group.name: group}
        assert group.states is states
        assert s.computations[-1].groups == {group}
        assert {tg for span in s.extensions["spans"].spans.values() for tg in span.groups} == {
            group
        }
        assert all(ts.group is group and ts.prefix is prefix for ts in s.tasks.values())
        await wait(futures)
        assert states["memory"] == 40
        assert prefix.states["memory"] == 40
        assert len(processing) == 0
        assert set(has_what) == set(worker.has_what)
        assert len(wants) == 40
        assert all(ts in wants for ts in s.tasks.values())
        del futures
        while s.tasks:
            await asyncio.sleep(0.01)
        again = c.map(inc, range(7))
        await wait(again)
        # The core knows the prefix, which is the same object still.
        assert core.is_active
        assert s.task_prefixes["slowinc"] is prefix
        assert len(wants) == 7
        assert prefix.states["memory"] == 0


def any_task(s: Scheduler) -> Any:
    """Look at the first task."""
    return next(iter(s.tasks.values()))


WRITES: dict[str, Callable[[Scheduler], Any]] = {
    "a group": lambda s: setattr(next(iter(s.task_groups.values())), "nbytes_total", 7),
    "a prefix": lambda s: setattr(s.task_prefixes["slowinc"], "duration_average", 7.0),
    "a worker": lambda s: next(iter(s.workers.values())).processing.clear(),
    "the scheduler": lambda s: setattr(s, "n_tasks", 7),
    "a task": lambda s: setattr(next(iter(s.tasks.values())), "retries", 7),
    "who wants a task": lambda s: any_task(s).who_wants.clear(),
}


@pytest.mark.parametrize("write", WRITES)
@gen_test()
async def test_a_write_or_a_deeper_read_escapes(write: str) -> None:
    async with cluster() as (c, s, core, _):
        futures = c.map(slowinc, range(20), delay=0.01)
        await wait(futures[:1])
        assert core.is_active
        assert next(iter(s.tasks.values())).retries == 0
        assert core.is_active, core.escapes
        WRITES[write](s)
        assert not core.is_active
        if write == "a group":
            assert next(iter(s.task_groups.values())).nbytes_total == 7
        if write == "a task":
            assert next(iter(s.tasks.values())).retries == 7
        if write == "who wants a task":
            assert not next(iter(s.tasks.values())).who_wants
        if write == "a prefix":
            assert s.task_prefixes["slowinc"].duration_average == 7.0


@gen_test()
async def test_another_thread_looks_through_the_event_loop() -> None:
    async with cluster() as (c, s, core, _):
        futures = c.map(slowinc, range(40), delay=0.005)
        await wait(futures[:3])
        seen = await asyncio.to_thread(all_of, s)
        assert core.is_active, core.escapes
        assert len(seen) == 4
        await wait(futures)
        seen = await asyncio.to_thread(all_of, s)
        assert core.is_active, core.escapes
        assert seen == all_of(s)


@gen_test()
async def test_a_kept_task_is_dasks_after_an_escape() -> None:
    async with cluster() as (c, s, core, _):
        roots = c.map(slowinc, range(6), delay=0.02)
        total = c.submit(add, *roots)
        await wait(roots[:1])
        task: Any = s.tasks[total.key]
        root: Any = s.tasks[roots[0].key]
        dependencies, who_has = task.dependencies, root.who_has
        assert task is s.tasks[total.key]
        assert root in dependencies
        assert len(dependencies) == 6
        assert (task.state, root.state) == ("waiting", "memory")
        assert root in next(iter(who_has)).has_what
        assert {one.key for one in dependencies} == {one.key for one in roots}
        assert core.is_active, core.escapes
        core.escape("to compare")
        assert type(task) is TaskState
        assert s.tasks[total.key] is task
        assert root in task.dependencies
        assert set(dependencies) == task.dependencies
        assert set(who_has) == root.who_has
        s.validate_state()
        assert await total == sum(range(1, 7))
        assert task.state == "memory"


@gen_test()
async def test_a_task_that_is_forgotten_says_so() -> None:
    async with cluster() as (c, s, core, _):
        future = c.submit(inc, 1, key="one")
        await future
        task: Any = s.tasks["one"]
        assert task.state == "memory"
        assert task.prefix is s.task_prefixes["one"]
        del future
        while len(s.tasks):
            await asyncio.sleep(0.01)
        assert core.is_active, core.escapes
        assert type(task) is TaskState
        assert (task.state, task.who_has, task.group.name) == ("forgotten", None, "one")
        again = c.submit(inc, 2, key="one")
        await again
        assert s.tasks["one"] is not task
        assert s.tasks.get("two") is None
        with pytest.raises(KeyError):
            s.tasks["two"]
        assert core.is_active, core.escapes


@gen_test()
async def test_iteration_over_many_tasks_escapes() -> None:
    async with cluster() as (c, s, core, _):
        futures = c.map(inc, range(1500))
        await wait(futures)
        wants = s.clients[c.id].wants_what
        assert {ts.key for ts, _ in zip(wants, range(900), strict=False)} <= set(s.tasks)
        assert core.is_active, core.escapes
        assert len({ts.key for ts in wants}) == 1500
        assert core.escapes == {"wants_what of 1000 tasks": 1}
