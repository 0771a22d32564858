"""Tasks run by Backhaul: what they find around them, what is measured of them, what they keep."""

from __future__ import annotations

import contextvars
import gc
import threading
import weakref
from collections.abc import Iterator
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import pytest
from distributed import (
    Client,
    Scheduler,
    Worker,
    get_client,
    get_worker,
    profile,
    rejoin,
    secede,
    wait,
    worker_client,
)
from distributed.metrics import context_meter
from distributed.utils import thread_state
from distributed.utils_test import gen_cluster

from tests.dask.execution.tasks import (
    HOST,
    Path,
    add,
    cluster,
    execute_metrics,
    first_frames,
    gate,
    gated,
    is_idle,
    seen,
    until_entered,
)

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually


# The environment that a task finds


def look_around() -> tuple[Any, ...]:
    return (
        get_worker().address,
        get_client().id,
        thread_state.key,
        get_worker().get_current_task(),
        thread_state.execution_state["worker"].address,
        thread_state.start_time > 0,
        "Dask-Default-Threads" in threading.current_thread().name,
    )


@cluster(1)
async def test_a_task_finds_its_worker_client_and_key(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path
) -> None:
    found = await client.submit(look_around, key="here")
    address = worker.address
    assert found == (address, client.id, "here", "here", address, True, True)
    left = worker.executors["default"].submit(lambda: list(vars(thread_state)))
    assert left.result(60) == []
    assert path.is_ours_for("here")


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")


def read_and_set(number: int) -> str:
    found = variable.get()
    variable.set(f"task {number}")
    return found


@gen_cluster(nthreads=[], scheduler=HOST)
async def test_context_variables_are_those_of_the_worker(scheduler: Scheduler, path: Path) -> None:
    variable.set("the worker's")
    async with Worker(scheduler.address, nthreads=1) as worker:
        variable.set("the client's")
        async with Client(scheduler.address, asynchronous=True) as client:
            keys = [f"reads-{number}" for number in range(10)]
            assert worker.state.nthreads == 1
            assert (
                await client.gather(client.map(read_and_set, range(10), key=keys))
                == ["the worker's"] * 10
            )
    assert path.is_ours_for(*keys)


def leave_the_pool(then_rejoin: bool) -> str:
    secede()
    gated()
    if then_rejoin:
        rejoin()
    return thread_state.key  # type: ignore[no-any-return]


@cluster(1)
async def test_a_task_that_leaves_the_pool_lets_others_in(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path, eventually: Eventually
) -> None:
    leaving = [
        client.submit(leave_the_pool, then_rejoin, key=f"leaves-{then_rejoin}")
        for then_rejoin in (True, False)
    ]
    await until_entered(2)
    assert await client.gather(client.map(add, range(5), key=list("abcde"))) == list(range(5))
    assert {state.state for state in worker.state.long_running} == {"long-running"}
    gate.set()
    assert await client.gather(leaving) == ["leaves-True", "leaves-False"]
    assert await client.submit(add, 1, key="after") == 1
    await eventually(lambda: is_idle(worker))
    assert path.is_ours_for(*"abcde", "leaves-True", "leaves-False", "after")


def compute_inside(number: int) -> int:
    with worker_client() as client:
        total: int = client.submit(add, number, 1, key=f"inner-{number}").result()
    return total


@cluster(1)
async def test_a_task_can_compute_others(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path
) -> None:
    futures = client.map(compute_inside, range(3), key=[f"outer-{n}" for n in range(3)])
    assert await client.gather(futures) == [1, 2, 3]
    assert path.is_ours_for(*(f"{name}-{n}" for name in ("inner", "outer") for n in range(3)))


# Metrics


def measure(fails: bool = False) -> None:
    context_meter.digest_metric("eaten", 3, "apples")
    with context_meter.meter("inner"):
        sleep(0.05)
    if fails:
        raise ValueError


LABELS = {
    ("thread-cpu", "seconds"),
    ("thread-noncpu", "seconds"),
    ("executor", "seconds"),
    ("other", "seconds"),
}


@cluster(1)
async def test_metrics_have_the_same_labels_and_add_up(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path, eventually: Eventually
) -> None:
    started = perf_counter()
    await wait([client.submit(measure, key="measure-1"), client.submit(add, key="add-1")])
    await eventually(lambda: execute_metrics(worker, "measure").keys() >= LABELS)
    await eventually(lambda: execute_metrics(worker, "add").keys() == LABELS)
    elapsed = perf_counter() - started
    found = execute_metrics(worker, "measure")
    assert found.keys() == LABELS | {("eaten", "apples"), ("inner", "seconds")}
    assert found.pop(("eaten", "apples")) == 3
    assert 0.05 <= found["inner", "seconds"] <= sum(found.values()) <= elapsed
    assert all(value >= 0 for value in found.values())
    names = {name[:3] for name in worker.digests_total if isinstance(name, tuple)}
    span_id = scheduler.task_groups["measure"].span_id
    assert ("execute", span_id, "measure") in names
    assert worker.digests_total["task-duration"] > 0 if worker.digests is not None else True
    assert path.is_ours_for("measure-1", "add-1")


