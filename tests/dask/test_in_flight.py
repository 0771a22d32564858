"""Work in hand on real schedulers, workers and streams, with upstream's own validation."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from distributed import Client, Nanny, Scheduler, SchedulerPlugin, Worker, wait
from distributed.core import Status
from distributed.utils_test import gen_cluster

import dask
from backhaul.dask.compat import activation, function_origin, patching
from backhaul.dask.config.settings import work_in_hand_limits
from backhaul.dask.scheduler import window
from backhaul.dask.scheduler.window import install, uninstall
from backhaul.dask.scheduler.window_recall import StealBack
from tests.dask.conftest import FORKED

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually

ROOT = "distributed.comm.backhaul.work-in-hand"
#: Only the number is limited, so nothing depends on how fast this machine is.
BY_NUMBER = {
    f"{ROOT}.seconds": "1h",
    f"{ROOT}.tasks-per-thread": 10,
    "distributed.scheduler.work-stealing": False,
}
ONE: list[Any] = [("127.0.0.1", 1)]
TWO: list[Any] = [("127.0.0.1", 1), ("127.0.0.1", 2)]
#: Workers whose outputs count against ``memory-budget``
UNLIMITED: dict[str, Any] = {"memory_limit": 0}
#: Upstream's limits for workers of one and two threads
FLOOR = {1: 2, 2: 3}

#: Workers of `gen_cluster` live in this process: tasks wait here, and leave their names.
gate = threading.Event()
started: Counter[int] = Counter()


@pytest.fixture(autouse=True)
def fresh_gate() -> Iterator[None]:
    gate.clear()
    started.clear()
    yield
    gate.set()


def quick(number: int) -> int:
    started[number] += 1
    return number


def gated(number: int) -> int:
    started[number] += 1
    assert gate.wait(300)
    return number


def gated_from(number: int, first: int) -> int:
    return quick(number) if number < first else gated(number)


def heavy_at(number: int, heavy: int) -> bytes | int:
    """Tiny before one number, 1 MB at it, and waiting after it."""
    if number == heavy:
        started[number] += 1
        return bytes(10**6)
    return gated_from(number, heavy)


class InHand(SchedulerPlugin):
    """Most tasks that each worker had in hand at once."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.tasks_max: Counter[str] = Counter()
        scheduler.add_plugin(self, name="in-hand")

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        if finish == "processing":
            for address, ws in self.scheduler.workers.items():
                self.tasks_max[address] = max(self.tasks_max[address], len(ws.processing))


def in_hand(scheduler: Scheduler, worker: Worker) -> int:
    return len(scheduler.workers[worker.address].processing)


@gen_cluster(client=True, nthreads=TWO, config=BY_NUMBER)
async def test_short_tasks_fill_the_hand(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker
) -> None:
    assert scheduler.validate
    assert install(scheduler)
    seen = InHand(scheduler)
    futures = client.map(quick, range(1000))
    assert await client.gather(futures) == list(range(1000))
    assert seen.tasks_max == {a.address: 10, b.address: 20}
    assert set(started.values()) == {1}
    scheduler.validate_state()


@gen_cluster(client=True, nthreads=TWO, config={**BY_NUMBER, f"{ROOT}.seconds": 0})
async def test_long_tasks_keep_upstreams_limit(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker
) -> None:
    assert install(scheduler)
    seen = InHand(scheduler)
    await wait(client.map(quick, range(200)))
    assert seen.tasks_max == {a.address: FLOOR[1], b.address: FLOOR[2]}


@gen_cluster(
    client=True,
    nthreads=TWO,
    worker_kwargs=UNLIMITED,
    config={**BY_NUMBER, f"{ROOT}.memory-budget": "1MiB"},
)
async def test_heavy_tasks_keep_upstreams_limit(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker
) -> None:
    assert install(scheduler)
    seen = InHand(scheduler)
    await wait(client.map(bytes, [500_000 + n for n in range(100)]))
    assert seen.tasks_max == {a.address: FLOOR[1], b.address: FLOOR[2]}


