"""Threads of workers that begin with tasks before the event loop handles the messages."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from dask.sizeof import sizeof
from distributed import (
    Client,
    Nanny,
    Scheduler,
    Worker,
    WorkerPlugin,
    get_worker,
    rejoin,
    secede,
    worker_client,
)
from distributed.core import Status

from backhaul.dask import resources
from tests.dask.conftest import FORKED
from tests.dask.execution.early import (
    begun,
    chain,
    counted,
    fail,
    gates,
    inc,
    told,
    until_ahead,
    watch_nothing,
    whole,
)
from tests.dask.execution.tasks import cluster

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually

pytestmark = pytest.mark.usefixtures("watched")


@pytest.mark.parametrize("validates", [True, False])
def test_a_chain_is_run_ahead_and_the_state_machine_goes_through_it(validates: bool) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        if not validates:
            watch_nothing(worker)
        for _ in range(5):
            assert await chain(client, 40) == 40
        assert len(told) > 50
        assert Counter(begun).most_common(1)[0][1] == 1
        assert worker.state.executed_count == 200
        # The story of one: as of any task
        key = told[-1]
        steps = [(each[1], each[2]) for each in worker.state.story(key) if each[0] == key]
        assert ("ready", "executing") in steps
        assert ("executing", "memory") in steps
        events = [each for each in worker.state.stimulus_log if getattr(each, "key", None) == key]
        assert [type(each).__name__ for each in events][:2] == [
            "ComputeTaskEvent",
            "ExecuteSuccessEvent",
        ]
        assert bool(whole) is not validates
        assert not worker.active_keys
        assert not worker._async_instructions
        worker.state.validate_state()

    run()


def test_another_worker_gets_a_result_that_a_thread_has_reported() -> None:
    """The event loop catches up before it says that there is no such result."""

    # In processes of their own: one event loop for all has always caught up.
    @cluster(1, 1, Worker=Nanny, timeout=300, config=FORKED)
    async def run(client: Client, scheduler: Scheduler, a: Nanny, b: Nanny) -> None:
        here, there = a.worker_address, b.worker_address
        for address in (here, there):
            for number in range(5):
                await client.submit(inc, number, workers=[address], pure=False)
        for number in range(60):
            first = client.submit(inc, number, workers=[here], pure=False)
            second = client.submit(inc, first, workers=[there], pure=False)
            assert await second == number + 2

        def count(dask_worker: Worker) -> tuple[int, int]:
            log = [entry for entry in dask_worker.state.log if len(entry) > 2]
            told_ahead = sum(type(entry[-2]).__name__ == "SentStimulusId" for entry in log)
            return told_ahead, sum(entry[1] == "missing-dep" for entry in log)

        counted = await client.run(count)
        assert counted[here][0]
        assert not counted[there][1]

    run()


def test_reports_are_those_of_dask() -> None:
    """The messages of the same tasks, with and without."""
    found: dict[bool, list[dict[str, Any]]] = {}
    for is_on in (True, False):
        messages: list[dict[str, Any]] = []

        @cluster(
            1, config={"distributed.comm.backhaul.hot-path.worker-threads": is_on}, timeout=300
        )
        async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
            handle = scheduler.stream_handlers["task-finished"]

            def noting(**message: Any) -> Any:
                messages.append(dict(message))  # noqa: B023 - the cluster runs at once
                return handle(**message)

            scheduler.stream_handlers["task-finished"] = noting
            for number in range(60):
                future = client.submit(inc, number, key=f"inc-{number}")
                assert await future == number + 1
                ts = scheduler.tasks[f"inc-{number}"]
                assert (ts.nbytes, ts.type) == (sizeof(number + 1), "int")
                del future
            # Nothing is reported twice.
            keys = [each["key"] for each in messages]  # noqa: B023
            assert keys == [f"inc-{number}" for number in range(60)]

        run()
        found[is_on] = messages
    assert len(told) > 10
    changing = {"run_id", "stimulus_id", "thread", "startstops", "worker"}
    for ours, theirs in zip(found[True], found[False], strict=True):
        assert ours.keys() == theirs.keys()
        assert {k: v for k, v in ours.items() if k not in changing} == {
            k: v for k, v in theirs.items() if k not in changing
        }
        for message in (ours, theirs):
            assert message["stimulus_id"].startswith("task-finished-")
            # A result that takes more than 5 ms to be stored counts as written to disk.
            span, *stored = message["startstops"]
            assert span["action"] == "compute"
            assert all(each["action"] == "disk-write" for each in stored)
            assert span["start"] <= span["stop"]
            assert type(message["thread"]) is int


def test_a_task_that_asks_for_the_worker_is_executing(eventually: Eventually) -> None:
    def look() -> tuple[str, str]:
        worker = get_worker()
        (mine,) = worker.active_threads.values()
        return str(mine), worker.state.tasks[mine].state

    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        await until_ahead(client, eventually)
        looked: list[Any] = []
        for number in range(50):
            key, state = await client.submit(look, key=f"look-{number}")
            assert (key, state) == (f"look-{number}", "executing")
            looked.append(key)
            await chain(client, 3)
        assert set(looked) & set(begun)

    run()


def leave() -> int:
    secede()
    time.sleep(0.01)
    rejoin()
    return 1


def ask() -> int:
    with worker_client() as client:
        return int(client.submit(inc, 1, pure=False).result())


def test_tasks_that_leave_the_pool_ask_or_fail(eventually: Eventually) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        await until_ahead(client, eventually)
        for number in range(10):
            assert await client.submit(leave, key=f"leave-{number}") == 1
            assert await client.submit(ask, key=f"ask-{number}") == 2
            with pytest.raises(ValueError, match=str(number)):
                await client.submit(fail, number, key=f"fail-{number}")
            assert await chain(client, 3) == 3
        names = {str(key).split("-")[0] for key in begun}
        assert {"leave", "ask", "fail", "inc"} <= names
        assert not {key for key in told if str(key).startswith(("fail", "leave", "ask"))}

    run()


@resources(CPU=0)
def waits_for_others(ran: Any) -> str:
    counted[ran] += 1
    return threading.current_thread().name


def test_a_task_that_asks_for_no_thread_is_run_beside_the_others_once(
    eventually: Eventually,
) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        await until_ahead(client, eventually)
        for number in range(20):
            assert "Beside" in await client.submit(waits_for_others, number)
            await chain(client, 3)
        assert counted == dict.fromkeys(range(20), 1)

    run()


def hold(name: str) -> str:
    assert gates[name].wait(300)
    return name


def state_is(worker: Worker, key: str, state: str) -> bool:
    return getattr(worker.state.tasks.get(key), "state", None) == state


def runs(worker: Worker, key: str) -> bool:
    return key in worker.active_threads.values()


def lacks(worker: Worker, key: str) -> bool:
    return key not in worker.state.tasks


def has_heard_of(worker: Worker, scheduler: Scheduler, key: str) -> bool:
    """Tell whether a task has come, or waits at the scheduler."""
    queued = getattr(scheduler.tasks.get(key), "state", None) == "queued"
    return key in worker.state.tasks or queued


def test_a_long_task_holds_nothing_up(eventually: Eventually) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        for number in range(8):
            await chain(client, 3)
            name = f"hold-{number}"
            gates[name] = threading.Event()
            future = client.submit(hold, name, key=name)
            # The state machine handles it while it runs.
            await eventually(partial(state_is, worker, name, "executing"))
            # So does what comes now: another task waits for its turn.
            second = client.submit(inc, number, key=f"second-{number}")
            await eventually(partial(has_heard_of, worker, scheduler, f"second-{number}"))
            gates[name].set()
            assert await future == name
            assert await second == number + 1
        assert {key for key in begun if str(key).startswith("hold")}

    run()


def test_one_that_is_cancelled_while_it_runs_is_gone(eventually: Eventually) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        for number in range(8):
            await chain(client, 3)
            name = f"hold-{number}"
            gates[name] = threading.Event()
            future = client.submit(hold, name, key=name)
            await eventually(partial(runs, worker, name))
            await future.cancel()
            gates[name].set()
            await eventually(partial(lacks, worker, name))
            assert await chain(client, 3) == 3
        await eventually(lambda: not worker.state.executing)
        line = worker.executors["default"]._work_queue.local_queue  # type: ignore[attr-defined]
        assert not line.early_tasks
        assert {key for key in begun if str(key).startswith("hold")}

    run()


def test_a_worker_that_is_paused_begins_nothing(eventually: Eventually) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        # It would have the worker go on
        worker.periodic_callbacks["memory_monitor"].stop()
        await until_ahead(client, eventually)
        worker.status = Status.paused
        before = len(begun)
        futures = [client.submit(inc, number, pure=False) for number in range(3)]
        await asyncio.sleep(0.1)
        assert len(begun) == before
        worker.status = Status.running
        assert await client.gather(futures) == [1, 2, 3]

    run()


class Hears(WorkerPlugin):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        self.heard.append((key, finish))


def test_a_plugin_is_called_before_a_task_begins(eventually: Eventually) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        await until_ahead(client, eventually)
        plugin = Hears()
        await worker.plugin_add(plugin, name="hears")
        await chain(client, 1)
        before = len(begun)
        assert await chain(client, 30) == 30
        assert len(begun) == before
        assert any(finish == "executing" for _, finish in plugin.heard)

    run()


def test_switched_off_nothing_is_begun_ahead() -> None:
    @cluster(1, config={"distributed.comm.backhaul.hot-path.worker-threads": False}, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        assert await chain(client, 100) == 100
        assert not begun

    run()


def test_a_worker_closes_at_once_while_its_threads_wait(eventually: Eventually) -> None:
    @cluster(2, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        await until_ahead(client, eventually)
        start_s = time.monotonic()
        await worker.close()
        assert time.monotonic() - start_s < 10
        pool = worker.executors["default"]
        await eventually(lambda: not any(t.is_alive() for t in pool._threads))  # type: ignore[attr-defined]

    run()
