"""Threads that tell a worker's state in Rust of what they have run."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from distributed import Client, Scheduler, Status, Worker, WorkerPlugin, wait

from backhaul.dask.compat import activation
from backhaul.dask.worker import early_reader
from backhaul.dask.worker.core import ownership as keeper_module
from backhaul.dask.worker.core.ownership import StateOwner
from backhaul.dask.worker.local_queue import local_queue_of
from backhaul.dask.worker.state_checks import no_plugin_has_transition
from backhaul.dask.worker.thread_events import ThreadEvents
from tests.dask.execution.in_rust import in_rust, inc, state_owner_of, watch_nothing
from tests.dask.execution.tasks import cluster

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually

#: Names of the threads that have reported a task, and how often
tellers: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Rust take over soon after a read, and record which threads report tasks.

    A thread that waits reports four ended tasks, not only sixteen: the event loop is there after 10
    ms, and in a test, whose client and scheduler share its processor, that may be fewer tasks.
    """
    monkeypatch.setattr(keeper_module, "_REST_S", 0.01)
    monkeypatch.setattr(keeper_module, "_REST_MAX_S", 0.01)
    monkeypatch.setattr(early_reader, "_TOLD_EACH", 4)
    tellers.clear()
    own = ThreadEvents._ended

    def noting(self: ThreadEvents, message: dict[str, Any], told: Any, gone: Any) -> bool:
        is_done = own(self, message, told, gone)
        tellers[threading.current_thread().name] += is_done
        return is_done

    monkeypatch.setattr(ThreadEvents, "_ended", noting)
    activation.install()


def of_pool() -> int:
    """Count what threads of pools have told."""
    return sum(count for name, count in tellers.items() if "Dask-Default-Threads" in name)


def chain(client: Client, count: int) -> Any:
    """Submit tasks, each of which waits for the one before it."""
    future: Any = client.submit(inc, 0, pure=False)
    for _ in range(count - 1):
        future = client.submit(inc, future, pure=False)
    return future


async def until_told(client: Client, count: int = 100) -> None:
    """Run chains until threads of a pool have reported so many tasks."""
    for _ in range(100):
        assert await chain(client, 60) == 60
        if of_pool() >= count:
            return
    pytest.fail(f"threads have reported {of_pool()} of 6000 tasks")


def executed(worker: Worker) -> dict[str, float]:
    """Add up the metrics of a worker's executed tasks, by what was measured."""
    found: dict[str, float] = {}
    totals: dict[Any, float] = dict(worker.digests_total)
    for (context, *rest), value in totals.items():
        if context == "execute":
            found[rest[2]] = found.get(rest[2], 0.0) + value
    return found


@pytest.mark.parametrize("memory_limit", [0, "10 GB"], ids=["dict", "may-spill"])
def test_all_is_as_if_the_event_loop_had_reported(
    memory_limit: Any, eventually: Eventually
) -> None:
    @cluster(1, timeout=300, worker_kwargs={"memory_limit": memory_limit})
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        watch_nothing(worker)
        await in_rust(client, worker)
        await until_told(client)
        await eventually(lambda: not worker.data)
        # Each release is reported once.
        await eventually(lambda: not scheduler.tasks)
        before, count = executed(worker), worker.state.executed_count
        reads = _reads(worker)
        assert await chain(client, 200) == 200
        assert worker.state.executed_count == count + 200
        await asyncio.sleep(0.05)
        after = executed(worker)
        assert {"thread-cpu", "thread-noncpu", "executor", "other"} <= after.keys()
        for name, seconds in after.items():
            assert seconds >= before[name]
        if memory_limit:
            assert _reads(worker) == reads + 199
            assert after["memory-read"] > before["memory-read"]
        await eventually(lambda: not worker.data)
        assert not worker.active_keys
        worker.state.validate_state()

    run()


def _reads(worker: Worker) -> float:
    counts: Any = getattr(worker.data, "cumulative_metrics", {})
    return float(counts.get(("memory-read", "count"), 0.0))


def is_in_memory(worker: Worker, key: Any) -> bool:
    task = worker.state.tasks.get(key)
    return task is not None and task.state == "memory"


def test_a_read_finds_all_ended_tasks(eventually: Eventually) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        watch_nothing(worker)
        await in_rust(client, worker)
        at_once = 0
        for number in range(200):
            future = client.submit(inc, number, pure=False)
            assert await future == number + 1
            assert state_owner_of(worker).core is not None
            # The event loop handled nothing for it. A thread may look for messages just then.
            at_once += future.key in worker.state.tasks
            await eventually(partial(is_in_memory, worker, future.key))
        assert at_once > 150
        assert of_pool() + tellers["MainThread"] > 100

    run()


class Looks:
    """Looks at a worker when it goes."""

    #: The worker, and how many tasks it had each time
    worker: Any = None
    seen: ClassVar[list[int]] = []

    def __sizeof__(self) -> int:
        return 100

    def __del__(self) -> None:
        if self.worker is not None:
            self.seen.append(len(self.worker.state.tasks))


