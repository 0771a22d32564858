"""`Future.result` in threads: who is woken by what, and what goes Dask's way."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from distributed import Client, Event, Future, LocalCluster
from distributed.client import FutureCancelledError, FutureState
from distributed.utils_test import inc

import dask
from backhaul.dask.client.result_cache import held_by
from backhaul.dask.client.thread_wait import wait_in_thread
from backhaul.dask.compat import activation

THREADS = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=1,
        threads_per_worker=2,
        processes=False,
        protocol="backhaul",
        dashboard_address=None,
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        assert held_by(client) is not None
        yield client


@pytest.fixture
def looped(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """List what `Client.sync` is called for."""
    calls: list[Any] = []
    sync: Any = Client.sync

    def counted(self: Client, func: Callable[..., Any], *args: Any, **options: Any) -> Any:
        calls.append(func.__name__)
        return sync(self, func, *args, **options)

    monkeypatch.setattr(Client, "sync", counted)
    return calls


def waited(name: str, value: Any) -> Any:
    Event(name).wait()
    if isinstance(value, Exception):
        raise value
    return value


def submit(client: Client, value: Any) -> tuple[Future[Any], Any]:
    """Submit a task that waits, and give what lets it go on."""
    event = Event(client=client)
    return client.submit(waited, event.name, value, pure=False), event


def test_a_result_needs_no_event_loop(client: Client, looped: list[Any]) -> None:
    future = client.submit(inc, 1)
    assert future.result() == 2
    assert future.result() == 2
    assert future.result(timeout=300) == 2
    assert looped == []


def test_many_threads_wait_for_one_and_for_many(client: Client) -> None:
    future, event = submit(client, 7)
    with ThreadPoolExecutor(THREADS) as pool:
        waiting = [pool.submit(future.result) for _ in range(THREADS)]
        while len(waiters(future)) < THREADS:
            time.sleep(0.001)
        event.set()
        assert [each.result(60) for each in waiting] == [7] * THREADS
        assert waiters(future) == []

        def many(first: int) -> list[int]:
            return [client.submit(inc, first + i).result() for i in range(30)]

        starts = range(0, 100 * THREADS, 100)
        found = list(pool.map(many, starts))
    assert found == [[first + i + 1 for i in range(30)] for first in starts]


def waiters(future: Future[Any]) -> list[Any]:
    assert future._state is not None
    return waiters_of(future._state)


def waiters_of(state: FutureState) -> list[Any]:
    event: Any = state._event
    return [] if event is None else event._waiters


def test_errors_cancellation_and_the_end_of_the_client_wake_waiting_threads(
    cluster: LocalCluster, client: Client
) -> None:
    failing, event = submit(client, ZeroDivisionError("on purpose"))
    cancelled, other = submit(client, 1)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(failing.result)
        second = pool.submit(cancelled.result)
        while not (waiters(failing) and waiters(cancelled)):
            time.sleep(0.001)
        event.set()
        with pytest.raises(ZeroDivisionError, match="on purpose"):
            first.result(60)
        client.cancel(cancelled)
        with pytest.raises(FutureCancelledError):
            second.result(60)
        other.set()
        with Client(cluster) as another:
            left, last = submit(another, 1)
            third = pool.submit(left.result)
            while not waiters(left):
                time.sleep(0.001)
            last.set()
            another.close()
        # It was in time or it was not.
        assert third.exception(60) is None or isinstance(third.exception(), FutureCancelledError)


def test_results_that_are_not_held_are_gathered(client: Client, looped: list[Any]) -> None:
    large = client.submit(bytes, 100_000)
    assert len(large.result()) == 100_000
    future, event = submit(client, 5)
    with pytest.raises(TimeoutError, match=r"timed out after 0\.01 s\."):
        future.result(timeout="10 ms")
    event.set()
    assert future.result(timeout=300) == 5
    assert looped.count("_result") == 1


def test_tracebacks_are_as_short_as_dasks(client: Client) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    future = client.submit(fails)
    with pytest.raises(ZeroDivisionError) as raised:
        future.result()
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert [frame.name for frame in frames][1:] == ["result", "fails"]


def test_an_asynchronous_client_gets_a_coroutine(client: Client) -> None:
    async def within() -> Any:
        future = client.submit(inc, 1)
        return await future.result()

    assert client.sync(within) == 2


def test_an_event_is_made_once_by_any_caller(plain_dask: None) -> None:
    activation.install(only="hot-path.futures")
    for _ in range(200):
        state = FutureState("key")
        barrier = threading.Barrier(4)
        events: list[Any] = []

        def make(
            state: FutureState = state,
            barrier: threading.Barrier = barrier,
            events: list[Any] = events,
        ) -> None:
            barrier.wait(300)
            events.append(state._get_event())

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(map(id, events))) == 1


def test_no_waiter_is_skipped(client: Client) -> None:
    """Threads take themselves out while the others are woken."""
    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(200):
            states = [FutureState(f"key-{number}-{part}") for part in range(3)]
            waiting = [pool.submit(wait_in_thread, client, states, None) for _ in range(THREADS)]
            for state in states:
                state.finish()
            for each in waiting:
                assert each.result(60)
            for state in states:
                assert waiters_of(state) == []


def test_switched_off_it_goes_dasks_way(cluster: LocalCluster, plain_dask: None) -> None:
    with dask.config.set({"distributed.comm.backhaul.hot-path.result": False}):
        activation.install()
        with Client(cluster) as client:
            assert "Future.result" not in {str(patch) for patch in activation.installed()}
            assert client.submit(inc, 1).result() == 2
