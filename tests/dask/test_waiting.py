"""Waiting for futures: what comes through, and the events by which threads wait, too."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import pytest
from distributed import Client, LocalCluster, Scheduler, Worker, wait
from distributed.client import FutureCancelledError
from distributed.utils_test import gen_cluster, gen_test

from backhaul.dask.client import state_event
from backhaul.dask.compat import activation

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually

HOST = "backhaul://127.0.0.1"


# Clients


def cluster(*nthreads: int) -> Callable[[Any], Any]:
    return gen_cluster(client=True, scheduler=HOST, nthreads=[(HOST, count) for count in nthreads])


def add(*numbers: int) -> int:
    return sum(numbers)


def fail(*_: Any) -> None:
    raise ZeroDivisionError("on purpose")


@cluster(2)
async def test_gather_gives_results(client: Client, scheduler: Scheduler, worker: Worker) -> None:
    assert await client.gather(client.map(add, range(100))) == list(range(100))
    assert await client.gather([]) == []


@cluster(2)
async def test_gather_raises_or_skips_failures(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    futures = [client.submit(add, 1), client.submit(fail), client.submit(add, 2)]
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        await client.gather(futures)
    assert await client.gather(futures, errors="skip") == [1, 2]


@cluster()
async def test_gather_raises_for_cancelled_futures(client: Client, scheduler: Scheduler) -> None:
    futures = client.map(add, range(3))
    gathering = asyncio.ensure_future(client.gather(futures))
    await asyncio.sleep(0)
    await client.cancel(futures[1:2])
    with pytest.raises(FutureCancelledError):
        await gathering
    assert await client.gather(futures[1:2], errors="skip") == []


@cluster(1)
async def test_lost_results_are_computed_again(
    client: Client,
    scheduler: Scheduler,
    worker: Worker,
    eventually: Eventually,
) -> None:
    futures = client.map(add, range(3))
    await wait(futures)
    await worker.close()
    await eventually(lambda: {future.status for future in futures} == {"lost"})
    gathering = asyncio.ensure_future(client.gather(futures))
    await asyncio.sleep(0)
    assert not gathering.done()
    async with Worker(scheduler.address):
        assert await gathering == [0, 1, 2]


@cluster()
async def test_timeouts_are_kept(client: Client, scheduler: Scheduler) -> None:
    future = client.submit(add, 1)
    with pytest.raises(TimeoutError):
        await cast("Awaitable[int]", future.result(timeout=0.01))
    with pytest.raises(TimeoutError):
        await wait([future], timeout=0.01)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await client.gather([future])
    assert future.status == "pending"


@cluster(2)
async def test_wait_returns_with_the_first(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    never = client.submit(add, 1, resources={"none": 1})
    first = client.submit(add, 2)
    done = await wait([never, first], return_when="FIRST_COMPLETED")
    assert (done.done, done.not_done) == ({first}, {never})


# Events


def state_of(future: Any) -> Any:
    return future._state


@pytest.fixture
def ours(plain_dask: None) -> None:
    activation.install()


@cluster()
@pytest.mark.usefixtures("ours")
async def test_one_future_may_be_waited_for_in_many_ways(
    client: Client, scheduler: Scheduler
) -> None:
    early, late = client.map(add, range(2))
    # Dask's own, made before its functions were replaced.
    state_of(early)._event = asyncio.Event()
    ways: list[Any] = [
        *(client.gather([early, late]) for _ in range(2)),
        *(wait([early, late]) for _ in range(2)),
        *(future.result() for future in (early, late)),
        client.gather([late]),
    ]
    waiting_for = [asyncio.ensure_future(way) for way in ways]
    await asyncio.sleep(0)
    assert type(state_of(late)._event) is state_event.StateEvent
    waiting_for[1].cancel()
    waiting_for[3].cancel()
    waiting_for[5].cancel()
    async with Worker(scheduler.address, nthreads=1):
        assert await waiting_for[0] == [0, 1]
        assert (await waiting_for[2]).done == {early, late}
        assert await waiting_for[4] == 0
        assert await waiting_for[6] == [1]
    for number in (1, 3, 5):
        assert waiting_for[number].cancelled()
    assert not state_of(late)._event._waiters


@cluster(1)
@pytest.mark.usefixtures("ours")
async def test_a_failure_ends_the_others(
    client: Client, scheduler: Scheduler, worker: Worker, recwarn: pytest.WarningsRecorder
) -> None:
    never = client.submit(add, 1, resources={"none": 1})
    also_never = client.submit(add, 2, resources={"none": 1})
    with pytest.raises(ZeroDivisionError):
        await client.gather([never, client.submit(fail), also_never])
    await client.cancel([never, also_never])
    gc.collect()
    assert not [str(w.message) for w in recwarn if "never awaited" in str(w.message)]


@gen_test()
async def test_an_event_can_be_set_and_cleared_again(plain_dask: None) -> None:
    event = state_event.StateEvent()
    first = asyncio.ensure_future(event.wait())
    await asyncio.sleep(0)
    event.set()
    event.set()
    event.clear()
    # A waiter is woken by the event that it waited for, as by asyncio's.
    assert await first
    second = asyncio.ensure_future(event.wait())
    await asyncio.sleep(0)
    assert not second.done()
    event.set()
    assert await second
    assert await event.wait()


class _SetMeanwhile(list[Any]):
    """The waiters of an event that a thread sets right before one is added."""

    def __init__(self, event: state_event.StateEvent) -> None:
        super().__init__()
        self._event = event

    def append(self, waiter: Any) -> None:
        self._event.set()
        super().append(waiter)


@gen_test()
async def test_an_event_that_a_thread_sets_meanwhile_is_seen(plain_dask: None) -> None:
    event = state_event.StateEvent()
    event._waiters = _SetMeanwhile(event)
    assert await event.wait()
    assert not event._waiters


def test_clients_of_several_threads_wait_at_once(ours: None) -> None:
    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        protocol="backhaul",
        dashboard_address=":0",
    ) as local:

        def gather(_: int) -> bool:
            with Client(local, set_as_default=False) as client:
                numbers = list(range(200))
                return all(
                    client.gather(client.map(add, numbers, pure=False)) == numbers for _ in range(3)
                )

        with ThreadPoolExecutor(3) as pool:
            assert all(pool.map(gather, range(3)))