@gen_cluster(client=True, nthreads=TWO, config=BY_NUMBER)
async def test_unknown_tasks_keep_upstreams_limit(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker, eventually: Eventually
) -> None:
    assert install(scheduler)
    futures = client.map(gated, range(100))
    await eventually(lambda: len(started) == 3)
    assert (in_hand(scheduler, a), in_hand(scheduler, b)) == (FLOOR[1], FLOOR[2])
    assert len(scheduler.queued) == 95
    gate.set()
    await wait(futures)


@gen_cluster(client=True, nthreads=ONE, config=BY_NUMBER)
async def test_another_unknown_task_in_hand_keeps_upstreams_limit(
    client: Client, scheduler: Scheduler, a: Worker, eventually: Eventually
) -> None:
    assert install(scheduler)
    await wait(client.map(quick, range(100)))
    # Not of a large group, so it comes past the queue; it never finishes before the others.
    other = client.submit(gated, 1000, priority=-1)
    await eventually(lambda: a.state.executing_count == 1)
    seen = InHand(scheduler)
    futures = client.map(quick, range(100, 200))
    gate.set()
    await wait([*futures, other])
    assert seen.tasks_max[a.address] <= 10


@gen_cluster(
    client=True,
    nthreads=ONE,
    worker_kwargs=UNLIMITED,
    config={**BY_NUMBER, f"{ROOT}.memory-budget": "2MB"},
)
async def test_tasks_go_back_to_the_queue_when_they_turn_heavy(
    client: Client, scheduler: Scheduler, a: Worker, eventually: Eventually
) -> None:
    assert install(scheduler)
    futures = client.map(heavy_at, range(100), heavy=40)
    # One waits in the worker's thread, one in its queue; the others have been given back.
    await eventually(lambda: started[41] and in_hand(scheduler, a) == FLOOR[1])
    assert len(scheduler.queued) == 57
    scheduler.validate_state()
    gate.set()
    results = await client.gather(futures)
    assert [result if isinstance(result, int) else 40 for result in results] == list(range(100))
    assert set(started.values()) == {1}
    await eventually(lambda: not steal_back_of(scheduler).asked)


@gen_cluster(client=True, nthreads=ONE, config=BY_NUMBER)
async def test_tasks_go_back_to_the_queue_when_they_turn_slow(
    client: Client, scheduler: Scheduler, a: Worker, eventually: Eventually
) -> None:
    assert install(scheduler)
    handle = scheduler.stream_handlers["task-finished"]
    futures = client.map(gated_from, range(100), first=41)
    slow = futures[40].key

    def claim_two_hours(key: Any, startstops: Any, **message: Any) -> None:
        if key == slow:
            startstops = [{"action": "compute", "start": 0.0, "stop": 7200.0}]
        handle(key=key, startstops=startstops, **message)

    scheduler.stream_handlers["task-finished"] = claim_two_hours
    await eventually(lambda: started[41] and in_hand(scheduler, a) == FLOOR[1])
    assert len(scheduler.queued) == 57
    gate.set()
    assert await client.gather(futures) == list(range(100))
    assert set(started.values()) == {1}


# Nothing watches their memory, so nothing resumes the one that is paused.
@gen_cluster(client=True, nthreads=TWO, worker_kwargs=UNLIMITED, config=BY_NUMBER)
async def test_paused_workers_are_sent_nothing(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker, eventually: Eventually
) -> None:
    assert install(scheduler)
    await wait(client.map(quick, range(100)))
    b.status = Status.paused
    await eventually(lambda: scheduler.workers[b.address].status is Status.paused)
    seen = InHand(scheduler)
    await wait(client.map(quick, range(100, 300)))
    assert seen.tasks_max == {a.address: 10, b.address: 0}
    b.status = Status.running
    await eventually(lambda: scheduler.workers[b.address].status is Status.running)
    await wait(client.map(quick, range(300, 600)))
    assert seen.tasks_max[b.address] == 20


