"""A running scheduler whose state is in the core, and reads of that state."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import pickle
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from distributed import (
    Client,
    Future,
    LocalCluster,
    Scheduler,
    SchedulerPlugin,
    Worker,
    as_completed,
    get_client,
    rejoin,
    secede,
    wait,
)
from distributed.utils_test import gen_test, inc, slowinc

import dask
from backhaul.dask import resources
from backhaul.dask.observe.account import account_of
from backhaul.dask.scheduler import window as window_module
from backhaul.dask.scheduler.core import adoption_pause, live_core
from backhaul.dask.scheduler.core.eligibility import refusal
from backhaul.dask.scheduler.core.live_core import LiveCore
from backhaul.dask.scheduler.core.task_views import Tasks
from backhaul.dask.serialize.pickled_task import PickledTask
from tests.dask.conftest import Eventually

KEY = "distributed.comm.backhaul.hot-path.scheduler-core"

pytestmark = pytest.mark.usefixtures("by_engine")


@contextlib.asynccontextmanager
async def cluster(
    workers: int = 2, settings: dict[str, Any] | None = None
) -> AsyncIterator[tuple[Client, Scheduler, LiveCore, list[Worker]]]:
    """Start one in this process that keeps its state in the core and checks what comes out."""
    settings = {
        KEY: True,
        # It looks at results of which there are several copies, every two seconds.
        "distributed.scheduler.active-memory-manager.start": False,
        # On a busy machine a worker may be without work for as long as that takes, which escapes.
        "distributed.scheduler.work-stealing-interval": "1h",
        **(settings or {}),
    }
    with dask.config.set(settings):
        async with (
            Scheduler(
                host="backhaul://127.0.0.1", dashboard=False, dashboard_address=":0", validate=True
            ) as s,
            contextlib.AsyncExitStack() as stack,
        ):
            started = [
                await stack.enter_async_context(Worker(s.address, nthreads=1, validate=True))
                for _ in range(workers)
            ]
            client = await stack.enter_async_context(Client(s.address, asynchronous=True))
            found = live_core.installed(s)
            assert (found is not None) is settings[KEY]
            yield client, s, found or LiveCore(s), started


def add(*numbers: int) -> int:
    return sum(numbers)


@gen_test()
async def test_a_map_and_what_depends_on_it_never_leave_the_core() -> None:
    async with cluster() as (c, s, core, _):
        for round_ in range(3):
            futures = c.map(inc, range(50), pure=False)
            total = c.submit(add, *futures)
            assert await total == sum(range(1, 51))
            assert await c.gather(futures) == list(range(1, 51))
            assert core.is_active, core.escapes
            assert len(s.tasks) >= 51
            assert futures[0].key in s.tasks
            assert "nobody" not in s.tasks
            del futures, total
            assert core.adoptions == 1, round_
        while len(s.tasks):
            await asyncio.sleep(0.01)
        assert not core.specs
        assert not core.escapes


@gen_test()
async def test_keys_that_are_no_texts() -> None:
    async with cluster() as (c, s, core, _):
        dsk: dict[Any, Any] = {("x", number): (inc, number) for number in range(10)}
        dsk["y"] = (sum, [("x", number) for number in range(10)])
        assert await c.get(dsk, "y", sync=False) == 55
        numbers = c.get({100: (inc, 1), ("z", 2): (inc, 2)}, [100.0, ("z", 2)], sync=False)
        assert await c.gather(numbers) == [2, 3]
        del numbers
        assert core.is_active
        while len(s.tasks):
            await asyncio.sleep(0.01)
        # Python learns later which tasks the engine has released.
        while not core.texts.are_keys:
            await asyncio.sleep(0.01)


@gen_test()
async def test_a_scheduler_without_workers_can_be_validated() -> None:
    async with cluster(workers=0) as (c, s, core, _):
        future = c.submit(inc, 1)
        while future.key not in s.tasks:
            await asyncio.sleep(0.001)
        assert core.is_active
        s.validate_state()
        assert list(core.escapes) == ["validate_state"]
        async with Worker(s.address, nthreads=1):
            assert await future == 2


LOOKS: dict[str, Callable[[Scheduler], Any]] = {
    "validate_state": lambda s: s.validate_state(),
    "transition_log": lambda s: len(s.transition_log),
    "in_flight": lambda s: len(s.extensions["stealing"].in_flight),
}

#: Reads that the core answers
ANSWERED: dict[str, Callable[[Scheduler], Any]] = {
    "tasks": lambda s: dict(s.tasks),
    "a task": lambda s: [s.tasks[key].state for key in list(s.tasks)[:1]],
    "groups": lambda s: list(s.task_groups),
    "processing": lambda s: [len(ws.processing) for ws in s.workers.values()],
    "has_what": lambda s: [len(ws.has_what) for ws in s.workers.values()],
    "wants_what": lambda s: [len(cs.wants_what) for cs in s.clients.values()],
    "occupancy": lambda s: s.total_occupancy,
    "idle": lambda s: len(s.idle),
    "stealing": lambda s: s.extensions["stealing"].balance(),
    "computations": lambda s: [one.states for one in s.computations],
    "spans": lambda s: [one.nbytes_total for one in s.extensions["spans"].spans.values()],
}


@pytest.mark.parametrize("look", [*LOOKS, *ANSWERED])
@gen_test()
async def test_a_read_finds_dasks_own_state(look: str) -> None:
    async with cluster() as (c, s, core, _):
        roots = c.map(slowinc, range(20), delay=0.005)
        pairs = [c.submit(add, one, other) for one, other in itertools.pairwise(roots)]
        total = c.submit(add, *pairs)
        await wait(roots[:3])
        assert core.is_active
        (LOOKS | ANSWERED)[look](s)
        if look in ANSWERED:
            assert core.is_active, core.escapes
            core.escape("to look at it")
        assert not core.is_active
        assert type(s) is Scheduler
        assert type(s.tasks) is Tasks
        s.validate_state()
        assert await total == sum(2 * number + 3 for number in range(19))
        s.validate_state()
        assert [tg.span_id for tg in s.task_groups.values()] == [
            next(iter(s.extensions["spans"].spans))
        ] * len(s.task_groups)
        assert s.computations[-1].states["memory"] == 40
        await c.close()
        # Nothing is left, so the next graph is the core's again.
        async with Client(s.address, asynchronous=True) as other:
            assert await other.gather(other.map(inc, range(5))) == list(range(1, 6))
            assert core.is_active
            assert core.adoptions == 2


@gen_test()
async def test_repeated_reads_cost_a_twentieth_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adoption_pause, "PAUSE_PER_CHANGE", 19.0)
    async with cluster() as (c, s, core, _):
        took = []
        upstream_escape = LiveCore.escape

        def escape(self: LiveCore, reason: str) -> None:
            began = time.monotonic()
            upstream_escape(self, reason)
            took.append(time.monotonic() - began)

        monkeypatch.setattr(LiveCore, "escape", escape)
        began = time.monotonic()
        rounds = 0
        while core.adoptions < 4:
            futures = c.map(inc, range(3), pure=False)
            assert await c.gather(futures) == [1, 2, 3]
            assert len(s.transition_log) > 0
            await c.cancel(futures)
            del futures
            while s.tasks:
                await asyncio.sleep(0.001)
            rounds += 1
        assert sum(core.escapes.values()) == 3 or not core.is_active
        assert sum(took[:3]) * 19 < time.monotonic() - began
        assert rounds > 4


@gen_test()
async def test_a_story_has_the_transitions_of_the_core() -> None:
    async with cluster() as (c, s, core, _):
        dsk: dict[Any, Any] = {("x", number): (inc, number) for number in range(3)}
        dsk["y"] = (sum, [("x", number) for number in range(3)])
        before = len(s.transition_log)
        assert await c.get(dsk, "y", sync=False) == 6
        while len(s.tasks):
            await asyncio.sleep(0.01)
        assert core.is_active
        # Of a task that is forgotten, whose key is no text
        told = s.story(("x", 1))
        assert not core.is_active
        assert [(one.start, one.finish) for one in told] == [
            ("released", "waiting"),
            ("waiting", "processing"),
            ("processing", "memory"),
            ("memory", "released"),
            ("released", "forgotten"),
        ]
        assert told[2].stimulus_id.startswith("task-finished-")
        assert all(one.key == ("x", 1) for one in told)
        times = [one.timestamp for one in s.transition_log]
        assert times == sorted(times)
        assert time.time() - 60 < times[0]
        assert len(times) - before == 19


@gen_test()
async def test_groups_that_are_gone_keep_what_they_counted() -> None:
    async with cluster() as (c, s, core, _):
        futures = c.map(inc, range(20))
        await wait(futures)
        del futures
        while len(s.tasks):
            await asyncio.sleep(0.01)
        assert core.is_active
        (span,) = s.extensions["spans"].spans.values()
        assert span.states["forgotten"] == 20
        assert span.done
        assert span.stop >= span.start > 0
        assert sum(span.all_durations.values()) > 0
        assert core.is_active


@gen_test()
async def test_copies_that_are_too_many_are_dropped_by_the_core() -> None:
    often = {
        "distributed.scheduler.active-memory-manager.start": True,
        "distributed.scheduler.active-memory-manager.interval": "20ms",
    }
    async with cluster(settings=often) as (c, s, core, workers):
        one = c.submit(inc, 1, key="one")
        await one
        other = c.map(add, [one] * 40, range(40))
        assert await c.gather(other) == list(range(2, 42))
        while sum("one" in worker.data for worker in workers) != 1:
            await asyncio.sleep(0.01)
        assert core.is_active, core.escapes
        assert core.core.holders_of("one")
        assert await c.submit(inc, one) == 3
        core.escape("to look at it")
        s.validate_state()


@gen_test()
async def test_errors_reach_the_futures() -> None:
    async with cluster() as (c, s, core, _):
        bad = c.submit(lambda: 1 // 0)
        behind = c.submit(inc, bad)
        with pytest.raises(ZeroDivisionError) as raised:
            await behind
        assert "test_live" in str(raised.traceback[-1].path)
        with pytest.raises(ZeroDivisionError):
            await c.submit(inc, behind)
        assert core.is_active, core.escapes
        ts: Any = s.tasks[bad.key]
        core.escape("to compare")
        same: Any = s.tasks[bad.key]
        assert same is ts
        assert ts.state == "erred"
        assert isinstance(pickle.loads(ts.exception.frames[0]), ZeroDivisionError)
        assert ts.exception_text == repr(raised.value)
        assert "1 // 0" in ts.traceback_text
        assert ts.erred_on == {next(iter(ts.erred_on))} <= set(s.workers)
        assert s.tasks[behind.key].exception_blame is ts
        assert [one.key for one in s.erred_tasks][-1] == bad.key
        s.validate_state()
        await bad.retry()
        with pytest.raises(ZeroDivisionError):
            await bad
        again = c.submit(inc, 1, retries=2)
        assert await again == 2


@resources(CPU=0)
def asks(number: int) -> int:
    return number + 1


@gen_test()
async def test_functions_that_ask_for_resources_stay_in_the_core() -> None:
    async with cluster() as (c, _, core, _):
        assert await c.submit(inc, 1) == 2
        assert core.is_active
        assert await c.gather(c.map(asks, range(9))) == list(range(1, 10))
        assert core.is_active, core.escapes
        assert not core.escapes


@gen_test()
async def test_a_task_that_came_as_a_pickle_stays_one() -> None:
    async with cluster() as (c, s, core, _):
        # `asks` was seen, so functions of all graphs are inspected.
        future = c.submit(inc, 1)
        assert await future == 2
        assert core.is_active
        assert type(s.tasks[future.key].run_spec) is PickledTask


@gen_test()
async def test_the_account_of_transfers_is_there() -> None:
    async with cluster() as (c, s, core, _):
        before = account_of(s)
        assert before is not None
        assert await c.submit(inc, 1) == 2
        assert core.is_active
        assert account_of(s) is before


@gen_test()
async def test_clients_come_and_go() -> None:
    async with cluster() as (c, s, core, _):
        futures = c.map(inc, range(20))
        async with Client(s.address, asynchronous=True) as other:
            same = other.map(inc, range(20))
            assert await other.gather(same) == await c.gather(futures)
            assert core.is_active
            assert await other.submit(inc, Future(futures[3].key, other)) == 5
        assert await c.gather(futures) == list(range(1, 21))
        s.validate_state()


class Hears(SchedulerPlugin):
    """Listens to transitions."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def transition(self, key: Any, start: Any, finish: Any, *args: Any, **kwargs: Any) -> None:
        self.heard.append((key, start, finish))


