"""Waiting for many futures: what comes through, what is logged, what is left alone."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import distributed.utils
import pytest
from distributed import Client, LocalCluster, Scheduler, Worker, wait
from distributed.client import FutureCancelledError
from distributed.utils_test import gen_cluster, gen_test

from backhaul.dask.client import state_event
from backhaul.dask.compat import activation
from backhaul.dask.compat.names import FutureState

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually

All: TypeAlias = Callable[..., Awaitable[list[Any]]]

HOST = "backhaul://127.0.0.1"


@pytest.fixture(params=["backhaul", "dask"])
def wait_for_all(request: pytest.FixtureRequest, plain_dask: None) -> All:
    """Ours, and the one that it replaces."""
    if request.param == "backhaul":
        return state_event.wait_for_all
    assert distributed.utils.All is not state_event.wait_for_all
    return distributed.utils.All


@pytest.fixture(params=["backhaul", "dask"])
def client_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let clients wait our way or Dask's, and record when they go ours."""
    activation.uninstall()
    dasks = distributed.utils.All
    dasks_wait = distributed.client.FutureState.wait
    activation.install()
    assert {str(p) for p in activation.installed() if p.switch == "hot-path.futures"} == {
        "FutureState._get_event",
        "Client._send_to_scheduler",
        "Future.release",
        "FutureState.wait",
        "distributed.utils.All",
    }
    taken: list[str] = []
    if request.param == "dask":
        monkeypatch.setattr(distributed.utils, "All", dasks)
        monkeypatch.setattr(distributed.client.FutureState, "wait", dasks_wait)
        return taken
    ours: All = distributed.utils.All
    ours_of_state = state_event.wait_for_state

    def count_all(*arguments: Any, **options: Any) -> Any:
        taken.append("all")
        return ours(*arguments, **options)

    def count_state(state: Any) -> Any:
        taken.append("state")
        return ours_of_state(state)

    monkeypatch.setattr(distributed.utils, "All", count_all)
    monkeypatch.setattr(state_event, "wait_for_state", count_state)
    return taken


@pytest.fixture
def took(client_path: list[str], request: pytest.FixtureRequest) -> Callable[[str], bool]:
    """Tell whether the client went the way that the test is for."""
    ours: bool = request.node.callspec.params["client_path"] == "backhaul"

    def took(name: str) -> bool:
        return (name in client_path) == ours

    return took


async def value(number: int) -> int:
    await asyncio.sleep(0)
    return number


async def until(event: asyncio.Event, error: BaseException | None = None) -> str:
    await event.wait()
    if error is not None:
        raise error
    return "passed"


class Logged:
    """Exceptions that an event loop reported as never retrieved."""

    def __init__(self) -> None:
        self.errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self.errors.append(context.get("exception"))
        )

    async def settle(self) -> list[Any]:
        for _ in range(5):
            await asyncio.sleep(0)
        gc.collect()
        return self.errors


@gen_test()
async def test_results_come_in_the_order_of_the_arguments(wait_for_all: All) -> None:
    event = asyncio.Event()
    waiting_for = asyncio.ensure_future(wait_for_all([until(event), value(1), value(2)]))
    await asyncio.sleep(0)
    event.set()
    assert await waiting_for == ["passed", 1, 2]


@gen_test()
async def test_nothing_to_wait_for_is_an_empty_list(wait_for_all: All) -> None:
    assert await wait_for_all([]) == []


@gen_test()
async def test_futures_that_are_done_already_count(wait_for_all: All) -> None:
    done = asyncio.ensure_future(value(1))
    await done
    assert await wait_for_all([done, value(2)]) == [1, 2]


@gen_test()
async def test_one_future_may_be_given_twice() -> None:
    task = asyncio.ensure_future(value(1))
    assert await state_event.wait_for_all([task, task]) == [1, 1]


@gen_test()
async def test_the_first_exception_comes_at_once(wait_for_all: All) -> None:
    first, second, never = asyncio.Event(), asyncio.Event(), asyncio.Event()
    last = asyncio.ensure_future(until(never))
    waiting_for = asyncio.ensure_future(
        wait_for_all([until(second, KeyError("2")), until(first, ValueError("1")), last])
    )
    await asyncio.sleep(0)
    first.set()
    with pytest.raises(ValueError, match="1"):
        await waiting_for
    assert not last.done()
    never.set()
    assert await last == "passed"
    second.set()


@gen_test()
async def test_later_exceptions_are_logged_unless_quiet(wait_for_all: All) -> None:
    logged = Logged()
    first, later = asyncio.Event(), asyncio.Event()
    for quiet in ((), KeyError, (OSError, KeyError)):
        first.clear()
        later.clear()
        error = KeyError("2")
        waiting_for = asyncio.ensure_future(
            wait_for_all(
                [until(first, ValueError("1")), until(later, error), until(later)],
                quiet_exceptions=quiet,
            )
        )
        await asyncio.sleep(0)
        first.set()
        with pytest.raises(ValueError, match="1"):
            await waiting_for
        del waiting_for
        await asyncio.sleep(0)
        later.set()
        assert await logged.settle() == ([] if quiet else [error])
        logged.errors.clear()