@gen_cluster(client=True, nthreads=ONE, config=BY_NUMBER)
async def test_a_more_urgent_task_overtakes_the_queue(
    client: Client, scheduler: Scheduler, a: Worker, eventually: Eventually
) -> None:
    assert install(scheduler)
    await wait(client.map(gated_from, range(50), first=50))
    late = client.map(gated_from, range(100, 200), first=100)
    await eventually(lambda: started[100])
    urgent = client.map(quick, range(200, 210), priority=1)
    await eventually(lambda: urgent[-1].key in scheduler.tasks)
    gate.set()
    await wait([*urgent, *late])
    order = list(started)
    # At most what was in hand came first.
    assert order.index(209) <= order.index(100) + 10 + len(urgent)


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1), ("127.0.0.1", 2, {"resources": {"GPU": 1}})],
    config=BY_NUMBER,
)
async def test_restrictions_and_resources_hold(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker
) -> None:
    assert install(scheduler)
    free = client.map(quick, range(200))
    bound = client.map(quick, range(200, 300), workers=[a.address], key=list(map(str, range(100))))
    with_gpu = client.map(
        quick, range(300, 400), resources={"GPU": 1}, key=list(map(str, range(100, 200)))
    )
    await wait([*free, *bound, *with_gpu])
    who_has = await client.who_has()
    assert all(set(who_has[future.key]) == {a.address} for future in bound)
    assert all(set(who_has[future.key]) == {b.address} for future in with_gpu)
    scheduler.validate_state()


@gen_cluster(
    client=True,
    nthreads=ONE,
    config={**BY_NUMBER, "distributed.scheduler.work-stealing": True},
)
async def test_a_new_worker_steals_from_the_hand(
    client: Client, scheduler: Scheduler, a: Worker, eventually: Eventually
) -> None:
    assert install(scheduler)
    # Nothing is left in the queue for the new worker.
    futures = client.map(gated_from, range(60), first=50)
    await eventually(lambda: started[50])
    assert not scheduler.queued or in_hand(scheduler, a) > FLOOR[1]
    scheduler.task_prefixes["gated_from"].duration_average = 1.0
    async with Worker(scheduler.address, nthreads=1, validate=True) as b:
        await eventually(lambda: in_hand(scheduler, b) > 0)
        scheduler.validate_state()
        gate.set()
        assert await client.gather(futures) == list(range(60))
        assert set(started.values()) == {1}


@gen_cluster(client=True, nthreads=ONE, Worker=Nanny, config=BY_NUMBER | FORKED)
async def test_a_worker_that_dies_loses_no_task(
    client: Client, scheduler: Scheduler, a: Nanny, eventually: Eventually
) -> None:
    assert install(scheduler)
    seen = InHand(scheduler)
    # The other one is in this process, and quicker to start than that of a nanny.
    async with Worker(scheduler.address, nthreads=1):
        futures = client.map(int, range(3000))
        await eventually(lambda: seen.tasks_max[a.worker_address] == 10)
        await a.kill()
        assert await client.gather(futures) == list(range(3000))
        scheduler.validate_state()


def steal_back_of(scheduler: Scheduler) -> StealBack:
    installed = window.installed(scheduler)
    assert installed is not None
    return installed.steal_back


@gen_cluster(client=True, nthreads=ONE, config=BY_NUMBER)
async def test_a_worker_that_is_lost_is_asked_for_nothing_more(
    client: Client, scheduler: Scheduler, a: Worker, eventually: Eventually
) -> None:
    assert install(scheduler)
    steal_back = steal_back_of(scheduler)
    plugins = dict(scheduler.plugins)
    futures = client.map(gated_from, range(100), first=50)
    await eventually(lambda: started[50])
    assert steal_back.ask(scheduler.workers[a.address], "gated_from", 3) == 3
    assert len(steal_back.asked) == 3
    assert len(scheduler.plugins) == len(plugins) + 1
    # Before it can answer
    await scheduler.remove_worker(a.address, stimulus_id="lost")
    assert not steal_back.asked
    assert scheduler.plugins == plugins
    gate.set()
    async with Worker(scheduler.address, nthreads=1):
        assert await client.gather(futures) == list(range(100))
        scheduler.validate_state()


