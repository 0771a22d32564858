"""Tasks run by Backhaul: cancelled, released, and on workers that close or are started again."""

from __future__ import annotations

import asyncio
import threading
from time import sleep
from typing import TYPE_CHECKING, Any

import pytest
from distributed import (
    Client,
    KilledWorker,
    Nanny,
    Scheduler,
    Worker,
    wait,
)
from distributed.core import Status
from distributed.utils_test import gen_cluster

from backhaul.dask.compat import activation
from tests.dask.conftest import FORKED
from tests.dask.execution.tasks import (
    HOST,
    Path,
    add,
    cluster,
    count_run,
    gate,
    gated,
    is_idle,
    is_idle_but_for_threads,
    runs,
    throw,
    until_entered,
)

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually


@cluster(1)
async def test_a_cancelled_task_can_be_wanted_again(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path, eventually: Eventually
) -> None:
    future = client.submit(gated, key="gated")
    await until_entered()
    await future.cancel()
    await eventually(lambda: worker.state.tasks["gated"].state == "cancelled")
    again = client.submit(gated, key="gated")
    await eventually(lambda: worker.state.tasks["gated"].state == "executing")
    gate.set()
    assert await again == "passed"
    await eventually(lambda: is_idle(worker))
    assert path.is_ours_for("gated")


@cluster(1)
async def test_a_released_task_leaves_no_result(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path, eventually: Eventually
) -> None:
    future = client.submit(gated, key="gated")
    await until_entered()
    future.release()
    await eventually(lambda: worker.state.tasks["gated"].state == "cancelled")
    gate.set()
    await eventually(lambda: not worker.state.tasks)
    await eventually(lambda: is_idle(worker))
    assert not worker.data
    assert path.is_ours_for("gated")


@cluster(1, 1)
async def test_a_closing_worker_drops_running_tasks(
    client: Client,
    scheduler: Scheduler,
    a: Worker,
    b: Worker,
    path: Path,
    caplog: pytest.LogCaptureFixture,
    eventually: Eventually,
) -> None:
    running = client.submit(gated, key="running", workers=[a.address], allow_other_workers=True)
    await until_entered()
    queued = client.map(add, range(10), workers=[a.address], allow_other_workers=True)
    await eventually(lambda: a.state.ready)
    await a.close(executor_wait=False)
    assert is_idle_but_for_threads(a)
    assert "running" in caplog.text
    assert "ended with CancelledError" in caplog.text
    await until_entered()
    # A thread may begin it before the event loop handles the end of the task before.
    await eventually(lambda: b.active_keys == {"running"})
    gate.set()
    assert await running == "passed"
    assert await client.gather(queued) == list(range(10))
    assert path.is_ours_for("running", *(future.key for future in queued))


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_may_outlive_the_event_loop(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> list[threading.Thread]:
        async with (
            Scheduler(host=HOST, dashboard=False, dashboard_address=":0") as scheduler,
            Client(scheduler.address, asynchronous=True) as client,
        ):
            worker = await Worker(scheduler.address, nthreads=1)
            future = client.submit(gated, key="gated")
            await until_entered()
            threads = list(worker.executors["default"]._threads)
            future.release()
            await worker.close(executor_wait=False)
            return threads

    threads = asyncio.run(run())
    gate.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert "Exception in worker" not in caplog.text
    assert path.is_ours_for("gated")


@cluster(1)
async def test_a_pool_that_was_shut_down_fails_the_task(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path, eventually: Eventually
) -> None:
    worker.executors["default"].shutdown(wait=False)
    with pytest.raises(RuntimeError, match="after shutdown"):
        await client.submit(add, 1, key="late")
    await eventually(lambda: is_idle(worker))
    assert path.is_ours_for("late")


@cluster(1)
async def test_a_pool_that_is_shut_down_fails_all_that_wait_for_it(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path, eventually: Eventually
) -> None:
    first = client.submit(gated, key="first")
    await until_entered()
    # Several calls for each: more than Python nests.
    late = client.map(add, range(400), workers=[worker.address])
    await eventually(lambda: len(worker.state.ready) == 400)
    worker.executors["default"].shutdown(wait=False)
    gate.set()
    assert await first == "passed"
    await wait(late)
    assert {future.status for future in late} == {"error"}
    await eventually(lambda: is_idle(worker))
    assert len(path.taken) == (401 if path.ours else 0)


@cluster(1)
async def test_a_task_cancelled_in_the_queue_does_not_run(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path, eventually: Eventually
) -> None:
    executor: Any = worker.executors["default"]
    blocker = executor.submit(gated)
    await until_entered()
    future = client.submit(count_run, key="queued")
    await eventually(lambda: worker.active_keys == {"queued"})
    await eventually(lambda: executor._work_queue.qsize() == 1)
    for instruction in list(worker._async_instructions):
        instruction.cancel()
    await eventually(lambda: is_idle_but_for_threads(worker))
    gate.set()
    blocker.result(60)
    await eventually(executor._work_queue.empty)
    assert executor.submit(add, 1).result(60) == 1
    assert not runs
    future.release()
    assert path.is_ours_for("queued")


@cluster(2, 2)
async def test_a_retired_worker_hands_over_its_results(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker, path: Path
) -> None:
    futures = client.map(add, range(20), workers=[a.address], allow_other_workers=True)
    await wait(futures)
    await client.retire_workers([a.address])
    assert list(scheduler.workers) == [b.address]
    assert await client.gather(futures) == list(range(20))
    assert path.is_ours_for(*(future.key for future in futures))


def installed_switches() -> set[str]:
    return {patch.switch for patch in activation.installed()}


@gen_cluster(client=True, scheduler=HOST, nthreads=[(HOST, 1)], Worker=Nanny, config=FORKED)
async def test_a_restarted_worker_runs_tasks_again(
    client: Client, scheduler: Scheduler, nanny: Nanny, eventually: Eventually
) -> None:
    assert await client.submit(add, 1, 2) == 3
    # Dask waits for its end for up to 30 s.
    running = client.submit(sleep, 8)
    await eventually(lambda: scheduler.workers[nanny.worker_address].processing)
    await client.restart()
    assert running.status == "cancelled"
    assert await client.submit(add, 1, 2, 3) == 6
    (switches,) = (await client.run(installed_switches)).values()
    assert "hot-path.execution" in switches


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_worker_that_a_task_ends_is_restarted(kind: type[BaseException]) -> None:
    @gen_cluster(
        client=True,
        scheduler=HOST,
        nthreads=[(HOST, 1)],
        Worker=Nanny,
        timeout=300,
        config={"distributed.scheduler.allowed-failures": 0, **FORKED},
    )
    async def ends_and_restarts(client: Client, scheduler: Scheduler, nanny: Nanny) -> None:
        (switches,) = (await client.run(installed_switches)).values()
        assert "hot-path.execution" in switches
        with pytest.raises(KilledWorker):
            await client.submit(throw, kind)
        asynchronous: Any = client
        await asynchronous.wait_for_workers(1)
        assert nanny.status is Status.running
        assert await client.submit(add, 1, 2) == 3

    ends_and_restarts()
