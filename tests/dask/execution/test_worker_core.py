"""A worker whose state is in Rust until a program reads it."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from operator import add
from typing import TYPE_CHECKING, Any

import pytest
from dask._task_spec import Task
from dask.sizeof import sizeof
from distributed import Client, Event, Scheduler, Status, Worker, WorkerPlugin, get_worker

from backhaul.dask.compat import activation, function_origin, patching
from backhaul.dask.compat.instance_patches import EVICTION
from backhaul.dask.compat.names import ComputeTaskEvent, FreeKeysEvent, WorkerStateMachine
from backhaul.dask.worker import lazy_collections
from backhaul.dask.worker.core import ownership as keeper_module
from backhaul.dask.worker.core.ownership import StateOwner
from tests.dask.execution.in_rust import in_rust, state_owner_of, watch_nothing
from tests.dask.execution.tasks import cluster

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Rust take over soon after a read."""
    monkeypatch.setattr(keeper_module, "_REST_S", 0.01)
    monkeypatch.setattr(keeper_module, "_REST_MAX_S", 0.01)
    activation.install()


def inc(value: int) -> int:
    return value + 1


Run = Callable[[Client, Worker, Worker], Awaitable[None]]


def quiet(run: Run) -> Callable[[], None]:
    """Make a test of two workers whose states are in Rust."""

    @cluster(1, 1, timeout=300)
    async def test(client: Client, scheduler: Scheduler, a: Worker, b: Worker) -> None:
        for worker in (a, b):
            watch_nothing(worker)
        await in_rust(client, a, b)
        await run(client, a, b)
        for worker in (a, b):
            worker.state.validate_state()

    made: Callable[[], None] = test
    return made