@cluster(1)
async def test_metrics_of_failed_and_cancelled_tasks_are_coarse(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path, eventually: Eventually
) -> None:
    await wait(client.submit(measure, True, key="measure-1"))
    coarse = {("failed", "seconds"), ("eaten", "apples")}
    await eventually(lambda: execute_metrics(worker, "measure").keys() == coarse)
    assert execute_metrics(worker, "measure")["failed", "seconds"] >= 0.05

    future = client.submit(gated, key="gated-1")
    await until_entered()
    await future.cancel()
    # A thread may have begun with it before the event loop handled it.
    await eventually(
        lambda: getattr(worker.state.tasks.get("gated-1"), "state", None) == "cancelled"
    )
    gate.set()
    await eventually(lambda: not worker.state.tasks)
    await eventually(lambda: execute_metrics(worker, "gated").keys() == {("cancelled", "seconds")})
    assert path.is_ours_for("measure-1", "gated-1")


@cluster(1)
async def test_a_profile_begins_with_the_task(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path
) -> None:
    future = client.submit(gated, key="gated-1")
    await until_entered()
    worker.profile_recent = profile.create()
    worker.profile_keys.clear()
    worker.trigger_profile()
    (stack,) = worker.get_call_stack(["gated-1"]).values()
    gate.set()
    await future
    assert worker.profile_recent["count"] == worker.profile_keys["gated"]["count"] == 1
    assert first_frames(worker.profile_recent) == {"__call__"}
    assert first_frames(worker.profile_keys["gated"]) == {"__call__"}
    assert len([frame for frame in stack if "distributed/worker.py" in frame]) == 2
    assert path.is_ours_for("gated-1")


class SlowToLoad:
    """Takes longer to unpickle than Dask lets pass without a record."""

    def __reduce__(self) -> Any:
        return SlowToLoad.load, ()

    @staticmethod
    def load() -> SlowToLoad:
        sleep(0.02)
        return SlowToLoad()

    def __sizeof__(self) -> int:
        return 1000


@cluster(1, worker_kwargs={"memory_limit": "10 GB"})
async def test_reading_from_disk_counts_for_the_task_that_needs_it(
    client: Client, scheduler: Scheduler, worker: Worker, path: Path, eventually: Eventually
) -> None:
    data: Any = worker.data
    slow = client.submit(SlowToLoad, key="slow-1")
    await wait(slow)
    while data.fast:
        data.evict()
    first = client.submit(gated, key="gated-1")
    await until_entered()
    # It starts as the other one finishes.
    reader = client.submit(lambda value: type(value).__name__, slow, key="reader-1", priority=-1)
    await eventually(lambda: "reader-1" in worker.state.tasks)
    gate.set()
    assert await client.gather([first, reader]) == ["passed", "SlowToLoad"]
    await eventually(lambda: execute_metrics(worker, "reader").keys() >= LABELS)
    assert ("disk-read", "seconds") in execute_metrics(worker, "reader")
    assert ("disk-read", "seconds") not in execute_metrics(worker, "gated")
    assert execute_metrics(worker, "reader")["deserialize", "seconds"] >= 0.02
    actions = [entry["action"] for entry in worker.state.tasks["reader-1"].startstops]
    assert actions == ["disk-read", "compute"]
    assert path.is_ours_for("slow-1", "gated-1", "reader-1")


class Forgetful(dict[Any, Any]):
    def __getitem__(self, key: Any) -> Any:
        if key == "lost":
            raise KeyError(key)
        return super().__getitem__(key)


@cluster(1, worker_kwargs={"data": Forgetful})
async def test_a_dependency_that_is_not_there_fails_the_task(
    client: Client,
    scheduler: Scheduler,
    worker: Worker,
    path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lost = client.submit(add, 1, key="lost")
    with pytest.raises(KeyError, match="lost"):
        await client.submit(add, lost, key="needs")
    assert "Exception during execution of task 'needs'" in caplog.text
    assert path.is_ours_for("lost")


# Memory


class Data:
    """Something to watch the end of."""


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Let nothing but its reference count end an object."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def make_data() -> Data:
    data = Data()
    seen.append(weakref.ref(data))
    return data


def fail_with(data: Data) -> None:
    raise ValueError


def keep_context(data: Data) -> None:
    seen.append(contextvars.copy_context())


@cluster(1)
async def test_results_and_data_end_with_their_last_future(
    client: Client,
    scheduler: Scheduler,
    worker: Worker,
    path: Path,
    eventually: Eventually,
    no_collection: None,
) -> None:
    made = client.submit(make_data, key="made")
    failed = client.submit(fail_with, made, key="failed")
    kept = client.submit(keep_context, made, key="kept")
    await wait([failed, kept])
    assert path.is_ours_for("made", "failed", "kept")
    assert seen[0]() is not None
    made.release()
    failed.release()
    kept.release()
    await eventually(lambda: not worker.state.tasks)
    if not path.ours:
        gc.collect()
    await eventually(lambda: seen[0]() is None)
    assert isinstance(seen[1], contextvars.Context)
