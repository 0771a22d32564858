"""Hot messages of a running scheduler on the engine's thread, and what else is on the streams."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from distributed import Client, Scheduler, Worker, secede, wait
from distributed.utils_test import gen_test, inc, slowinc

import backhaul
import dask
from backhaul._native import SchedulerCore, SchedulerStreams
from backhaul.dask.compat.names import Task, key_split, key_split_group
from backhaul.dask.config.settings import work_in_hand_limits
from backhaul.dask.scheduler.core import live_core
from backhaul.dask.scheduler.core.live_core import LiveCore
from backhaul.dask.scheduler.core.task_payloads import spec_payload
from backhaul.dask.scheduler.core.window import CoreWindow
from backhaul.dask.scheduler.window import InFlightWindow

SETTINGS = {
    "distributed.comm.backhaul.hot-path.scheduler-core": True,
    "distributed.comm.backhaul.hot-path.scheduler-engine": True,
    "distributed.scheduler.active-memory-manager.start": False,
}


@contextlib.asynccontextmanager
async def cluster(
    workers: int = 2, **settings: Any
) -> AsyncIterator[tuple[Client, Scheduler, LiveCore, list[Worker]]]:
    """Start one in this process whose hot messages the engine handles."""
    with dask.config.set({**SETTINGS, **settings}):
        async with (
            Scheduler(
                host="backhaul://127.0.0.1", dashboard=False, dashboard_address=":0", validate=True
            ) as s,
            contextlib.AsyncExitStack() as stack,
        ):
            started = [
                await stack.enter_async_context(Worker(s.address, nthreads=1, validate=True))
                for _ in range(workers)
            ]
            client = await stack.enter_async_context(Client(s.address, asynchronous=True))
            found = live_core.installed(s)
            assert found is not None
            yield client, s, found, started


def add(*numbers: int) -> int:
    return sum(numbers)


class Thing:
    """A result that is not plain."""


@gen_test()
async def test_hot_messages_are_handled_without_python() -> None:
    async with cluster() as (c, s, core, _):
        for _ in range(3):
            futures = c.map(inc, range(200), pure=False)
            assert await c.gather(futures) == list(range(1, 201))
            del futures
        while len(s.tasks):
            await asyncio.sleep(0.01)
        counts = core.engine_counts()
        # Each stream comes to Python with its first message, until that is handled: of two workers,
        # each of which may report 32 tasks together.
        assert counts["task-finished"] >= 3 * 200 - 100
        assert counts["client-releases-keys"] >= 1
        while core.engine_counts()["release-worker-data"] < 500:
            await asyncio.sleep(0.01)
        assert not core.escapes
        assert not core.specs


@gen_test()
async def test_keys_that_are_no_texts_are_handled_too() -> None:
    async with cluster() as (c, s, core, _):
        assert await c.submit(inc, 1) == 2
        before = core.engine_counts()["task-finished"]
        dsk: dict[Any, Any] = {("x", number, "y"): (inc, number) for number in range(90)}
        dsk[1000] = (sum, [("x", number, "y") for number in range(90)])
        assert await c.get(dsk, 1000, sync=False) == sum(range(1, 91))
        assert core.engine_counts()["task-finished"] >= before + 60
        assert not core.escapes
        while len(s.tasks):
            await asyncio.sleep(0.01)
        # Python learns of it later.
        while not core.texts.are_keys:
            await asyncio.sleep(0.01)


@gen_test()
async def test_tasks_of_a_group_that_is_known_are_submitted_past_python() -> None:
    async with cluster() as (c, s, core, _):
        first = c.submit(inc, 0, pure=False)
        assert await first == 1
        before = len(s.get_events("scheduler"))
        link, chain = first, [first]
        for _ in range(40):
            link = c.submit(inc, link)
            chain.append(link)
        assert await link == 41
        for number in range(10):
            assert await c.submit(inc, chain[number], pure=False) == number + 2
        counts = core.engine_counts()
        assert counts["backhaul-submit"] >= 30
        assert not core.escapes
        while len(s.get_events("scheduler")) < before + 50:
            await asyncio.sleep(0.01)
        events = [event for _, event in s.get_events("scheduler")[before:]]
        assert all(event["action"] == "update-graph" for event in events)
        assert {event["metrics"]["new_tasks"] for event in events} == {1}
        # The report of the last released key may be on its way.
        while len(s.tasks) > 41:
            await asyncio.sleep(0.01)
        core.escape("to look")
        s.validate_state()
        assert len(s.tasks) == 41
        assert {ts.group.span_id for ts in s.tasks.values()} == set(s.extensions["spans"].spans)
        for task, dependency in zip(chain[1:], chain, strict=False):
            spec: Any = s.tasks[task.key].run_spec
            assert spec.dependencies == {dependency.key}
            assert spec.func is inc
        # Lost with their worker, they are made again of what the core had.
        for ws in list(s.workers.values()):
            await s.remove_worker(ws.address, stimulus_id="test", close=False)
        async with Worker(s.address, nthreads=1):
            assert await c.submit(inc, link, pure=False) == 42


@gen_test()
async def test_one_submit_after_the_other_leaves_a_group_each() -> None:
    async with cluster() as (c, s, core, _):
        for number in range(30):
            assert await c.submit(inc, number, pure=False) == number + 1
        while len(s.tasks):
            await asyncio.sleep(0.01)
        assert core.engine_counts()["backhaul-submit"] >= 28
        assert not core.escapes
        spans = s.extensions["spans"].spans.values()
        assert sum(span.states["forgotten"] for span in spans) == 30
        assert all(span.done for span in spans)
        assert not core.spans._groups
        assert sum(one.states.get("forgotten", 0) for one in s.computations) == 30
        future = c.submit(inc, 1, pure=False)
        assert await future == 2
        core.escape("to look")
        assert s.tasks[future.key].group.span_id in s.extensions["spans"].spans
        s.validate_state()


@gen_test()
async def test_a_submit_with_other_requests_is_for_python() -> None:
    async with cluster() as (c, s, _, workers):
        assert await c.submit(inc, 0, pure=False) == 1
        here = workers[0].address
        urgent = c.submit(inc, 1, pure=False, priority=5)
        tied = c.submit(inc, 1, pure=False, workers=[here])
        assert await c.gather([urgent, tied]) == [2, 2]
        assert (s.tasks[urgent.key].priority or ())[0] == -5
        assert s.tasks[tied.key].worker_restrictions == {here}
        # Nothing of this name is known.
        assert await c.submit(add, 1, 2, key="shuffle-add-1") == 3


@pytest.mark.parametrize(
    "key",
    [
        *("x", "x-1", "hello-world-1", "x-abcdefab", "x-ghabcdef-y", "inc-0b0e7b1e-9c2f", "x-"),
        *("add-ABCDEFGH-1", "a1-b", "x--y", "Big-Name-more-0", "x-y_z-1", "x.y-z"),
    ],
)
@gen_test()
async def test_groups_of_submitted_keys_are_dasks(key: str) -> None:
    async with cluster(workers=1) as (c, s, core, _):
        group, prefix = key_split_group(key), key_split(key)
        # It makes the group known to the engine.
        first = c.submit(inc, 1, key=f"{group}-{'0' * 32}")
        assert await first == 2
        taken = core.engine_counts()["backhaul-submit"]
        future = c.submit(inc, 2, key=key)
        assert await future == 3
        assert core.engine_counts()["backhaul-submit"] == taken + 1
        core.escape("to look")
        task = s.tasks[key]
        assert (task.group.name, task.prefix.name) == (group, prefix)
        s.validate_state()


@gen_test()
async def test_results_that_workers_fetch_are_noted_without_python() -> None:
    async with cluster() as (c, s, core, workers):
        leaves = [inc(number) for number in range(64)]
        dsk: dict[Any, Any] = {f"leaf-{number}": (inc, number) for number in range(64)}
        dsk |= {f"sum-{one}": (add, *(f"leaf-{each}" for each in range(64))) for one in range(8)}
        futures = c.get(dsk, list(dsk), sync=False)
        assert await c.gather(futures) == leaves + [sum(leaves)] * 8
        assert core.engine_counts()["add-keys"] >= 1
        assert not core.escapes
        core.escape("to look")
        for worker in workers:
            held = s.workers[worker.address].has_what
            while {ts.key for ts in held} != set(worker.data):
                await asyncio.sleep(0.01)
        s.validate_state()


@gen_test()
async def test_tasks_that_leave_their_thread_are_noted_without_python() -> None:
    def leave() -> int:
        secede()
        return 1

    async with cluster(workers=1) as (c, _, core, _):
        assert await c.submit(inc, 0, pure=False) == 1
        futures = [c.submit(leave, pure=False) for _ in range(20)]
        assert await c.gather(futures) == [1] * 20
        assert core.engine_counts()["long-running"] >= 1
        assert not core.escapes


@gen_test()
async def test_results_that_are_not_plain_are_fetched() -> None:
    async with cluster() as (c, _, core, _):
        results = await c.gather(c.map(lambda number: Thing(), range(30), pure=False))
        assert all(type(result) is Thing for result in results)
        assert not core.escapes


@pytest.mark.parametrize("seed", range(4))
@gen_test()
async def test_an_escape_in_the_middle_finds_all_that_the_engine_did(seed: int) -> None:
    chance = random.Random(seed)
    async with cluster() as (c, s, core, _):
        for _ in range(4):
            futures = c.map(slowinc, range(120), delay=0.001, pure=False)
            sums = [c.submit(add, *futures[at : at + 4]) for at in range(0, 120, 7)]
            await wait(futures[: chance.randrange(1, 60)])
            if core.is_active:
                core.escape("to look")
            assert core.streams is None
            s.validate_state()
            assert all(stream.gate is None for stream in s.stream_comms.values())  # type: ignore[attr-defined]
            assert await c.gather(sums) == [
                sum(range(at + 1, min(at + 5, 121))) for at in range(0, 120, 7)
            ]
            finished = s.transition_counter
            assert finished > 0
            del futures, sums
            while len(s.tasks):
                await asyncio.sleep(0.01)
        assert core.escapes["to look"] >= 2
        assert core.engine_counts()["task-finished"] > 0


@gen_test()
async def test_a_failing_task_and_the_others() -> None:
    async with cluster() as (c, s, core, _):
        good = c.map(slowinc, range(60), delay=0.001)
        await wait(good[:5])
        bad = c.submit(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await bad
        began = time.monotonic()
        behind = c.submit(inc, bad)
        with pytest.raises(ZeroDivisionError):
            await behind
        # It does not wait for the engine to tell.
        assert time.monotonic() - began < 5
        assert not core.escapes
        assert await c.gather(good) == list(range(1, 61))
        # The exceptions refer to the futures that raised them, so they would stay.
        bad.release()
        behind.release()
        while len(s.tasks) > 60:
            await asyncio.sleep(0.01)
        assert core.is_active, core.escapes
        s.validate_state()


@gen_test()
async def test_two_clients_want_the_same() -> None:
    async with cluster() as (c, s, core, _):
        futures = c.map(slowinc, range(80), delay=0.001)
        async with Client(s.address, asynchronous=True) as other:
            same = other.map(slowinc, range(80), delay=0.001)
            assert await other.gather(same) == await c.gather(futures) == list(range(1, 81))
            assert core.is_active, core.escapes
            assert core.engine_counts()["task-finished"] > 0
            more = other.map(slowinc, range(100, 200), delay=0.001)
            await wait(more[:10])
        # It is gone, and with it all that only it wanted.
        assert await c.submit(add, *futures) == sum(range(1, 81))
        while len(s.tasks) > 81:
            await asyncio.sleep(0.01)
        s.validate_state()


async def report_run_of_another(key: str, workers: Sequence[Worker]) -> None:
    """Wait until a worker runs a task, then have another worker report it as finished."""
    while not any(key in worker.state.tasks for worker in workers):
        await asyncio.sleep(0.01)
    holder = next(worker for worker in workers if key in worker.state.tasks)
    stranger = next(worker for worker in workers if worker is not holder)
    stranger.batched_send(
        {
            "op": "task-finished",
            "status": "OK",
            "key": key,
            "run_id": holder.state.tasks[key].run_id,
            "nbytes": 28,
            "type": b"int",
            "typename": "int",
            "metadata": {},
            "thread": 1,
            "startstops": [{"action": "compute", "start": 1.0, "stop": 2.0}],
            "stimulus_id": "forged",
        }
    )


@gen_test()
async def test_a_run_that_another_worker_was_given_is_refused_and_the_job_goes_on() -> None:
    async with cluster() as (c, s, core, workers):
        assert await c.gather(c.map(inc, range(50))) == list(range(1, 51))
        slow = c.submit(slowinc, 1, delay=0.5, workers=None, key="slow")
        await report_run_of_another("slow", workers)
        while core.is_active:
            await asyncio.sleep(0.01)
        assert core.escapes == {"an error in the core": 1}
        assert await slow == 2
        s.validate_state()


@gen_test()
async def test_a_stream_of_dasks_own_keeps_the_engine_out() -> None:
    async with cluster() as (c, s, core, _):
        assert await c.submit(inc, 1) == 2
        assert core.streams is not None
        await s.listen("tcp://127.0.0.1", allow_offload=False)
        address = next(one.contact_address for one in s.listeners if "tcp" in one.contact_address)
        futures = c.map(slowinc, range(60), delay=0.001)
        async with Client(address, asynchronous=True) as other:
            same = other.map(slowinc, range(60), delay=0.001)
            assert await other.gather(same) == list(range(1, 61))
            assert core.streams is None
            assert core.is_active, core.escapes
        assert await c.gather(futures) == list(range(1, 61))


@gen_test()
async def test_an_error_on_the_engines_thread_ends_no_scheduler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with cluster() as (c, s, core, workers):
        futures = c.map(slowinc, range(200), delay=0.002, pure=False)
        await wait(futures[:20])
        assert core.streams is not None
        slow = c.submit(slowinc, 1, delay=2, key="slow", priority=1)
        await report_run_of_another("slow", workers)
        assert await c.gather(futures) == list(range(1, 201))
        # The client may have all results before the event loop handles the reports.
        while not core.escapes:
            await asyncio.sleep(0.01)
        assert core.escapes == {"an error in the core": 1}
        assert "Dask's own state: slow was finished by " in caplog.text
        assert "; the last transitions: '" in caplog.text
        assert " processing -> memory (task-finished" in caplog.text
        assert await slow == 2
        del futures, slow
        while s.tasks:
            await asyncio.sleep(0.01)
        assert await c.gather(c.map(inc, range(100), pure=False)) == list(range(1, 101))
        assert core.is_active


def made_core(workers: int, tasks: int) -> SchedulerCore:
    """Make a core with tasks that wait in the queue."""
    core = SchedulerCore(worker_saturation=1.1)
    for number in range(workers):
        core.handle_worker_added(
            "join",
            0.0,
            address=f"backhaul://{number}",
            name=str(number),
            host="here",
            nthreads=2,
            memory_limit=1 << 30,
            status="running",
            resources={},
            bandwidth_bytes_per_s=1e8,
        )
    core.handle_client_added("client")
    core.handle_graph(
        "graph",
        1.0,
        client="client",
        submitting_task=None,
        fifo_timeout_s=0.0,
        keys=[f"x-{number}" for number in range(tasks)],
        tasks=[
            (
                number,
                f"group-{number % 2}",
                "x",
                spec_payload(Task(f"x-{number}", inc, number), "span"),
                [],
                float(number),
                None,
                None,
                False,
            )
            for number in range(tasks)
        ],
        wanted=list(range(tasks)),
        user_priority=0.0,
    )
    return core


@pytest.mark.parametrize("seed", range(8))
def test_the_window_without_the_engine_is_that_of_the_engine_number_for_number(seed: int) -> None:
    chance = random.Random(seed)
    limits = work_in_hand_limits()
    assert limits is not None
    cores = [made_core(3, 600), made_core(3, 600)]
    scheduler: Any = SimpleNamespace(
        WORKER_SATURATION=1.1,
        total_nthreads=6,
        handle_task_finished=None,
        decide_worker_rootish_queuing_enabled=None,
        workers={
            f"backhaul://{number}": SimpleNamespace(
                address=f"backhaul://{number}",
                nthreads=2,
                memory_limit=1 << 30,
                metrics={"memory": 1000 * number},
            )
            for number in range(3)
        },
    )
    window = CoreWindow(
        SimpleNamespace(core=cores[0], scheduler=scheduler),  # type: ignore[arg-type]
        InFlightWindow(scheduler, limits),
    )
    streams = SchedulerStreams(cores[1], window=window.upstream.policy)
    for address, ws in scheduler.workers.items():
        streams.set_memory(address, ws.metrics["memory"])
    sent: list[list[Any]] = []
    for core in cores:
        sent.append([message for _, _, message in core.take_messages()])
    seconds, nbytes = chance.choice([1e-5, 1e-3, 0.1]), chance.choice([0, 28, 10_000])
    for at in range(300):
        running = [message for message in sent[0] if message.get("op") == "compute-task"]
        assert [one.get("key") for one in sent[0]] == [one.get("key") for one in sent[1]], at
        if not running:
            break
        message = chance.choice(running)
        key = message["key"]
        for messages in sent:
            messages[:] = [one for one in messages if one.get("key") != key]
        if chance.random() < 0.05:
            seconds *= chance.choice([0.1, 1, 30])
            nbytes = round(nbytes * chance.choice([0.5, 1, 4]))
        (worker,) = (
            address for address in scheduler.workers if cores[0].running_task(key, address, 0)
        )
        taken = seconds * chance.random()
        startstops = [("compute", 0.0, taken)]
        surprised = []
        for core, messages, learn in (
            (cores[0], sent[0], window),
            (cores[1], sent[1], None),
        ):
            found = core.running_task(key, worker, message["run_id"])
            assert found is not None
            group, prefix, _ = found
            if learn is not None:
                scheduler.workers[worker].nbytes = core.worker_bytes(worker)
                learned = {
                    "startstops": [{"action": "compute", "start": 0.0, "stop": taken}],
                    "nbytes": nbytes,
                }
                surprised.append(learn.finished(group, prefix, learned))
            else:
                surprised.append(streams.observe(group, prefix, taken, nbytes))
            core.handle_task_finished(
                "finished",
                2.0 + at,
                key=key,
                worker=worker,
                run_id=message["run_id"],
                nbytes=nbytes,
                type=b"",
                typename="int",
                startstops=startstops,
            )
            if core.has_any("queued"):
                if learn is not None:
                    for address, ws in scheduler.workers.items():
                        ws.nbytes = core.worker_bytes(address)
                    learn.refill(worker, "refill", 2.0 + at)
                else:
                    streams.refill(worker, "refill", 2.0 + at)
            messages.extend(one for kind, _, one in core.take_messages() if kind == "worker")
        assert surprised[0] == surprised[1]
        if surprised[0]:
            assert window.has_too_many("x") == streams.has_too_many("x")
    streams.stop()


@gen_test()
async def test_messages_wait_for_what_is_queued_for_the_same_peer() -> None:
    listener = backhaul.listen("127.0.0.1:0")
    near, far = await asyncio.gather(backhaul.connect(listener.address), listener.accept())
    core = made_core(1, 30)
    streams = SchedulerStreams(core)
    peer = streams.add("worker", "backhaul://0", near)
    streams.hold(peer, True)
    streams.flush()
    await near.send_frames([b"queued before"])
    assert [bytes(frame) for frame in await far.recv_frames()] == [b"queued before"]
    streams.hold(peer, False)
    header, *specs = await far.recv_frames()
    messages = msgpack.unpackb(header)
    assert {message["op"] for message in messages} == {"compute-task"}
    assert len(specs) == len(messages)
    # Messages that were gathered before the loop queues another one leave before it.
    core.handle_client_releases_keys("release", 3.0, [messages[0]["key"]], "client")
    streams.hold(peer, True)
    assert not streams.flush()
    left = streams.stop()
    ((number, frames),) = left.held
    assert number == peer
    assert {message["op"] for message in msgpack.unpackb(frames[0])} >= {"free-keys"}
    await near.close()
    listener.close()
