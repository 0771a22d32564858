"""Faults that were seen once on a busy machine: these programs end as they do over ``tcp://``.

Each runs beside processes that keep every CPU busy.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, Event, Future, LocalCluster, as_completed
from distributed.utils_test import inc

pytestmark = pytest.mark.usefixtures("forked_workers")

#: How long a thread may take that waits for nothing but its turn
DEADLINE_S = 300

#: Calls of one actor
CALLS = 100


@pytest.fixture(scope="module", autouse=True)
def load() -> Iterator[None]:
    """Keep each CPU busy, as far as other programs do not."""
    with contextlib.ExitStack() as stack:
        for _ in range((os.cpu_count() or 1) - int(os.getloadavg()[0])):
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(busy.wait)
            stack.callback(busy.kill)
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2,
        threads_per_worker=2,
        processes=True,
        protocol="backhaul",
        dashboard_address=":0",
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        yield client


class Counter:
    n = 0

    def add(self, number: int) -> int:
        self.n += number
        return self.n


def add_often(counter: Any, times: int) -> None:
    for call in [counter.add(1) for _ in range(times)]:
        call.result()


@pytest.mark.parametrize("by", ["client", "tasks"])
def test_an_actor_has_counted_all_calls_that_have_returned(client: Client, by: str) -> None:
    for _ in range(2):
        counter: Any = client.submit(Counter, actor=True, pure=False).result()
        if by == "client":
            add_often(counter, CALLS)
        else:
            client.gather(
                [client.submit(add_often, counter, CALLS // 10, pure=False) for _ in range(10)]
            )
        assert counter.n == CALLS


@pytest.mark.parametrize("with_results", [False, True])
@pytest.mark.parametrize("count", [1, 50])
def test_an_iteration_in_another_thread_ends_when_its_client_closes(
    cluster: LocalCluster, with_results: bool, count: int
) -> None:
    for _ in range(2):
        client = Client(cluster, set_as_default=False)
        # No worker has any, so that none is done before.
        futures = client.map(inc, range(count), resources={"none": 1}, pure=False)
        completed: Any = as_completed(
            futures, loop=client.loop, with_results=with_results, raise_errors=False
        )
        found: list[Any] = []
        thread = threading.Thread(target=found.extend, args=(completed,), daemon=True)
        thread.start()
        client.close()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        statuses = [one[0].status if with_results else one.status for one in found]
        assert statuses == ["cancelled"] * count


def hold_the_gil(times: int, seconds: float) -> int:
    # A function of a `PyDLL` is called with the GIL.
    sleep = ctypes.PyDLL(None).usleep
    for _ in range(times):
        sleep(int(seconds * 1e6))
    return times


@pytest.mark.parametrize(("times", "seconds"), [(1, 1.0), (50, 0.01)])
def test_tasks_end_beside_some_that_hold_the_gil(
    client: Client, times: int, seconds: float
) -> None:
    holding = [client.submit(hold_the_gil, times, seconds, pure=False) for _ in range(2)]
    first = client.map(inc, range(100), pure=False)
    second = client.map(inc, first)
    assert client.gather(second) == list(range(2, 102))
    chain = client.submit(inc, 0, pure=False)
    for _ in range(20):
        chain = client.submit(inc, chain)
    assert chain.result() == 21
    assert client.gather(holding) == [times] * 2


class OwnFuture(Future[Any]):
    """A future of a program's own class."""


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


def result_of(holder: Holder) -> Any:
    return holder.held.result()


def test_a_future_of_a_subclass_is_an_argument_and_no_part_of_an_object(client: Client) -> None:
    future = client.submit(inc, 1, pure=False)
    own = OwnFuture(future.key, client)
    assert client.submit(inc, own).result() == 3
    assert client.gather(client.map(inc, [own, own])) == [3, 3]
    for held in (own, future):
        with pytest.raises(RuntimeError, match="not properly initialized"):
            client.submit(result_of, Holder(held)).result()
    assert future.result() == 2


class Unloadable:
    """An object that can be pickled only."""

    def __reduce__(self) -> Any:
        return refuse, ()


def refuse() -> None:
    raise ValueError("cannot be loaded")


def after(name: str) -> str:
    Event(name).wait()
    return name


def first(one: Any, _: Any) -> Any:
    return one


def test_a_task_that_cannot_be_loaded_fails_alone_though_the_scheduler_was_asked_for_it(
    cluster: LocalCluster, client: Client
) -> None:
    scheduler: Any = cluster.scheduler

    async def look(key: str) -> str:
        # As over `tcp://`, there need not be a task.
        task = scheduler.tasks.get(key)
        return "" if task is None else repr(task.run_spec)

    for number in range(3):
        event = Event(f"gate-{number}", client=client)
        waiting = client.submit(after, event.name, pure=False)
        future = client.submit(first, waiting, Unloadable(), pure=False)
        cluster.sync(look, future.key)
        event.set()
        with pytest.raises(RuntimeError, match="Error during deserialization"):
            future.result()
        assert waiting.result() == event.name
        assert client.submit(inc, number, pure=False).result() == number + 1
    assert len(scheduler.workers) == 2