go_on = threading.Event()


def but_for_two(number: int) -> bool:
    """Wait, unless it is one of the first."""
    return number < 2 or go_on.wait(300)


@gen_test()
async def test_a_plugin_that_listens_to_transitions_keeps_the_state_with_dask() -> None:
    async with cluster() as (c, s, core, _):
        go_on.clear()
        futures = c.map(but_for_two, range(20))
        await wait(futures[:2])
        assert core.is_active
        plugin = Hears()
        s.add_plugin(plugin)
        assert not core.is_active
        go_on.set()
        await wait(futures)
        assert sum(finish == "memory" for _, _, finish in plugin.heard) > 5
        del futures
        while s.tasks:
            await asyncio.sleep(0.01)
        assert refusal(s) == "the plugin Hears listens"
        assert await c.submit(inc, 1) == 2
        assert core.adoptions == 1


def deep(number: int) -> int:
    """Submit from a task, and wait for it."""
    client = get_client()
    future = client.submit(inc, number, pure=False)
    secede()
    result: int = future.result()
    rejoin()
    return result + 1


@gen_test()
async def test_a_handler_that_a_program_has_kept_works_after_an_escape() -> None:
    async with cluster() as (c, s, core, _):
        futures = c.map(slowinc, range(10), delay=0.1, pure=False)
        await wait(futures[:1])
        assert core.is_active, core.escapes
        handle = s.stream_handlers["long-running"]
        core.escape("a test")
        ts = next(ts for ts in s.tasks.values() if ts.processing_on is not None)
        ws = ts.processing_on
        assert ws is not None
        handle(
            key=ts.key,
            worker=ws.address,
            run_id=ts.run_id,
            compute_duration=0.1,
            stimulus_id="a-test",
        )
        assert ts in ws.long_running
        assert await c.gather(futures) == list(range(1, 11))


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@gen_test()
async def test_a_programs_own_handler_is_not_passed_over(when: str, eventually: Eventually) -> None:
    async with cluster() as (c, s, core, _):
        heard: list[str] = []

        def replace() -> None:
            handler = s.stream_handlers["long-running"]

            # With it, the function says that it is Dask's.
            @functools.wraps(handler)
            def handle(*args: Any, **kwargs: Any) -> Any:
                heard.append(kwargs["key"])
                return handler(*args, **kwargs)

            s.stream_handlers["long-running"] = handle

        if when == "before":
            replace()
        else:
            assert await c.submit(inc, 1) == 2
            assert core.is_active, core.escapes
            replace()
            assert core.escapes == {"a handler of streams that is replaced": 1}
        for number in range(3):
            assert await c.submit(deep, number, key=f"deep-{number}") == number + 2
        assert heard == ["deep-0", "deep-1", "deep-2"]
        assert not core.is_active
        await eventually(lambda: not s.tasks)
        assert refusal(s) == "a program handles long-running by itself"