def make(_: Any) -> list[Looks]:
    # Of a class that threads can report
    return [Looks()]


def test_released_results_may_read_the_worker(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        watch_nothing(worker)
        await in_rust(client, worker)
        await until_told(client, 20)
        monkeypatch.setattr(Looks, "worker", worker)
        for _ in range(20):
            future: Any = client.submit(make, 0, pure=False)
            for _ in range(19):
                future = client.submit(make, future, pure=False)
            await wait(future)
            del future
        await eventually(lambda: len(Looks.seen) >= 400)
        await eventually(lambda: not worker.data)
        monkeypatch.setattr(Looks, "worker", None)
        worker.state.validate_state()

    run()


class Waits:
    """Waits for an event loop when it goes, in a thread of a pool."""

    event_loop: asyncio.AbstractEventLoop | None = None
    #: Whether the event loop did something meanwhile
    seen: ClassVar[list[bool]] = []

    def __sizeof__(self) -> int:
        return 100

    def __del__(self) -> None:
        event_loop = self.event_loop
        if event_loop is not None and "Dask-Default-Threads" in threading.current_thread().name:
            is_called = threading.Event()
            event_loop.call_soon_threadsafe(is_called.set)
            self.seen.append(is_called.wait(10))
            if not self.seen[-1]:
                type(self).event_loop = None


def make_waiting(_: Any) -> list[Waits]:
    return [Waits()]


def test_released_results_may_wait_for_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        watch_nothing(worker)
        await in_rust(client, worker)
        monkeypatch.setattr(Waits, "event_loop", asyncio.get_running_loop())
        for _ in range(100):
            future: Any = client.submit(make_waiting, 0, pure=False)
            for _ in range(59):
                future = client.submit(make_waiting, future, pure=False)
            await wait(future)
            del future
            if len(Waits.seen) >= 100 or not all(Waits.seen):
                break
        await eventually(lambda: not worker.data)
        monkeypatch.setattr(Waits, "event_loop", None)
        assert len(Waits.seen) >= 100
        assert all(Waits.seen)

    Waits.seen.clear()
    run()


class Adds(WorkerPlugin):
    """Another plugin is added while a thread looks at this one."""

    plugins: ClassVar[dict[str, Any]] = {}

    @property
    def transition(self) -> Any:
        self.plugins[f"plugin-{len(self.plugins)}"] = WorkerPlugin()
        return None


def test_a_plugin_comes_while_a_thread_looks_at_those_there_are() -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        Adds.plugins = worker.plugins
        worker.plugins["adds"] = Adds()
        count = len(worker.plugins)
        assert no_plugin_has_transition(worker.state)
        assert len(worker.plugins) == count + 1

    run()


class Begun:
    """A task that a thread has begun."""

    is_announced = False


def test_a_task_that_begins_while_a_thread_reports_others_is_handled_first() -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        watch_nothing(worker)
        await in_rust(client, worker)
        line: Any = local_queue_of(worker)
        line.handle()
        catch_up, found = line.early.catch_up, []

        def meanwhile() -> bool:
            # A thread's step before the event loop looks, and after that
            line.forget("told")
            is_done: bool = catch_up()
            found.append(is_done)
            if len(found) == 1:
                line.add_early("begun", Begun())
            return is_done

        line.add_early("told", Begun())
        line.early.catch_up = meanwhile
        line.handle()
        line.early.catch_up = catch_up
        line.forget("begun")
        # The second time nothing announces it, as no message has.
        assert found == [True, False]

    run()


def stays_as_it_is(dask_worker: Worker) -> bool:
    before = list(dask_worker.data)
    # Threads go on meanwhile.
    time.sleep(0.05)
    return list(dask_worker.data) == before


def work(value: int) -> int:
    return sum(range(3000)) + value


def test_threads_leave_data_alone_while_a_client_runs_a_function(eventually: Eventually) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        watch_nothing(worker)
        for _ in range(5):
            await in_rust(client, worker)
            futures = client.map(work, range(500), pure=False)
            await eventually(lambda: worker.data)
            assert await client.run(stays_as_it_is) == {worker.address: True}
            await wait(futures)
            del futures
        line: Any = local_queue_of(worker)
        assert line.holds == 0

    run()


def test_an_event_that_the_state_machine_refuses_ends_the_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    fails = threading.Event()
    own = StateOwner.free

    def free(self: StateOwner, *args: Any, **kwargs: Any) -> Any:
        if fails.is_set() and "Dask-Default-Threads" in threading.current_thread().name:
            raise RuntimeError("refused by this test")
        return own(self, *args, **kwargs)

    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        watch_nothing(worker)
        await in_rust(client, worker)
        await until_told(client)
        fails.set()
        futures = [chain(client, 60) for _ in range(10)]
        # As where a handler of Dask's raises
        await eventually(lambda: worker.status in (Status.closed, Status.failed))
        assert futures

    monkeypatch.setattr(StateOwner, "free", free)
    with caplog.at_level(logging.ERROR, logger="distributed.worker"):
        run()
    assert "refused by this test" in caplog.text
