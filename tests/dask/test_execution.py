"""Tasks run by Backhaul in a worker's threads: the same to everybody as run by Dask."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import threading
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import pytest
from distributed import (
    Client,
    KilledWorker,
    Nanny,
    Reschedule,
    Scheduler,
    Worker,
    get_client,
    get_worker,
    profile,
    rejoin,
    secede,
    span,
    wait,
    worker_client,
)
from distributed.core import Status
from distributed.metrics import context_meter
from distributed.utils import thread_state
from distributed.utils_test import gen_cluster

import dask
from backhaul.dask import activation, execution

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually, Start

HOST = "backhaul://127.0.0.1"

#: Workers live in this process: tasks wait here, and leave what they saw.
gate = threading.Event()
entered = threading.Semaphore(0)
seen: list[Any] = []
runs: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def fresh_globals() -> Iterator[None]:
    global entered
    gate.clear()
    entered = threading.Semaphore(0)
    seen.clear()
    runs.clear()
    yield
    gate.set()


class Path:
    """Which way tasks went.

    Attributes
    ----------
    taken : set of key
        Tasks that Backhaul ran.
    ours : bool
        Whether it was free to.
    """

    def __init__(self, ours: bool) -> None:
        self.ours = ours
        self.taken: set[Any] = set()
        self.start_execution = execution.start_execution

    def start(self, worker: Worker, key: Any, **arguments: Any) -> bool:
        taken = self.ours and self.start_execution(worker, key, **arguments)
        if taken:
            self.taken.add(key)
        return taken

    def is_ours_for(self, *keys: Any) -> bool:
        """Tell whether exactly these went our way, or none where Dask has them all."""
        return self.taken == (set(keys) if self.ours else set())


@pytest.fixture(params=["backhaul", "dask"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test with our way, and with Dask's own."""
    path = Path(request.param == "backhaul")
    monkeypatch.setattr(execution, "start_execution", path.start)
    activation.install()
    assert "hot-path.execution" in {patch.switch for patch in activation.installed()}
    return path


def cluster(*nthreads: int, **arguments: Any) -> Callable[[Any], Any]:
    """Run a test with a worker for each number of threads, in this process, validated."""
    return gen_cluster(
        client=True,
        scheduler=HOST,
        nthreads=[(HOST, count) for count in nthreads or (1,)],
        **arguments,
    )


async def until_entered(count: int = 1) -> None:
    """Wait until tasks are in `gated`."""
    for _ in range(count):
        assert await asyncio.to_thread(entered.acquire, timeout=60)


def gated(*_: Any) -> str:
    entered.release()
    assert gate.wait(60)
    return "passed"


def add(*numbers: int) -> int:
    return sum(numbers)


def fail(*_: Any) -> None:
    raise ZeroDivisionError("on purpose")


def count_run() -> None:
    runs["counted"] += 1


def is_idle(worker: Worker) -> bool:
    return is_idle_but_for_threads(worker) and not worker.active_threads


def is_idle_but_for_threads(worker: Worker) -> bool:
    return not (worker._async_instructions or worker.active_keys)


def execute_metrics(worker: Worker, prefix: str) -> dict[tuple[str, str], float]:
    """Sum up what a worker measured of some tasks, by label and unit."""
    found: Counter[tuple[str, str]] = Counter()
    for name, value in worker.digests_total.items():
        if isinstance(name, tuple) and name[0] == "execute" and name[2] == prefix:
            found[name[3], name[4]] += value  # type: ignore[assignment]
    return dict(found)


def first_frames(profile: dict[str, Any]) -> set[str]:
    """Name where the stacks of a profile begin."""
    return {child["description"]["name"] for child in profile["children"].values()}


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


def throw(kind: type[BaseException]) -> None:
    raise kind("thrown")


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
from backhaul.dask import activation, execution

def end(kind):
    raise kind("the end")

async def main(kind):
    async with Scheduler(host="backhaul://127.0.0.1", dashboard_address=":0") as scheduler:
        async with Worker(scheduler.address, nthreads=1) as worker:
            async with Client(scheduler.address, asynchronous=True) as client:
                await client.submit(end, kind)

ours = execution.start_execution
for kind in (SystemExit, KeyboardInterrupt):
    for name, start in (("ours", ours), ("theirs", lambda *_, **__: False)):
        execution.start_execution = start
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


# What a task finds around it


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
    await eventually(lambda: worker.state.tasks["gated-1"].state == "cancelled")
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


# Cancelling and closing


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
async def test_a_closing_worker_lets_go_of_what_runs(
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
    assert b.active_keys == {"running"}
    gate.set()
    assert await running == "passed"
    assert await client.gather(queued) == list(range(10))
    assert path.is_ours_for("running", *(future.key for future in queued))


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_may_outlive_the_event_loop(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> list[threading.Thread]:
        async with (
            Scheduler(host=HOST, dashboard_address=":0") as scheduler,
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
async def test_what_is_cancelled_in_the_queue_does_not_run(
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


@gen_cluster(client=True, scheduler=HOST, nthreads=[(HOST, 1)], Worker=Nanny, timeout=60)
async def test_a_restarted_worker_runs_tasks_again(
    client: Client, scheduler: Scheduler, nanny: Nanny, eventually: Eventually
) -> None:
    assert await client.submit(add, 1, 2) == 3
    running = client.submit(sleep, 600)
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
        timeout=60,
        config={"distributed.scheduler.allowed-failures": 0},
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


# What is left to Dask


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
