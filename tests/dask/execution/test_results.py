"""Tasks run by Backhaul in a worker's threads: the same to everybody as run by Dask."""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from distributed import (
    Client,
    Reschedule,
    Scheduler,
    Worker,
    span,
    wait,
)
from distributed.core import Status

import dask
from tests.dask.execution.tasks import (
    Path,
    add,
    cluster,
    execute_metrics,
    fail,
    gate,
    gated,
    is_idle,
    is_idle_but_for_threads,
    runs,
    seen,
    throw,
    until_entered,
)

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually, Start


# Results


@cluster(2)
async def test_results_reach_dependents(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path
) -> None:
    assert worker.state.validate
    a = client.submit(add, 1, 2, key="a")
    b = client.submit(add, a, 10, key="b")
    nothing = client.submit(print, key="nothing")
    after = client.submit(lambda value: value is None, nothing, key="after")
    assert await client.gather([a, b, nothing, after]) == [3, 13, None, True]
    assert path.is_ours_for("a", "b", "nothing", "after")
    assert worker.threads.keys() == {"a", "b", "nothing", "after"}


@cluster(4)
async def test_threads_run_at_the_same_time(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path
) -> None:
    futures = client.map(gated, range(4), key=list("abcd"))
    await until_entered(4)
    assert worker.active_keys == set("abcd")
    with worker.active_threads_lock:
        assert sorted(worker.active_threads.values()) == list("abcd")
    assert len(worker._async_instructions) == 4
    gate.set()
    await wait(futures)
    assert path.is_ours_for(*"abcd")
    assert set(worker.threads) == set("abcd")
    assert len(set(worker.threads.values())) == 4


@cluster(1)
async def test_nothing_is_left_when_tasks_are_done(
    client: Client,
    scheduler: Scheduler,
    worker: Worker,
    path: Path,
    eventually: Eventually,
) -> None:
    futures = [*client.map(add, range(50)), client.submit(fail, key="fails")]
    await wait(futures)
    await eventually(lambda: is_idle(worker))
    assert len(path.taken) == (51 if path.ours else 0)
    worker.validate_state()


@cluster(1, config={"distributed.scheduler.worker-saturation": "inf"})
async def test_urgent_tasks_go_first(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path, eventually: Eventually
) -> None:
    first = client.submit(gated, key="first")
    await until_entered()
    keys = [f"urgency-{urgency}" for urgency in range(5)]
    futures = [
        client.submit(seen.append, urgency, key=key, priority=urgency, pure=False)
        for urgency, key in enumerate(keys)
    ]
    await eventually(lambda: len(worker.state.ready) == 5)
    gate.set()
    await wait([first, *futures])
    assert path.is_ours_for("first", *keys)
    order = [entry[0] for entry in worker.state.log if entry[1:3] == ("ready", "executing")]
    assert [key for key in order if key in keys] == keys[::-1]


@cluster(4, worker_kwargs={"resources": {"one": 1}})
async def test_resources_are_kept(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path, eventually: Eventually
) -> None:
    futures = client.map(gated, range(3), resources={"one": 1}, key=list("abc"))
    await until_entered()
    # One that runs, one to go on with; the third waits at the scheduler.
    await eventually(lambda: len(worker.state.tasks) == 2)
    assert worker.active_keys == {"a"}
    assert worker.state.available_resources == {"one": 0}
    gate.set()
    assert await client.gather(futures) == ["passed"] * 3
    await eventually(lambda: worker.state.available_resources == {"one": 1})
    assert path.is_ours_for(*"abc")


# Failures


