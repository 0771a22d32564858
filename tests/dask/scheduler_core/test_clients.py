"""Results that clients scatter, cancel, recompute and share, while the core has the state."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import (
    Client,
    Event,
    Lock,
    Queue,
    Semaphore,
    Variable,
    wait,
)
from distributed.client import FutureCancelledError
from distributed.utils_test import gen_test, inc

from tests.dask.conftest import Eventually
from tests.dask.scheduler_core.test_live import add, cluster

go_on = threading.Event()
may_run = threading.Event()


def when_told(number: int) -> int:
    """Wait until told."""
    assert go_on.wait(300)
    return number + 1


def unless_told(number: int) -> int:
    """Fail until told."""
    if not may_run.is_set():
        raise ZeroDivisionError(number)
    return number


pytestmark = pytest.mark.usefixtures("by_engine", "is_told")


@contextlib.contextmanager
def workers_may_close() -> Iterator[None]:
    """Release the tasks at the end: workers wait for their threads as they close."""
    try:
        yield
    finally:
        go_on.set()


@pytest.fixture
def is_told() -> Iterator[None]:
    """Let tasks wait for an event, until the end of the test at the latest."""
    go_on.clear()
    may_run.clear()
    yield
    go_on.set()
    may_run.set()


@gen_test()
async def test_scattered_results_are_the_cores() -> None:
    async with cluster() as (c, s, core, workers):
        array = np.arange(1000)
        (one,) = await c.scatter([array])
        assert core.adoptions == 1
        # Straight to a worker, and with a key that is no text
        named = await c.scatter({("x", 1): 3, "y": 4}, direct=True)
        assert {future.status for future in named.values()} == {"finished"}
        assert await c.submit(np.sum, one) == array.sum()
        assert await c.submit(add, named[("x", 1)], named["y"]) == 7
        assert await c.gather(named["y"]) == 4
        assert s.tasks[one.key].nbytes == array.nbytes
        assert s.tasks[one.key].run_spec is None
        assert core.is_active
        assert not core.escapes
        held = {ts.key for worker in workers for ts in s.workers[worker.address].has_what}
        assert {one.key, ("x", 1), "y"} <= held
        core.escape("to look at it")
        s.validate_state()
        assert await c.gather([one, named["y"]], direct=False)


@gen_test()
async def test_a_broadcast_comes_to_all_workers() -> None:
    async with cluster(workers=3) as (c, s, core, workers):
        future = await c.scatter([1, 2, 3], broadcast=True)
        assert not core.escapes
        for one in future:
            assert len(s.tasks[one.key].who_has or ()) == 3
        assert all(len(worker.data) == 3 for worker in workers)
        assert {ts.key for ts in s.replicated_tasks} == {one.key for one in future}
        assert core.is_active
        await c.replicate(future, n=2)
        # Each worker reports what it has deleted. The engine reads that before the coroutine of
        # Dask has the worker's answer, and nothing is left to remove. Otherwise Dask removes it.
        assert set(core.escapes) <= {"WorkerState.needs_what"}
        for one in future:
            assert len(s.tasks[one.key].who_has or ()) == 2
        s.validate_state()
        assert await c.gather(future) == [1, 2, 3]


@gen_test()
async def test_scattered_data_is_lost_with_its_worker(eventually: Eventually) -> None:
    async with cluster() as (c, s, core, workers):
        address = workers[0].address
        (one,) = await c.scatter([1], workers=[address])
        await s.remove_worker(address, stimulus_id="test", close=True)
        await eventually(lambda: one.status != "finished")
        assert one.status in ("lost", "cancelled")
        (told,) = (event for _, event in s.get_events(address) if "lost-scattered-tasks" in event)
        assert told["lost-scattered-tasks"] == {one.key}
        assert core.is_active, core.escapes
        assert await c.submit(inc, 1) == 2


@gen_test()
async def test_data_for_an_unknown_worker_is_refused_by_dask() -> None:
    async with cluster() as (c, s, core, _):
        assert await c.submit(inc, 1) == 2
        with pytest.raises(KeyError):
            s.update_data(who_has={"x": ["tcp://127.0.0.1:1"]}, nbytes={"x": 1})
        assert list(core.escapes) == ["results on a worker that the core does not know"]


@gen_test()
async def test_a_cancellation_cancels_the_dependents(
    eventually: Eventually,
) -> None:
    async with cluster(workers=1) as (c, s, core, _):
        with workers_may_close():
            first = c.submit(when_told, 1)
            second = c.submit(inc, first)
            third = c.submit(inc, second, key=("t", 3))
            await eventually(lambda: third.key in s.tasks)
            await c.cancel(first, reason="because", msg="of this")
            assert first.cancelled()
            await eventually(lambda: third.status == "cancelled")
            with pytest.raises(FutureCancelledError, match="of this"):
                await third
            await eventually(lambda: not s.tasks)
            assert core.is_active, core.escapes
            told = [event for _, event in s.get_events(c.id) if event["action"] == "cancel"]
            assert told == [{"action": "cancel", "count": 1, "force": False}] * 3
            logged = [line.partition("cancels key ")[2] for _, line in s.get_logs()]
            for one in (first, second, third):
                assert logged.count(f"{one.key}.  Force=False") == 1
            go_on.set()
            assert await c.submit(inc, 10) == 11
            assert not core.escapes
            core.escape("to look at it")
            s.validate_state()


@gen_test()
async def test_a_task_of_another_client_is_cancelled_by_force_only(
    eventually: Eventually,
) -> None:
    async with (
        cluster() as (c, s, core, _),
        Client(s.address, asynchronous=True) as other,
    ):
        with workers_may_close():
            mine = c.submit(when_told, 1, key="shared")
            theirs = other.submit(when_told, 1, key="shared")
            await eventually(
                lambda: "shared" in s.tasks and len(s.tasks["shared"].who_wants or ()) == 2
            )
            await c.cancel(mine)
            # Behind that, on the same stream
            again = c.submit(when_told, 1, key="shared")
            assert await c.submit(inc, 1, workers=None, key="other") == 2
            assert theirs.status == again.status == "pending"
            await c.cancel(again, force=True)
            await eventually(lambda: theirs.status == "cancelled")
            await eventually(lambda: not s.tasks)
            assert core.is_active, core.escapes
            assert not core.escapes


@gen_test()
async def test_a_failed_task_is_tried_again() -> None:
    async with cluster() as (c, s, core, _):
        bad = c.submit(unless_told, 5)
        after = c.submit(inc, bad)
        with pytest.raises(ZeroDivisionError):
            await after
        may_run.set()
        await c.retry([after])
        assert await after == 6
        assert await bad == 5
        told = [event for _, event in s.get_events(c.id) if event["action"] == "retry"]
        assert [event["count"] for event in told] == [1]
        assert not core.escapes
        with pytest.raises(KeyError, match="nobody"):
            s.stimulus_retry(["nobody knows this"])
        assert core.is_active, core.escapes
        core.escape("to look at it")
        s.validate_state()


@gen_test()
async def test_variables_queues_and_publications_want_tasks(eventually: Eventually) -> None:
    async with cluster() as (c, s, core, _):
        variable: Any = Variable("v", client=c)
        queue: Any = await Queue("q", client=c)
        future = c.submit(inc, 1, key="kept")
        await variable.set(future)
        await queue.put(future)
        await c.publish_dataset(future, name="p")
        names = {"variable-v", "queue-q", "published-p"}
        kept = s.tasks["kept"]
        await eventually(lambda: names <= {one.client_key for one in kept.who_wants or ()})
        del future
        async with Client(s.address, asynchronous=True) as other:
            assert await (await Variable("v", client=other).get()) == 2
            assert await (await Queue("q", client=other).get()) == 2
            assert await (await other.get_dataset("p")) == 2
            assert await other.list_datasets() == ("p",)
        assert not core.escapes
        await c.unpublish_dataset("p")
        variable.delete()
        queue.close()
        await eventually(lambda: not s.tasks)
        await eventually(lambda: "variable-v" not in s.clients)
        assert core.is_active, core.escapes
        core.escape("to look at it")
        s.validate_state()


@gen_test()
async def test_events_locks_and_semaphores_touch_no_task() -> None:
    async with cluster() as (c, _, core, _):
        held = c.submit(inc, 1)
        assert await held == 2
        event = Event("e", client=c)
        waiting = asyncio.create_task(event.wait())
        await event.set()
        assert await waiting
        await event.clear()
        assert not await event.is_set()
        lock = Lock("l")
        assert await lock.acquire()
        await lock.release()
        semaphore = await Semaphore(max_leases=1, name="s")
        assert await semaphore.acquire()
        assert await semaphore.get_value() == 1
        await semaphore.release()
        await semaphore.close()
        assert core.is_active, core.escapes
        assert not core.escapes


@gen_test()
async def test_a_client_that_goes_is_forgotten_and_may_come_again(
    by_engine: bool, eventually: Eventually
) -> None:
    async with cluster() as (c, s, core, _):
        mine = c.submit(inc, 1, key="mine")
        assert await mine == 2
        for round_ in range(2):
            async with Client(s.address, asynchronous=True) as other:
                futures = other.map(inc, range(10), pure=False)
                assert sum(await other.gather(futures)) == 55, round_
                assert len(s.clients[other.id].wants_what) == 10
            await eventually(lambda: set(s.clients) == {c.id, "fire-and-forget"})
            assert core.is_active, core.escapes
            assert set(s.tasks) == {"mine"}
        if by_engine:
            before = core.engine_counts().get("task-finished", 0)
            await c.gather(c.map(inc, range(20), pure=False))
            # Reports that came in one batch with any other message were Python's.
            assert before < core.engine_counts()["task-finished"] <= before + 20
        assert not core.escapes
        core.escape("to look at it")
        s.validate_state()


@gen_test()
async def test_a_client_that_wants_an_unknown_key_is_warned() -> None:
    async with cluster() as (c, s, core, _):
        future = c.submit(inc, 1, key="known")
        assert await future == 2
        with pytest.warns(UserWarning, match="'lost'.*unknown"):
            s.client_desires_keys(keys=["lost", "known"], client="somebody")
        assert {ts.key for ts in s.clients["somebody"].wants_what} == {"known"}
        with pytest.raises(KeyError, match="stranger"):
            s.client_releases_keys(keys=["known"], client="stranger")
        assert core.is_active, core.escapes
        s.remove_client("somebody")
        assert "somebody" not in s.clients
        assert not core.escapes
        core.escape("to look at it")
        s.validate_state()


@gen_test()
async def test_random_wishes_with_looks_at_random_moments() -> None:
    chance = random.Random(7)
    async with cluster(workers=3) as (c, s, core, _):
        kept: dict[Any, int] = {}
        for round_ in range(60):
            match chance.randrange(6):
                case 0:
                    number = chance.randrange(1000)
                    (future,) = await c.scatter(
                        [number], direct=chance.random() < 0.5, hash=chance.random() < 0.5
                    )
                    kept[future] = number
                case 1:
                    kept[c.submit(inc, round_, pure=False)] = round_ + 1
                case 2 if kept:
                    future = chance.choice(list(kept))
                    kept[c.submit(inc, future, pure=False)] = kept[future] + 1
                case 3 if kept:
                    future = chance.choice(list(kept))
                    gone = {key for key in kept if key.key == future.key}
                    await c.cancel(future)
                    # With all that depends on it
                    for one in [*gone, *(one for one in kept if one.cancelled())]:
                        kept.pop(one, None)
                case 4 if kept and chance.random() < 0.2:
                    core.escape("at random")
                case 5 if kept:
                    del kept[chance.choice(list(kept))]
            for future, number in list(kept.items()):
                if future.cancelled():
                    del kept[future]
                elif chance.random() < 0.1:
                    try:
                        assert await future == number
                    except FutureCancelledError:
                        kept.pop(future, None)
        await wait([future for future in kept if not future.cancelled()])
        core.escape("to look at it")
        s.validate_state()