@gen_test()
async def test_a_programs_own_handler_of_graphs_gets_tasks_submitted_to_a_core(
    eventually: Eventually,
) -> None:
    async with cluster() as (c, s, core, _):
        assert await c.submit(inc, 1) == 2
        heard: list[Any] = []
        handler = s.stream_handlers["update-graph"]

        async def handle(*, keys: Any, **graph: Any) -> None:
            heard.extend(keys)
            await handler(keys=keys, **graph)

        s.stream_handlers["update-graph"] = handle
        await eventually(lambda: not s.tasks)
        kept = c.submit(inc, 0, key="deep-0")
        assert await kept == 1
        assert core.is_active, core.escapes
        # Of a group that the core knows
        for number in range(1, 4):
            assert await c.submit(inc, number, key=f"deep-{number}") == number + 1
        assert await c.gather(c.map(inc, range(2), key=["a", "b"])) == [1, 2]
        assert sorted(heard) == ["a", "b", *(f"deep-{number}" for number in range(4))]
        assert core.is_active, core.escapes


@gen_test()
async def test_handlers_of_other_features_can_be_removed() -> None:
    async with cluster() as (_, s, _core, _workers):
        window = window_module.installed(s)
        assert window is not None
        assert s.stream_handlers["task-finished"] == window.handle_task_finished
        window.detach()
        assert s.stream_handlers["task-finished"] != window.handle_task_finished


