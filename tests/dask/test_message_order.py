"""Order of a client's requests, the messages of its stream, and the results of its tasks.

Streams of Dask hold messages back for 2 to 10 ms; those of Backhaul do not. These programs depend
on the order that follows from that: each runs many rounds of very short tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import (
    Client,
    Event,
    LocalCluster,
    Queue,
    Scheduler,
    Variable,
    Worker,
    fire_and_forget,
    get_client,
    get_worker,
    wait,
)

import dask
from backhaul.dask.client.send import sent_in_thread

pytestmark = pytest.mark.usefixtures("forked_workers")

HOST = "backhaul://127.0.0.1"
#: Against hanging, in seconds
PATIENCE_S = 300
ROUNDS = 150


def incremented(number: int) -> int:
    return number + 1


def fail(number: int) -> None:
    raise ValueError(number)


def succeed_second(path: str) -> int:
    """Fail on the first run."""
    if not Path(path).exists():
        Path(path).touch()
        raise OSError("first run")
    return 1


def counted_runs(path: str) -> int:
    """Return how often this has run with `path`."""
    with Path(path).open("a") as file:
        file.write("x")
    return len(Path(path).read_text())


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2, threads_per_worker=1, protocol="backhaul", dashboard_address=None
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        yield client
        assert_freed(client)


@pytest.fixture
def other(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster, set_as_default=False) as client:
        yield client


def count_tasks(client: Client) -> int:
    found: Any = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
    return int(found)


def assert_freed(client: Client) -> None:
    """Wait until the scheduler has no task."""
    deadline = time.monotonic() + 30
    while left := count_tasks(client):
        assert time.monotonic() < deadline, f"{left} tasks are never freed: {wanted(client)}"
        # Futures that an exception refers to
        gc.collect()
        time.sleep(0.02)


def wanted(client: Client) -> Any:
    """Return who wants which task."""

    def look(dask_scheduler: Any) -> Any:
        return {
            name: (one.state, [who.client_key for who in one.who_wants or ()])
            for name, one in dask_scheduler.tasks.items()
        }

    return client.run_on_scheduler(look)


# Retry


def test_retried_short_task_finishes(client: Client, tmp_path: Path) -> None:
    for number in range(ROUNDS):
        future = client.submit(succeed_second, str(tmp_path / str(number)), pure=False)
        wait(future)
        assert future.status == "error"
        future.retry()
        assert future.status in ("pending", "finished")
        assert future.result(timeout=PATIENCE_S) == 1


def test_retried_dependency_finishes(client: Client, tmp_path: Path) -> None:
    for number in range(ROUNDS // 3):
        first = client.submit(succeed_second, str(tmp_path / str(number)), pure=False)
        last = client.submit(incremented, first, pure=False)
        wait(last)
        last.retry()
        assert last.result(timeout=PATIENCE_S) == 2
        assert first.result(timeout=PATIENCE_S) == 1


def test_task_that_fails_again_ends(client: Client) -> None:
    for number in range(ROUNDS // 3):
        future = client.submit(fail, number, pure=False)
        wait(future)
        future.retry()
        assert isinstance(future.exception(timeout=PATIENCE_S), ValueError)
        del future


def test_finished_task_runs_again(client: Client, tmp_path: Path) -> None:
    for number in range(ROUNDS // 3):
        future = client.submit(counted_runs, str(tmp_path / str(number)), pure=False)
        wait(future)
        future.retry()
        assert future.result(timeout=PATIENCE_S) == 2


@contextlib.asynccontextmanager
async def in_this_loop() -> AsyncIterator[tuple[Scheduler, Client]]:
    """Start a scheduler, a worker and a client in this event loop."""
    async with (
        Scheduler(host=HOST, dashboard=False, dashboard_address=":0") as scheduler,
        Worker(scheduler.address, nthreads=1),
        Client(scheduler.address, asynchronous=True) as client,
    ):
        yield scheduler, client


async def check_late_answers(path: Path) -> None:
    async with in_this_loop() as (scheduler, client):

        async def answer_late(keys: list[Any], client_id: str | None = None, **_: Any) -> Any:
            state = client.futures[keys[0]]
            before = state.exception
            again = scheduler.stimulus_retry(keys=keys, client=client_id)
            while state.status != "finished" and state.exception is before:
                await asyncio.sleep(0.001)
            return again

        scheduler.handlers["retry"] = answer_late
        future = client.submit(succeed_second, str(path), pure=False)
        await wait(future)
        await client.retry([future])
        assert future.status == "finished"
        assert await future == 1

        failing = client.submit(fail, 1, pure=False)
        await wait(failing)
        await client.retry([failing])
        assert failing.status == "error"


def test_news_may_precede_the_answer_to_retry(tmp_path: Path) -> None:
    asyncio.run(check_late_answers(tmp_path / "one"))


async def check_refusal() -> None:
    async with in_this_loop() as (scheduler, client):

        def refuse(**_: Any) -> None:
            raise RuntimeError("refused")

        scheduler.handlers["retry"] = refuse
        future = client.submit(fail, 1, pure=False)
        await wait(future)
        with pytest.raises(RuntimeError, match="refused"):
            await client.retry([future])
        assert future.status == "error"
        assert type(future.status) is str


def test_refused_retry_leaves_the_status() -> None:
    asyncio.run(check_refusal())


# fire_and_forget


def submit_in_task(number: int) -> int:
    fire_and_forget(get_client().submit(incremented, number, pure=False))
    return number


def submit_one(client: Client, number: int) -> None:
    fire_and_forget(client.submit(incremented, number, pure=False))


def submit_failing(client: Client, number: int) -> None:
    fire_and_forget(client.submit(fail, number, pure=False))


def submit_chain(client: Client, number: int) -> None:
    first = client.submit(incremented, number, pure=False)
    fire_and_forget(client.submit(incremented, first, pure=False))


def submit_map(client: Client, number: int) -> None:
    fire_and_forget(client.map(incremented, range(number, number + 3), pure=False))


def submit_delayed(client: Client, number: int) -> None:
    inner = dask.delayed(incremented, pure=False)(number)
    fire_and_forget(client.compute(dask.delayed(incremented, pure=False)(inner)))


def submit_task_that_submits(client: Client, number: int) -> None:
    client.submit(submit_in_task, number, pure=False).result(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    "submit",
    [
        submit_one,
        submit_failing,
        submit_chain,
        submit_map,
        submit_delayed,
        submit_task_that_submits,
    ],
)
def test_forgotten_results_are_freed(client: Client, submit: Callable[[Client, int], None]) -> None:
    for number in range(ROUNDS):
        submit(client, number)
        if number % 5 == 0:
            # Varies which messages leave together, as a handler of events does.
            time.sleep(0.002)
    assert_freed(client)


def test_threads_forget_results_that_are_freed(client: Client) -> None:
    def submit_many(_: int) -> None:
        for number in range(ROUNDS):
            submit_one(client, number)
            if number % 3 == 0:
                # Varies which messages leave together; nothing is waited for.
                time.sleep(0.001)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(submit_many, range(4)))
    assert_freed(client)


def test_asynchronous_client_forgets_results_that_are_freed(client: Client) -> None:
    async def submit_many() -> None:
        scheduler: Any = client.scheduler
        async with Client(scheduler.address, asynchronous=True, set_as_default=False) as one:
            for number in range(ROUNDS):
                submit_one(one, number)
                if number % 5 == 0:
                    # As above
                    await asyncio.sleep(0.002)

    asyncio.run(submit_many())
    assert_freed(client)


def test_forgotten_tasks_of_a_closed_client_run(
    cluster: LocalCluster, client: Client, tmp_path: Path
) -> None:
    for number in range(10):
        folder = tmp_path / str(number)
        folder.mkdir()
        with Client(cluster, set_as_default=False) as one:
            for name in range(20):
                fire_and_forget(one.submit(counted_runs, str(folder / str(name)), pure=False))
        deadline = time.monotonic() + PATIENCE_S
        while len(list(folder.iterdir())) < 20:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert_freed(client)


@pytest.mark.parametrize("core", [True, False])
def test_wishes_for_ended_tasks_are_dropped(core: bool) -> None:
    with (
        dask.config.set({"distributed.comm.backhaul.hot-path.scheduler-core": core}),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            protocol="backhaul",
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        finished, failed = client.submit(incremented, 1), client.submit(fail, 1)
        wait([finished, failed])
        fire_and_forget([finished, failed])
        # A task that has not ended is kept until it has.
        event = Event("goes on")
        running = client.submit(Event.wait, event, PATIENCE_S, key="waits")
        fire_and_forget(running)
        del finished, failed, running
        gc.collect()
        deadline = time.monotonic() + PATIENCE_S
        while count_tasks(client) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert count_tasks(client) == 1
        event.set()
        assert_freed(client)


# Futures that other clients receive


@pytest.mark.parametrize("is_late", [False, True])
def test_dataset_may_be_removed_after_another_client_has_it(
    client: Client, other: Client, is_late: bool
) -> None:
    stream: Any = other.scheduler_comm
    received: Any
    for number in range(20 if is_late else ROUNDS // 2):
        future = client.submit(incremented, number, pure=False)
        client.publish_dataset(future, name="one")
        del future
        if is_late:
            # The next batch leaves that long after the last one.
            stream.patience_s = 0.1
        received = other.get_dataset("one")
        client.unpublish_dataset("one")
        assert received.result(timeout=PATIENCE_S) == number + 1
    assert other.get_dataset("none", default=None) is None
    with pytest.raises(KeyError):
        other.get_dataset("none")


def outcome_of(future: Any) -> Any:
    """Return the result, or the name of the class of the exception."""
    error = future.exception(timeout=PATIENCE_S)
    return future.result() if error is None else type(error).__name__


@pytest.mark.parametrize("kind", [Variable, Queue])
@pytest.mark.parametrize("function", [incremented, fail])
def test_futures_pass_from_client_to_client(
    client: Client, other: Client, kind: Any, function: Any
) -> None:
    ours, theirs = kind("passed", client=client), kind("passed", client=other)
    put = ours.set if kind is Variable else ours.put
    for number in range(ROUNDS // 3):
        put(client.submit(function, number, pure=False))
        outcome = outcome_of(theirs.get(timeout=PATIENCE_S))
        assert outcome == ("ValueError" if function is fail else number + 1)
    if kind is Variable:
        ours.delete()
    else:
        theirs.close()
        ours.close()
    assert_freed(client)


def test_scattered_results_may_be_used_and_dropped(client: Client) -> None:
    for number in range(ROUNDS // 3):
        # Names that are new each time: Dask may release a result that is scattered again.
        futures = client.scatter(
            [1, 2, 3], direct=number % 2 == 0, broadcast=number % 3 == 0, hash=False
        )
        assert client.submit(sum, futures, pure=False).result(timeout=PATIENCE_S) == 6
        client.replicate(futures, n=2)
        del futures
    assert_freed(client)


# Events of tasks


def log_number(number: int, *, blocks: bool = False) -> int:
    worker = get_worker()
    if blocks:
        worker.loop.add_callback(time.sleep, 0.05)
    worker.log_event("numbers", number)
    return number


@pytest.mark.parametrize("blocks", [False, True])
def test_event_of_a_task_precedes_its_result(client: Client, blocks: bool) -> None:
    received: list[Any] = []
    client.subscribe_topic("numbers", lambda event: received.append(event[1]))
    # An event that comes shows that the scheduler knows of the subscription.
    while not received:
        client.log_event("numbers", -1)
        time.sleep(0.01)
    log = partial(log_number, blocks=blocks)
    for number in range(ROUNDS if not blocks else 40):
        assert client.submit(log, number, pure=False).result(timeout=PATIENCE_S) == number
        assert received[-1] == number
        assert client.get_events("numbers")[-1][1] == number
    client.unsubscribe_topic("numbers")


def test_event_that_cannot_be_sent_is_refused(client: Client) -> None:
    def log_object() -> None:
        get_worker().log_event("numbers", object())

    error = client.submit(log_object, pure=False).exception(timeout=PATIENCE_S)
    assert isinstance(error, TypeError)
    assert "msgpack serializable" in str(error)


# Threads and the event loop


def test_tasks_that_need_each_other_arrive_in_order(client: Client) -> None:
    """Large tasks leave by the event loop, small ones by the thread."""
    large = b"x" * 200_000

    def submit_many(thread: int) -> int:
        right = 0
        for number in range(ROUNDS // 5):
            first: Any
            if (thread + number) % 2:
                first = client.submit(len, large + bytes([thread]), pure=False)
            else:
                first = client.submit(incremented, 200_000, pure=False)
            second = client.submit(incremented, first, pure=False)
            sizes = large if number % 3 == 0 else b""
            third = client.submit(lambda a, b: a + len(b), second, sizes, pure=False)
            right += third.result(timeout=PATIENCE_S) == 200_002 + len(sizes)
        return right

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(submit_many, range(4))) == [ROUNDS // 5] * 4


def test_messages_that_waited_for_the_connection_go_first(client: Client) -> None:
    waiting: list[Any] = client._pending_msg_buffer
    assert client.submit(incremented, 1).result(timeout=PATIENCE_S) == 2
    message = {"op": "client-releases-keys", "keys": ["unknown"], "client": client.id}
    waiting.append(message)
    assert not sent_in_thread(client, message)
    waiting.clear()
    # Messages of the start of the client may not have left yet.
    deadline = time.monotonic() + PATIENCE_S
    while not sent_in_thread(client, message):
        assert time.monotonic() < deadline
        time.sleep(0.01)
