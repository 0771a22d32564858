"""Reports of runs that workers may send and hardly ever do: the core or Dask handles them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from dask.sizeof import sizeof
from distributed import Client, Worker, wait
from distributed.utils_test import gen_test, inc

from tests.dask.conftest import Eventually
from tests.dask.scheduler_core.test_live import KEY, cluster

pytestmark = pytest.mark.usefixtures("by_engine")

#: For workers that say sizes of any kind: those whose state is in a core of their own do not
DASKS_WORKERS = {"distributed.comm.backhaul.hot-path.worker-core": False}

in_core_or_not = pytest.mark.parametrize("in_core", [True, False], ids=["core", "dask"])


#: Workers live in this process: a task waits here until reports of it have arrived.
arrived = threading.Event()


def inc_later(number: int) -> int:
    """Return a number and one once reports have arrived."""
    assert arrived.wait(300)
    return number + 1


class Stuck:
    """An object that can be sent and not be unpickled."""

    def __getstate__(self) -> dict[str, int]:
        return {"a": 1}

    def __setstate__(self, state: dict[str, int]) -> None:
        raise ValueError("not to be had")


class Sized:
    """A result of any size that a program says."""

    def __init__(self, nbytes: Any) -> None:
        self.nbytes = nbytes


@sizeof.register(Sized)  # type: ignore[untyped-decorator]
def _sizeof(one: Sized) -> Any:
    return one.nbytes


async def holder_of(key: str, workers: list[Worker]) -> tuple[Worker, Worker]:
    """Wait until a worker has been sent a task; give it, and the other."""
    while not any(key in worker.state.tasks for worker in workers):
        await asyncio.sleep(0.01)
    first, second = workers
    return (first, second) if key in first.state.tasks else (second, first)


def said_of(op: str, key: str, run_id: int) -> dict[str, Any]:
    """Make what a worker says of a run."""
    known: dict[str, dict[str, Any]] = {
        "task-erred": {
            "status": "error",
            "exception": ValueError("forged"),
            "traceback": None,
            "exception_text": "forged",
            "traceback_text": "",
            "thread": None,
            "startstops": None,
        },
        "task-finished": {
            "status": "OK",
            "nbytes": 28,
            "type": b"int",
            "typename": "int",
            "metadata": {},
            "thread": 1,
            "startstops": [{"action": "compute", "start": 1.0, "stop": 2.0}],
        },
        "long-running": {"compute_duration": 1.0},
    }
    return {"op": op, "key": key, "run_id": run_id, "stimulus_id": "forged", **known[op]}


def trust(workers: list[Worker]) -> None:
    """Make workers accept sizes that are no whole numbers: workers that validate do not."""
    for worker in workers:
        worker.state.validate = False


@in_core_or_not
@gen_test()
async def test_an_input_that_a_worker_cannot_unpickle_ends_no_worker(
    in_core: bool, eventually: Eventually
) -> None:
    async with cluster(settings={KEY: in_core}) as (c, s, core, workers):
        assert await c.submit(inc, 1) == 2
        here, there = (worker.address for worker in workers)
        stuck = c.submit(Stuck, workers=[here], pure=False)
        behind = c.submit(type, stuck, workers=[there], pure=False)
        failed = workers[1].state.tasks
        await eventually(lambda: stuck.key in failed and failed[stuck.key].state == "error")
        # It reports that a task failed that it was never asked to run.
        assert failed[stuck.key].run_id == -1
        # Its dependents wait, as with Dask. Earlier messages come before.
        assert await c.gather([c.submit(inc, 2, workers=[one]) for one in (here, there)]) == [3, 3]
        assert not behind.done()
        assert core.is_active is in_core, core.escapes
        assert await c.submit(lambda one: type(one).__name__, stuck, workers=[here]) == "Stuck"
        assert s.workers.keys() == {here, there}
        core.escape("to compare")
        assert s.tasks[stuck.key].state == "memory"
        s.validate_state()


@in_core_or_not
@pytest.mark.parametrize("run_id", [-1, -(2**63), 2**64 - 1])
@pytest.mark.parametrize("op", ["task-erred", "task-finished", "long-running"])
@gen_test()
async def test_a_run_that_was_not_assigned_does_not_count(
    op: str, run_id: int, in_core: bool, eventually: Eventually
) -> None:
    arrived.clear()
    async with cluster(settings={KEY: in_core}) as (c, s, core, workers):
        assert await c.gather(c.map(inc, range(50))) == list(range(1, 51))
        slow = c.submit(inc_later, 1, key="slow")
        holder, stranger = await holder_of("slow", workers)
        run = holder.state.tasks["slow"].run_id
        stranger.batched_send(said_of(op, "slow", run_id))
        stranger.batched_send(said_of(op, "nobody-knows", run_id))
        # The worker that it was sent to is to run it once more: that worker knows no better.
        holder.batched_send(said_of(op, "slow", run_id))
        for worker in workers:
            worker.batched_send({"op": "log-event", "topic": "reports", "msg": "all"})
        await eventually(lambda: len(s.get_events("reports")) == len(workers))
        arrived.set()
        assert await slow == 2
        assert core.is_active is in_core, core.escapes
        assert len(s.workers) == 2
        assert "nobody-knows" not in s.tasks
        core.escape("to compare")
        assert (s.tasks["slow"].run_id == run) is (op == "long-running")
        s.validate_state()


@in_core_or_not
@pytest.mark.parametrize("nbytes", [28.5, 2.0**70, 2**49, 2**64 - 1, -5])
@gen_test()
async def test_sizes_that_the_core_cannot_count_are_dasks(
    nbytes: Any, in_core: bool, eventually: Eventually
) -> None:
    async with cluster(settings={KEY: in_core, **DASKS_WORKERS}) as (c, s, core, workers):
        trust(workers)
        assert await c.gather(c.map(inc, range(50))) == list(range(1, 51))
        before = core.adoptions
        for name in ("one", "other"):
            future = c.submit(Sized, nbytes, key=name)
            await wait(future)
            assert s.tasks[name].nbytes == nbytes
            future.release()
        assert core.escapes == ({"the size of a result": 1} if in_core else {})
        assert len(s.workers) == 2
        s.validate_state()
        await eventually(lambda: not len(s.tasks))
        if in_core:
            await goes_on_in_the_core(c, core, before)


async def goes_on_in_the_core(c: Client, core: Any, before: int) -> None:
    """Wait until the state is in a core again."""
    while core.adoptions == before:
        assert await c.submit(inc, 1, pure=False) == 2
        await asyncio.sleep(0.01)
    assert await c.submit(inc, 5) == 6
    assert core.is_active


@gen_test()
async def test_parts_of_bytes_that_are_left_do_not_keep_the_state_out(
    eventually: Eventually,
) -> None:
    async with cluster(workers=1, settings=DASKS_WORKERS) as (c, s, core, workers):
        trust(workers)
        sized = [c.submit(Sized, nbytes, key=f"sized-{nbytes}") for nbytes in (0.1, 0.2, 0.7)]
        await c.gather(sized)
        before = core.adoptions
        for one in sized:
            one.release()
        await eventually(lambda: not len(s.tasks))
        (ws,) = s.workers.values()
        assert isinstance(ws.nbytes, float)
        await goes_on_in_the_core(c, core, before)
        # Sizes that add up to no number stay with Dask.
        core.escape("a test")
        await eventually(lambda: not len(s.tasks))
        ws.nbytes = float("nan")  # type: ignore[assignment]
        for number in range(20):
            assert await c.submit(inc, number) == number + 1
            await asyncio.sleep(0.01)
        assert not core.is_active


@pytest.mark.parametrize("nbytes", [28.5, 2**49])
@gen_test()
async def test_sizes_of_scattered_results_likewise(nbytes: Any) -> None:
    async with cluster(settings=DASKS_WORKERS) as (c, s, core, workers):
        trust(workers)
        assert await c.submit(inc, 1) == 2
        (future,) = await c.scatter([Sized(nbytes)])
        assert s.tasks[future.key].nbytes == nbytes
        assert core.escapes == {"results of a size that the core cannot count": 1}
        s.validate_state()