@gen_cluster(client=True, nthreads=ONE, config=BY_NUMBER)
async def test_uninstalling_waits_for_answers(
    client: Client, scheduler: Scheduler, a: Worker, eventually: Eventually
) -> None:
    handlers = dict(scheduler.stream_handlers)
    plugins = dict(scheduler.plugins)
    assert install(scheduler)
    steal_back = steal_back_of(scheduler)
    futures = client.map(gated_from, range(100), first=50)
    await eventually(lambda: started[50])
    assert steal_back.ask(scheduler.workers[a.address], "gated_from", 3) == 3
    uninstall(scheduler)
    assert scheduler.stream_handlers["steal-response"] == steal_back.handle_response
    await eventually(lambda: not steal_back.asked)
    assert scheduler.stream_handlers == handlers
    assert scheduler.plugins == plugins
    gate.set()
    assert await client.gather(futures) == list(range(100))


@gen_cluster(client=True, nthreads=TWO, config=BY_NUMBER)
async def test_tasks_that_fail_free_their_place(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker
) -> None:
    assert install(scheduler)

    def fail_now_and_then(number: int) -> float:
        return 1 / (number % 7)

    futures = client.map(fail_now_and_then, range(300))
    await wait(futures)
    assert Counter(future.status for future in futures) == {"finished": 257, "error": 43}
    scheduler.validate_state()


@gen_cluster(client=True, nthreads=ONE, config=BY_NUMBER)
async def test_uninstalling_leaves_upstream_as_it_was(
    client: Client, scheduler: Scheduler, a: Worker
) -> None:
    handlers = dict(scheduler.stream_handlers)
    names = set(vars(scheduler))
    assert install(scheduler)
    assert install(scheduler)
    uninstall(scheduler)
    uninstall(scheduler)
    assert scheduler.stream_handlers == handlers
    assert set(vars(scheduler)) == names
    seen = InHand(scheduler)
    await wait(client.map(quick, range(100)))
    assert seen.tasks_max[a.address] == FLOOR[1]


@pytest.mark.parametrize("saturation", ["inf", 20, 1.0])
def test_a_saturation_that_a_user_chose_stays_in_force(saturation: object) -> None:
    @gen_cluster(config={"distributed.scheduler.worker-saturation": saturation})
    async def check(scheduler: Scheduler, a: Worker, b: Worker) -> None:
        handlers = dict(scheduler.stream_handlers)
        assert not install(scheduler)
        assert scheduler.stream_handlers == handlers

    check()


@gen_cluster(config={f"{ROOT}.enabled": False})
async def test_it_can_be_turned_off(scheduler: Scheduler, a: Worker, b: Worker) -> None:
    assert not install(scheduler)


@gen_cluster()
async def test_an_unknown_scheduler_is_left_alone_with_one_warning(
    scheduler: Scheduler,
    a: Worker,
    b: Worker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    digest = patching.source_digest
    unknown = function_origin.source_of("WorkStealing.move_task_confirm")
    monkeypatch.setattr(
        patching,
        "source_digest",
        lambda source: "0" if source is unknown else digest(source),
    )
    patching._named_in_log.clear()
    handlers = dict(scheduler.stream_handlers)
    assert not install(scheduler)
    assert not install(scheduler)
    assert scheduler.stream_handlers == handlers
    assert [record.getMessage() for record in caplog.records if record.name.startswith("back")] == [
        "Backhaul leaves Scheduler.stream_handlers[task-finished] and 2 more as it is (workers are "
        "not kept filled): WorkStealing.move_task_confirm differs from what was read of "
        f"distributed {activation.SUPPORTED}"
    ]


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("enabled", "perhaps", "true or false"),
        ("seconds", "soon", "a time like"),
        ("seconds", -1, "a time like"),
        ("tasks-per-thread", "many", "a whole number"),
        ("memory-share", 1.5, "a number from 0 to 1"),
        ("memory-budget", "much", "a size like"),
    ],
)
def test_a_value_that_cannot_be_understood_is_named(key: str, value: object, allowed: str) -> None:
    with (
        dask.config.set({f"{ROOT}.{key}": value}),
        pytest.raises(ValueError, match=rf"work-in-hand\.{key} must be {allowed}.*{value!r}"),
    ):
        work_in_hand_limits()


def test_the_defaults() -> None:
    limits = work_in_hand_limits()
    assert limits is not None
    assert limits.seconds == 0.02
    assert limits.tasks_per_thread == 64
    assert limits.memory_share == 0.001
    assert limits.memory_budget_bytes == 4 * 2**20