@pytest.mark.parametrize(
    "change",
    [
        lambda handlers: handlers.update({"a-test": inc}),
        lambda handlers: handlers.setdefault("a-test", inc),
        lambda handlers: handlers.__ior__({"a-test": inc}),
        lambda handlers: handlers.pop("heartbeat-client"),
        lambda handlers: handlers.popitem(),
        lambda handlers: handlers.__delitem__("heartbeat-client"),
        lambda handlers: handlers.clear(),
    ],
    ids=["update", "setdefault", "ior", "pop", "popitem", "del", "clear"],
)
@gen_test()
async def test_every_change_of_the_handlers_is_an_escape(change: Callable[[Any], Any]) -> None:
    async with cluster() as (c, s, core, _):
        assert await c.submit(inc, 1) == 2
        assert core.is_active, core.escapes
        before = dict(s.stream_handlers)
        change(s.stream_handlers)
        assert core.escapes == {"a handler of streams that is replaced": 1}
        changed = dict(s.stream_handlers)
        assert changed.keys() != before.keys()
        s.stream_handlers.update(before)


@gen_test()
async def test_tasks_that_submit_and_wait() -> None:
    async with cluster() as (c, _, core, _):
        assert await c.gather(c.map(deep, range(6), pure=False)) == list(range(2, 8))
        async for future, result in as_completed(c.map(inc, range(9)), with_results=True):
            assert result is not None
            await future
        assert core.adoptions >= 1