def test_a_refused_patch_that_the_core_does_not_call_leaves_the_core_on(
    plain_dask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = patching.source_digest
    unknown = function_origin.source_of("InsertionSortedSet")
    monkeypatch.setattr(
        patching, "source_digest", lambda source: "0" if source is unknown else digest(source)
    )

    async def run(client: Client, a: Worker, b: Worker) -> None:
        futures = client.map(inc, range(20))
        assert await client.submit(sum, futures) == 210
        del futures
        await in_rust(client, a, b)

    quiet(run)()
    assert EVICTION.refusal() is not None


def test_reads_without_a_transfer_leave_the_state_in_rust() -> None:
    async def run(client: Client, a: Worker, b: Worker) -> None:
        futures = client.map(inc, range(20), workers=[a.address])
        await client.gather(futures)
        state: Any = a.state
        key = futures[3].key
        assert state.executing_count == state.in_flight_tasks_count == 0
        assert state.nbytes == sum(state.tasks[each.key].nbytes for each in futures)
        assert len(state.tasks) == 20
        assert state.task_counter.current_count(by_prefix=False) == {"memory": 20}
        seconds = state.task_counter.cumulative_elapsed(by_prefix=False)
        assert seconds["executing"] >= 0 < seconds["memory"]
        assert (state.tasks[key].state, state.tasks[key].type) == ("memory", int)
        assert repr(state.tasks[key]) == f"<TaskState {key!r} memory>"
        assert "nobody" not in state.tasks
        await a.heartbeat()
        assert await client.gather(futures) == list(range(1, 21))
        assert state_owner_of(a).core is not None

    quiet(run)()


@pytest.mark.parametrize(
    "look",
    [
        lambda state: list(state.tasks),
        lambda state: state.story("nobody"),
        lambda state: list(state.log),
        lambda state: len(state.stimulus_log),
        lambda state: state.ready,
        lambda state: state.has_what,
        lambda state: state.validate_state(),
        lambda state: state._to_dict(),
        lambda state: setattr(state, "nthreads", state.nthreads),
        lambda state: next(iter(state.tasks.values())).who_has,
    ],
)
def test_a_read_finds_the_whole_state(look: Callable[[Any], Any]) -> None:
    async def run(client: Client, a: Worker, b: Worker) -> None:
        futures = client.map(inc, range(10), workers=[a.address])
        total = client.submit(sum, futures, workers=[a.address])
        assert await total == 55
        assert state_owner_of(a).core is not None
        view: Any = a.state.tasks[total.key]
        assert {each.key for each in view.dependencies} == {each.key for each in futures}
        look(a.state)
        assert state_owner_of(a).core is None
        task = a.state.tasks[total.key]
        assert {each.key for each in task.dependencies} == {each.key for each in futures}
        assert view is task
        assert type(task.priority[0]) is int
        steps = [each[2] for each in a.state.story(total.key) if each[0] == total.key]
        assert steps[-3:] == ["executing", "memory", "memory"] or "memory" in steps
        kinds = [type(each).__name__ for each in a.state.stimulus_story(total.key)]
        assert kinds[:2] == ["ComputeTaskEvent", "ExecuteSuccessEvent"]
        asked: Any = a.state.stimulus_story(total.key)[0]
        assert asked.run_spec is None
        await in_rust(client, a)
        assert await client.submit(add, total, 1, workers=[a.address]) == 56

    quiet(run)()


def test_kept_tasks_and_logs_show_later_entries() -> None:
    async def run(client: Client, a: Worker, b: Worker) -> None:
        tasks, log, stimulus_log = a.state.tasks, a.state.log, a.state.stimulus_log
        for kept in (tasks, log, stimulus_log):
            await in_rust(client, a)
            future = client.submit(inc, 1, pure=False, workers=[a.address])
            await future
            assert state_owner_of(a).core is not None
            if kept is stimulus_log:
                assert future.key in {getattr(each, "key", None) for each in kept}
            else:
                assert any(future.key in each for each in [list(kept), *kept])
            assert state_owner_of(a).core is None
        copied = pickle.loads(pickle.dumps(log))
        assert type(copied) is deque
        assert (list(copied), copied.maxlen) == (list(log), log.maxlen)

    quiet(run)()


def test_results_come_from_the_other_worker() -> None:
    async def run(client: Client, a: Worker, b: Worker) -> None:
        futures = client.map(inc, range(30), workers=[a.address])
        totals = [client.submit(sum, futures, workers=[b.address], pure=False) for _ in range(5)]
        assert await client.gather(totals) == [sum(range(1, 31))] * 5
        assert state_owner_of(a).core is not None
        assert state_owner_of(b).core is not None
        lines = [each for each in b.state.log if each[0] in ("receive-dep", "gather-dependencies")]
        assert [each[0] for each in lines][:2] == ["gather-dependencies", "receive-dep"]
        fetched = b.state.tasks[futures[0].key]
        assert fetched.who_has == {a.address}
        assert b.transfer_incoming_log[-1]["who"] == a.address

    quiet(run)()


def test_a_task_that_looks_at_its_worker_finds_itself() -> None:
    def look() -> Any:
        worker: Any = get_worker()
        return [(task.key, task.state) for task in worker.state.tasks.values()]

    async def run(client: Client, a: Worker, b: Worker) -> None:
        future = client.submit(look, workers=[a.address])
        assert (future.key, "executing") in await future
        assert state_owner_of(a).core is None

    quiet(run)()


def test_errors_cancellation_and_pause() -> None:
    def fail(number: int) -> None:
        raise ValueError(number)

    def wait(name: str) -> int:
        Event(name).wait()
        return 1

    async def run(client: Client, a: Worker, b: Worker) -> None:
        for number in range(5):
            with pytest.raises(ValueError, match=str(number)):
                await client.submit(fail, number, workers=[a.address])
        gate = Event("gate")
        held = client.submit(wait, "gate", workers=[a.address])
        behind = client.map(inc, range(10), workers=[a.address])
        while a.state.executing_count == 0:
            await asyncio.sleep(0.01)
        kept = behind[5:]
        await client.cancel(behind[:5])
        a.status = Status.paused
        await gate.set()
        assert await held == 1
        a.status = Status.running
        assert await client.gather(kept) == list(range(6, 11))
        assert state_owner_of(a).core is not None

    quiet(run)()


def test_a_plugin_hears_of_what_comes_after_it() -> None:
    class Hears(WorkerPlugin):
        def __init__(self) -> None:
            self.heard: set[Any] = set()

        def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
            self.heard.add((key, finish))

    async def run(client: Client, a: Worker, b: Worker) -> None:
        plugin = Hears()
        await a.plugin_add(plugin=plugin, name="hears")
        future = client.submit(inc, 1, workers=[a.address])
        assert await future == 2
        assert {(future.key, "executing"), (future.key, "memory")} <= plugin.heard
        assert state_owner_of(a).core is None

    quiet(run)()


def test_tasks_that_ask_for_more_than_a_thread_are_pythons() -> None:
    class Counts:
        def __init__(self) -> None:
            self.count = 0

        def more(self) -> int:
            self.count += 1
            return self.count

    @cluster(1, timeout=300, worker_kwargs={"resources": {"R": 1}})
    async def run(client: Client, scheduler: Scheduler, a: Worker) -> None:
        watch_nothing(a)
        await in_rust(client, a)
        assert await client.submit(inc, 1, resources={"R": 1}) == 2
        assert state_owner_of(a).core is None
        await in_rust(client, a)
        counts: Any = await client.submit(Counts, actor=True)
        assert await counts.more() == 1
        assert state_owner_of(a).core is None

    run()


def test_a_worker_with_thousands_of_results_is_rusts_again_after_a_look() -> None:
    async def run(client: Client, a: Worker, b: Worker) -> None:
        futures = client.map(inc, range(2000), workers=[a.address])
        assert await client.gather(futures) == list(range(1, 2001))
        # No thread of the worker gives the state back to Rust between the two.
        with state_owner_of(a).lock:
            assert len(list(a.state.tasks.values())) == 2000
            assert state_owner_of(a).core is None
        await in_rust(client, a)
        total = client.submit(sum, futures, workers=[a.address])
        assert await total == sum(range(1, 2001))
        assert state_owner_of(a).core is not None
        assert len(a.state.tasks) >= 2001

    quiet(run)()


def test_more_tasks_than_rust_keeps_are_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(client: Client, a: Worker, b: Worker) -> None:
        monkeypatch.setattr(keeper_module, "_TASKS_MAX", 50)
        futures = client.map(inc, range(80), workers=[a.address])
        assert await client.gather(futures) == list(range(1, 81))
        # A read makes the rest be reported; a thread may be at it.
        await asyncio.sleep(0.05)
        assert len(a.state.tasks) == 80
        assert state_owner_of(a).core is None

    quiet(run)()


def test_a_value_that_cannot_be_stored_is_an_error() -> None:
    class Refuses(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            if value == 2:
                raise TypeError("not this one")
            super().__setitem__(key, value)

    @cluster(1, timeout=300, worker_kwargs={"data": Refuses})
    async def run(client: Client, scheduler: Scheduler, a: Worker) -> None:
        watch_nothing(a)
        for _ in range(100):
            assert await client.submit(inc, 7, pure=False) == 8
            if state_owner_of(a).core is not None:
                break
        assert state_owner_of(a).core is not None
        for way in range(3):
            with pytest.raises(TypeError, match="not this one"):
                await client.submit(inc, 1, key=f"refused-{way}")
        assert await client.submit(inc, 2) == 3

    run()


class Looks:
    """A result that looks at the worker when it is dropped."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers

    def __del__(self) -> None:
        for worker in self.workers:
            seen.append(len(worker.state.log))


#: Results of the reads
seen: list[int] = []


def test_a_result_that_looks_when_it_is_dropped_sees_all() -> None:
    async def run(client: Client, a: Worker, b: Worker) -> None:
        seen.clear()
        future: Any = client.submit(inc, 1, workers=[a.address], key="looks")
        await future
        a.data["looks"] = Looks([a])
        kept = client.map(inc, range(5), workers=[a.address])
        await client.gather(kept)
        future.release()
        while "looks" in a.data or not seen:
            await asyncio.sleep(0.01)
        assert seen[0] > 20
        assert len(a.state.tasks) == 5
        assert await client.gather(kept) == list(range(1, 6))

    quiet(run)()


def test_another_thread_may_look_at_any_time() -> None:
    async def run(client: Client, a: Worker, b: Worker) -> None:
        ends = threading.Event()
        failed: list[BaseException] = []

        def look() -> None:
            while not ends.wait(0.003):
                try:
                    for worker in (a, b):
                        len(worker.state.log)
                        worker.state.ready  # noqa: B018
                except BaseException as error:
                    failed.append(error)
                    raise

        kept = client.map(inc, range(300), workers=[b.address])
        await client.gather(kept)
        thread = threading.Thread(target=look)
        thread.start()
        try:
            for number in range(60):
                inputs = client.map(inc, range(number, number + 8), workers=[a.address])
                totals = [client.submit(sum, inputs, pure=False, workers=[b.address])] * 3
                expected = sum(range(number + 1, number + 9))
                found = await asyncio.wait_for(client.gather(totals), 60)
                assert found == [expected] * 3
        finally:
            ends.set()
            await asyncio.to_thread(thread.join)
        assert not failed

    quiet(run)()


def test_a_view_is_the_task() -> None:
    async def run(client: Client, a: Worker, b: Worker) -> None:
        gate = Event("view-gate")
        held = client.submit(waiting, "view-gate", workers=[a.address])
        while a.state.executing_count == 0:
            await asyncio.sleep(0.01)
        state: Any = a.state
        assert state_owner_of(a).core is not None
        view = state.tasks[held.key]
        assert view.dependencies | {1} == {1}
        assert view in state.executing
        assert state_owner_of(a).core is None
        assert state.tasks[held.key] is view
        await gate.set()
        assert await held == 1
        await in_rust(client, a)
        assert state.tasks[held.key] is view
        assert view.state == "memory"
        assert pickle.loads(pickle.dumps(view)).key == held.key
        held.release()
        while held.key in state.tasks:
            await asyncio.sleep(0.01)
        assert view.state == "forgotten"

    quiet(run)()


def waiting(name: str) -> int:
    Event(name).wait()
    return 1


class Odd:
    """A result whose size is no integer."""

    def __sizeof__(self) -> int:
        return 10


@sizeof.register(Odd)  # type: ignore[untyped-decorator]
def _size_of_odd(_: Odd) -> float:
    return 100.5


def test_a_size_that_is_no_integer_is_pythons() -> None:
    # Of the scheduler's state, the same: tests/dask/scheduler_core
    config = {"distributed.comm.backhaul.hot-path.scheduler-core": False}

    @cluster(1, config=config, timeout=300)
    async def run(client: Client, scheduler: Scheduler, a: Worker) -> None:
        watch_nothing(a)
        await in_rust(client, a)
        odd = client.submit(Odd, pure=False)
        await asyncio.wait_for(odd, 60)
        assert a.state.tasks[odd.key].nbytes == 100.5
        assert await asyncio.wait_for(client.submit(inc, 1), 60) == 2
        assert state_owner_of(a).core is None

    run()


def test_nothing_is_left_behind(eventually: Eventually) -> None:
    async def run(client: Client, a: Worker, b: Worker) -> None:
        futures: Any = client.map(inc, range(200))
        total: Any = client.submit(sum, futures)
        assert await total == sum(range(1, 201))
        del futures, total
        await eventually(lambda: not a.data and not b.data)
        for worker in (a, b):
            assert state_owner_of(worker).core is not None
            assert len(worker.state.tasks) == 0
            assert not worker.state.tasks
            assert worker.state.nbytes == 0
            assert worker.state.task_counter.current_count() == {}
            assert not worker.threads

    quiet(run)()


#: Fields of the scheduler's message for a task that asks for a thread and no more
PLAIN: dict[str, Any] = {
    "run_id": 1,
    "who_has": {},
    "nbytes": {},
    "priority": (0,),
    "resource_restrictions": {},
    "actor": False,
    "annotations": {},
    "span_id": None,
}


def test_a_state_without_references_is_collected() -> None:
    state = WorkerStateMachine(address="tcp://10.0.0.1:1", validate=False)
    lazy_collections.install(state)
    state_owner = StateOwner(state, threading.RLock())
    assert state_owner.import_state()
    fields: dict[str, Any] = {
        "key": "x",
        "run_id": 1,
        "who_has": {},
        "nbytes": {},
        "priority": (0,),
    }
    plain: dict[str, Any] = {
        "resource_restrictions": {},
        "actor": False,
        "annotations": {},
        "span_id": None,
    }
    event = ComputeTaskEvent(**fields, **plain, run_spec=None, stimulus_id="s")
    assert state.handle_stimulus(event)
    # It refers to the state_owner, and that to what has it.
    view = state.tasks["x"]
    assert view.state == "executing"
    gone = weakref.ref(state_owner)
    del state, state_owner, view, event
    gc.collect()
    assert gone() is None


def test_numbers_that_rust_cannot_count_are_pythons() -> None:
    state = WorkerStateMachine(address="tcp://10.0.0.1:1", validate=False)
    lazy_collections.install(state)
    state_owner = StateOwner(state, threading.RLock())
    odds: list[dict[str, Any]] = [
        {"priority": (1 << 60,)},
        {"priority": (float("nan"),)},
        {"run_id": 1 << 70},
    ]
    for number, odd in enumerate(odds):
        assert state_owner.import_state()
        fields = {**PLAIN, **odd}
        event = ComputeTaskEvent(
            key=number,
            **fields,
            run_spec=Task(None, inc, 1),
            stimulus_id="s",
        )
        state.handle_stimulus(event)
        assert state_owner.core is None
        assert state.tasks[number].run_spec is event.run_spec
        state.handle_stimulus(FreeKeysEvent(keys=[number], stimulus_id="f"))
        state.tasks.clear()
        for name in ("executing", "long_running"):
            getattr(state, name).clear()
        state_owner._not_before_s = 0.0