@gen_test()
async def test_a_cancelled_task_cancels_its_waiters(wait_for_all: All) -> None:
    never = asyncio.Event()
    task = asyncio.ensure_future(until(never))
    other = asyncio.ensure_future(until(never))
    waiting_for = asyncio.ensure_future(wait_for_all([task, other]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting_for
    assert not other.done()
    other.cancel()


@gen_test()
async def test_cancelling_cancels_nothing_that_is_waited_for(wait_for_all: All) -> None:
    event = asyncio.Event()
    tasks = [asyncio.ensure_future(until(event)) for _ in range(2)]
    waiting_for = asyncio.ensure_future(wait_for_all(tasks))
    await asyncio.sleep(0)
    waiting_for.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting_for
    event.set()
    assert await asyncio.gather(*tasks) == ["passed", "passed"]


@gen_test()
async def test_a_timeout_comes_through(wait_for_all: All) -> None:
    event = asyncio.Event()
    task = asyncio.ensure_future(until(event))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await wait_for_all([task])
    event.set()
    assert await task == "passed"


# Clients


def cluster(*nthreads: int) -> Callable[[Any], Any]:
    return gen_cluster(client=True, scheduler=HOST, nthreads=[(HOST, count) for count in nthreads])


def add(*numbers: int) -> int:
    return sum(numbers)


def fail(*_: Any) -> None:
    raise ZeroDivisionError("on purpose")


Took: TypeAlias = Callable[[str], bool]


@cluster(2)
async def test_gather_gives_results(
    client: Client, scheduler: Scheduler, worker: Worker, took: Took
) -> None:
    assert await client.gather(client.map(add, range(100))) == list(range(100))
    assert await client.gather([]) == []
    assert took("all")
    assert took("state")


@cluster(2)
async def test_gather_raises_or_skips_failures(
    client: Client, scheduler: Scheduler, worker: Worker, took: Took
) -> None:
    futures = [client.submit(add, 1), client.submit(fail), client.submit(add, 2)]
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        await client.gather(futures)
    assert await client.gather(futures, errors="skip") == [1, 2]
    assert took("all")


@cluster()
async def test_gather_raises_for_cancelled_futures(
    client: Client, scheduler: Scheduler, took: Took
) -> None:
    futures = client.map(add, range(3))
    gathering = asyncio.ensure_future(client.gather(futures))
    await asyncio.sleep(0)
    await client.cancel(futures[1:2])
    with pytest.raises(FutureCancelledError):
        await gathering
    assert await client.gather(futures[1:2], errors="skip") == []
    assert took("all")


@cluster(1)
async def test_lost_results_are_computed_again(
    client: Client,
    scheduler: Scheduler,
    worker: Worker,
    took: Took,
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
    assert took("all")


@cluster()
async def test_timeouts_are_kept(client: Client, scheduler: Scheduler, took: Took) -> None:
    future = client.submit(add, 1)
    with pytest.raises(TimeoutError):
        await cast("Awaitable[int]", future.result(timeout=0.01))
    with pytest.raises(TimeoutError):
        await wait([future], timeout=0.01)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await client.gather([future])
    assert future.status == "pending"
    assert took("all")


@cluster(2)
async def test_wait_returns_with_the_first(
    client: Client, scheduler: Scheduler, worker: Worker, took: Took
) -> None:
    never = client.submit(add, 1, resources={"none": 1})
    first = client.submit(add, 2)
    done = await wait([never, first], return_when="FIRST_COMPLETED")
    assert (done.done, done.not_done) == ({first}, {never})
    assert took("state")


# Gatherings


def state_of(future: Any) -> Any:
    return future._state


@pytest.fixture
def ours(plain_dask: None) -> None:
    activation.install()


@cluster()
@pytest.mark.usefixtures("ours")
async def test_no_task_is_made_for_a_future(client: Client, scheduler: Scheduler) -> None:
    futures = client.map(add, range(100))
    before = len(asyncio.all_tasks())
    gathering = asyncio.ensure_future(client.gather(futures))
    waiting_for = asyncio.ensure_future(wait(futures))
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) < before + 10
    async with Worker(scheduler.address, nthreads=1):
        assert await gathering == list(range(100))
        assert (await waiting_for).done == set(futures)


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
    assert not state_of(never)._event._waiters
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


@gen_test()
async def test_a_state_that_a_thread_sets_meanwhile_is_gathered_once(plain_dask: None) -> None:
    states: list[Any] = [FutureState("x") for _ in range(3)]
    for state in states:
        event: Any = state_event.StateEvent()
        event._waiters = _SetMeanwhile(event)
        state._event = event
    # The second is woken as well, as if the thread had come a little later.
    late: Any = states[1]._event
    late._waiters.append = lambda waiter: (list.append(late._waiters, waiter), late.set())
    waits = [state_event.wait_for_state(state) for state in states]
    gathering = state_event._Gathering([_awaiting(each) for each in waits])
    assert await gathering.wait() == [None, None, None]
    # Callbacks that were left to the loop resume no coroutine that has ended.
    await asyncio.sleep(0)
    assert not any(event._waiters for event in (state._event for state in states))


async def _awaiting(generator: Any) -> None:
    await generator


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