@cluster(1)
async def test_a_failure_has_its_own_traceback_and_is_logged(
    client: Client,
    scheduler: Scheduler,
    worker: Worker,
    path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    future = client.submit(fail, key="fails")
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        await future
    frames = traceback.extract_tb(await future.traceback())
    assert [frame.name for frame in frames] == ["fail"]
    (record,) = [r for r in caplog.records if r.message.startswith("Compute Failed")]
    assert record.name == "distributed.worker"
    assert record.levelno == logging.ERROR
    assert "Key:       fails\nState:     executing\n" in record.message
    assert path.is_ours_for("fails")


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not this one")


class Indescribable(Unpicklable):
    def __repr__(self) -> str:
        raise LookupError("no words")


class Odd(BaseException):
    pass


@cluster(1)
async def test_exceptions_that_are_not_ordinary_arrive(
    client: Client,
    scheduler: Scheduler,
    worker: Worker,
    path: Path,
    caplog: pytest.LogCaptureFixture,
    eventually: Eventually,
) -> None:
    with pytest.raises(Exception, match=r"Unpicklable\('thrown'\)"):
        await client.submit(throw, Unpicklable, key="unpicklable")
    with pytest.raises(Odd, match="thrown"):
        await client.submit(throw, Odd, key="odd")
    with pytest.raises(asyncio.CancelledError):
        await client.submit(throw, asyncio.CancelledError, key="cancelled")
    stop = client.submit(throw, StopIteration, key="stop")
    await wait(stop)
    assert isinstance(await stop.exception(), StopIteration)
    assert "Exception during execution" not in caplog.text
    indescribable = client.submit(throw, Indescribable, key="indescribable")
    with pytest.raises(Exception, match="no words"):
        await indescribable
    frames = traceback.extract_tb(await indescribable.traceback())
    assert frames[-1].name == "__repr__"
    assert "Exception during execution of task 'indescribable'" in caplog.text
    await eventually(lambda: is_idle_but_for_threads(worker))
    assert worker.status is Status.running
    assert path.is_ours_for("unpicklable", "odd", "cancelled", "stop", "indescribable")


def reschedule_once() -> str:
    runs["reschedule"] += 1
    if runs["reschedule"] == 1:
        raise Reschedule
    return "done"


@cluster(1, 1)
async def test_a_task_can_ask_to_run_elsewhere(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker, path: Path
) -> None:
    assert await client.submit(reschedule_once, key="moves") == "done"
    assert runs["reschedule"] == 2
    assert path.is_ours_for("moves")
    labels = {*execute_metrics(a, "moves"), *execute_metrics(b, "moves")}
    assert ("cancelled", "seconds") in labels


ENDS = """
import asyncio, sys
from distributed import Client, Scheduler, Worker
from backhaul.dask.compat import activation
from backhaul.dask.worker import task_start

def end(kind):
    raise kind("the end")

async def main(kind):
    where = {"host": "backhaul://127.0.0.1", "dashboard_address": ":0"}
    async with Scheduler(dashboard=False, **where) as scheduler:
        async with Worker(scheduler.address, nthreads=1) as worker:
            async with Client(scheduler.address, asynchronous=True) as client:
                await client.submit(end, kind)

ours = task_start.start_execution
for kind in (SystemExit, KeyboardInterrupt):
    for name, start in (("ours", ours), ("theirs", lambda *_, **__: False)):
        task_start.start_execution = start
        try:
            asyncio.run(main(kind))
        except BaseException as error:
            print("seen", name, repr(error), flush=True)
"""


def test_a_task_can_end_the_program(start: Start) -> None:
    program = start("-c", ENDS)
    for kind in ("SystemExit", "KeyboardInterrupt"):
        for name in ("ours", "theirs"):
            program.wait_for(rf"(seen {name} {kind}\('the end'\))")


# Results that are left to Dask


@cluster(1)
async def test_other_executors_are_left_to_dask(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path
) -> None:
    worker.executors["mine"] = ThreadPoolExecutor(1, "mine")
    with dask.annotate(executor="mine"):
        name = await client.submit(lambda: threading.current_thread().name, key="mine")
    assert name.startswith("mine")
    with dask.annotate(executor="nobody's"), pytest.raises(ValueError, match="Invalid executor"):
        await client.submit(add, 1, key="nobody")
    assert await client.submit(add, 1, key="default") == 1
    assert path.is_ours_for("default")


async def add_later(*numbers: int) -> int:
    await asyncio.sleep(0)
    return add(*numbers)


@cluster(1)
async def test_coroutines_and_spans_are_left_to_dask(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path
) -> None:
    assert await client.submit(add_later, 1, 2, key="coroutine") == 3
    with span("mine"):
        annotation = await client.submit(lambda: dask.get_annotations()["span"], key="spanned")
    assert annotation["name"] == ("mine",)
    assert await client.submit(add, 1, key="ordinary") == 1
    assert path.is_ours_for("ordinary")


class Counting:
    def __init__(self) -> None:
        self.count = 0

    def increment(self) -> int:
        self.count += 1
        return self.count


def increment_of(counting: Any) -> int:
    return int(counting.increment().result())


@cluster(2)
async def test_actors_are_left_to_dask(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path
) -> None:
    counting = await client.submit(Counting, actor=True, key="actor")
    assert await counting.increment() == 1
    assert await client.submit(increment_of, counting, key="uses") == 2
    assert "uses" not in path.taken


class OwnWorker(Worker):
    async def execute(self, key: Any, *, stimulus_id: str) -> Any:
        seen.append(key)
        return await super().execute(key, stimulus_id=stimulus_id)


@cluster(1, Worker=OwnWorker)
async def test_a_worker_with_its_own_execution_keeps_it(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path
) -> None:
    assert await client.submit(add, 1, key="one") == 1
    assert seen == ["one"]
    assert not path.taken
