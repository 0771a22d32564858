"""`as_completed` with one watcher for many futures, and with Dask's coroutine for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, Event, Future, LocalCluster, as_completed
from distributed.client import FutureCancelledError
from distributed.utils_test import inc

import dask
from backhaul.dask.compat import activation

#: Futures of a call
MANY = 200


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


@pytest.fixture(params=["ours", "dasks"])
def client(request: pytest.FixtureRequest, cluster: LocalCluster) -> Iterator[Client]:
    """Open a client in a program in which `as_completed` is ours, or Dask's."""
    activation.uninstall()
    is_ours = request.param == "ours"
    with dask.config.set({"distributed.comm.backhaul.hot-path.result": is_ours}):
        activation.install()
        try:
            assert (
                as_completed.update.__module__ == "backhaul.dask.client.as_completed"
            ) is is_ours
            with Client(cluster) as client:
                yield client
        finally:
            activation.uninstall()
    activation.install()


def waited(name: str, value: Any) -> Any:
    Event(name).wait()
    if isinstance(value, Exception):
        raise value
    return value


def held_up(client: Client, value: Any) -> tuple[Any, Any]:
    """Submit a task that waits, and give what lets it go on."""
    event = Event(client=client)
    return client.submit(waited, event.name, value, pure=False), event


@pytest.mark.parametrize("with_results", [False, True])
@pytest.mark.parametrize("is_done", [False, True])
def test_all_come_once(client: Client, with_results: bool, is_done: bool) -> None:
    futures = client.map(inc, range(MANY), pure=False)
    if is_done:
        client.gather(futures)
    completed: Any = as_completed(futures, with_results=with_results)
    found = list(completed)
    if with_results:
        assert sorted(result for _, result in found) == list(range(1, MANY + 1))
        assert all(future.result() == result for future, result in found)
        found = [future for future, _ in found]
    assert len(found) == MANY
    assert set(found) == set(futures)
    assert completed.is_empty()


def test_done_futures_come_in_the_order_in_which_they_were_added(client: Client) -> None:
    futures = client.map(inc, range(MANY))
    client.gather(futures)
    backwards = futures[::-1]
    assert list(as_completed(backwards)) == backwards
    assert [result for _, result in as_completed(backwards, with_results=True)] == [
        *range(MANY, 0, -1)
    ]


def test_they_come_as_they_end(client: Client) -> None:
    first, lets_first = held_up(client, 1)
    second, lets_second = held_up(client, 2)
    completed = as_completed([first, second])
    lets_second.set()
    assert next(completed) is second
    assert completed.count() == 1
    third = client.submit(inc, 2, pure=False)
    completed.add(third)
    assert next(completed) is third
    assert not completed.has_ready()
    lets_first.set()
    assert list(completed) == [first]


def test_one_that_is_given_twice_comes_twice(client: Client) -> None:
    future, lets = held_up(client, 1)
    again: Future[int] = Future(future.key, client)
    completed = as_completed([future, future, again])
    lets.set()
    assert [each.key for each in completed] == [future.key] * 3


def test_failures_and_cancellations_come_too(client: Client) -> None:
    failing, lets_failing = held_up(client, ZeroDivisionError("meant"))
    cancelled, lets_cancelled = held_up(client, 1)
    good = client.submit(inc, 1, pure=False)
    futures = [failing, cancelled, good]
    completed = as_completed(futures)
    cancelled.cancel()
    lets_failing.set()
    assert set(completed) == set(futures)
    found: Any = dict(as_completed(futures, with_results=True, raise_errors=False))
    assert found[good] == 2
    assert isinstance(found[failing][1], ZeroDivisionError)
    assert isinstance(found[cancelled], FutureCancelledError)
    with pytest.raises(ZeroDivisionError, match="meant"):
        list(as_completed([failing], with_results=True))
    lets_cancelled.set()


def test_results_that_the_client_does_not_hold_are_fetched(client: Client) -> None:
    futures = [client.submit(bytes, 100_000 + size) for size in range(4)]
    futures.append(client.submit(inc, 1, pure=False))
    found = dict(as_completed(futures, with_results=True))
    assert [len(found[future]) for future in futures[:4]] == [100_000 + n for n in range(4)]
    assert found[futures[4]] == 2


def test_actors_and_objects_that_are_no_futures(client: Client) -> None:
    actor: Any = client.submit(list, [1, 1], actor=True).result()
    future = client.submit(inc, 1, pure=False)
    calls = [actor.count(1), actor.count(2)]
    assert set(as_completed([future, *calls])) == {future, *calls}
    with pytest.raises(TypeError, match="must be a future"):
        as_completed([future, 1])


def test_cleared_futures_do_not_come(client: Client) -> None:
    future, lets = held_up(client, 1)
    completed = as_completed([future])
    completed.clear()
    lets.set()
    assert future.result() == 1
    assert list(completed) == []
    completed.add(future)
    assert list(completed) == [future]


def test_a_timeout_is_one(client: Client) -> None:
    future, lets = held_up(client, 1)
    with pytest.raises(TimeoutError):
        list(as_completed([future], timeout="10 ms"))
    lets.set()


def test_futures_end_with_their_client(cluster: LocalCluster, client: Client) -> None:
    event = Event(client=client)
    with Client(cluster, set_as_default=False) as another:
        futures = another.map(waited, [event.name] * 3, range(3), pure=False)
        completed = as_completed(futures, loop=client.loop)
    assert set(completed) == set(futures)
    event.set()


def test_an_asynchronous_client_iterates_as_well(cluster: LocalCluster, client: Client) -> None:
    async def main() -> None:
        async with Client(cluster.scheduler_address, asynchronous=True) as own:
            futures = own.map(inc, range(MANY), pure=False)
            found = [future async for future in as_completed(futures)]
            assert set(found) == set(futures)
            results = [result async for _, result in as_completed(futures, with_results=True)]
            assert sorted(results) == list(range(1, MANY + 1))

    client.sync(main)