@pytest.mark.parametrize("by_engine", [True], indirect=True)
@gen_test()
async def test_keys_that_are_released_together_are_one_message() -> None:
    async with cluster(workers=1) as (c, s, core, (worker,)):
        futures = c.map(inc, range(200), pure=False)
        assert await c.gather(futures) == list(range(1, 201))
        keys = {future.key for future in futures}
        del futures
        while len(s.tasks) or len(worker.data):
            await asyncio.sleep(0.01)
        messages = [entry[1] for entry in worker.state.log if entry[0] == "free-keys"]
        assert sorted(key for freed in messages for key in freed) == sorted(keys)
        # A client releases up to 256 at a time; the first may go alone.
        assert len(messages) < 20
        assert not core.escapes


@pytest.mark.parametrize("seed", range(4))
@gen_test()
async def test_random_work_with_looks_at_random_moments(seed: int) -> None:
    chance = random.Random(seed)
    stealing = {"distributed.scheduler.work-stealing-interval": "100ms"}
    async with cluster(workers=2 + seed % 2, settings=stealing) as (c, s, core, _):
        for _ in range(4):
            futures = c.map(inc, range(chance.randrange(5, 80)), pure=False)
            numbers = [number + 1 for number in range(len(futures))]
            for _ in range(chance.randrange(40)):
                some = [chance.randrange(len(futures)) for _ in range(chance.randrange(1, 6))]
                futures.append(c.submit(add, *(futures[one] for one in some), pure=False))
                numbers.append(sum(numbers[one] for one in some))
                if chance.random() < 0.1:
                    await asyncio.sleep(0)
                if chance.random() < 0.03:
                    chance.choice(list((LOOKS | ANSWERED).values()))(s)
            kept = chance.sample(range(len(futures)), chance.randrange(1, len(futures)))
            kept_futures = [futures[one] for one in kept]
            del futures
            assert await c.gather(kept_futures) == [numbers[one] for one in kept]
            if chance.random() < 0.3:
                await c.cancel(c.map(slowinc, range(9), delay=0.01))
            del kept_futures
            if chance.random() < 0.5:
                while len(s.tasks):
                    await asyncio.sleep(0.01)
        core.escape("the end")
        s.validate_state()


def test_in_a_cluster_of_processes(forked_workers: None) -> None:
    with (
        dask.config.set({KEY: True}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, protocol="backhaul", dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        preloaded = client.run(lambda: "tests.dask.preloaded" in sys.modules)
        assert all(preloaded.values())
        core = live_core.installed(cluster.scheduler)
        assert core is not None
        futures = client.map(inc, range(500), pure=False)
        assert client.gather(futures) == list(range(1, 501))
        assert client.submit(inc, 1).result() == 2
        assert core.adoptions == 1
