"""Small results that come with the report of the task: senders, receivers, and evictions."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import operator
import pickle
import weakref
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from distributed import (
    Client,
    Nanny,
    Scheduler,
    SchedulerPlugin,
    Status,
    Worker,
    as_completed,
    get_client,
    wait,
)
from distributed.client import FutureCancelledError
from distributed.utils_test import captured_logger, gen_cluster, gen_test, inc

import dask
from backhaul.dask.client import result_cache
from backhaul.dask.client.result_cache import HeldResults, held_by
from backhaul.dask.scheduler import inline_results
from backhaul.dask.serialize.inline_values import ITEMS_MAX, pickled_if_plain
from backhaul.dask.worker import inline_results as worker_results
from tests.dask.conftest import FORKED

if TYPE_CHECKING:
    from tests.dask.conftest import Start

ROOT = "distributed.comm.backhaul.small-results"
CLUSTER: dict[str, Any] = {
    "client": True,
    "scheduler_kwargs": {"protocol": "backhaul"},
    "worker_kwargs": {"protocol": "backhaul"},
}


class Requests(SchedulerPlugin):
    """Counts keys that were asked for at a scheduler, and sees what plugins see."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.keys: list[Any] = []
        self.fields: set[str] = set()
        gather = scheduler.handlers["gather"]

        async def counted(keys: Any, **options: Any) -> Any:
            self.keys.extend(keys)
            return await gather(keys, **options)

        scheduler.handlers["gather"] = counted
        scheduler.add_plugin(self, name="requests")

    def transition(self, key: Any, start: str, finish: str, *args: Any, **message: Any) -> None:
        self.fields |= message.keys()


def holding(client: Client) -> HeldResults:
    held = held_by(client)
    assert held is not None
    return held


# Which values


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        2**200,
        1.5,
        1j,
        "text",
        b"bytes",
        (1, (2.0, ("three", frozenset({4, None})))),
        np.float64(1.5),
        (np.datetime64("2026-11-22"), np.str_("x"), np.bool_(True)),
    ],
)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    pickled = pickled_if_plain(value, 8192)
    assert pickled is not None
    back = pickle.loads(pickled)
    assert type(back) is type(value)
    np.testing.assert_equal(back, value)


class Number(int):
    """Derived: whatever it does when it is pickled is not ours to run."""

    def __reduce__(self) -> Any:
        raise AssertionError("pickled")


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        set(),
        bytearray(b"x"),
        np.zeros(3),
        np.array(5.0),
        np.zeros((), dtype=[("a", int)])[()],
        (1, [2]),
        (np.zeros(1),),
    ],
)
def test_a_value_that_a_program_can_change_is_left_alone(value: Any) -> None:
    assert pickled_if_plain(value, 8192) is None


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Number(1),
        (Number(1),),
        operator.add,
        int,
        "x" * 9000,
        ("x" * 5000, "x" * 5000),
        tuple(range(ITEMS_MAX + 1)),
        np.zeros(10_000),
        np.array([object()]),
        np.zeros(3, dtype=[("a", int), ("b", object)]),
        np.ma.masked_array([1, 2], [True, False]),
        pytest.param(2**80_000, id="number"),
    ],
)
def test_large_or_mutable_results_are_left_alone(value: Any) -> None:
    assert pickled_if_plain(value, 8192) is None


# On a cluster


@gen_cluster(nthreads=[("127.0.0.1", 1)] * 2, **CLUSTER)
async def test_results_come_without_being_asked_for(
    client: Client, scheduler: Scheduler, *workers: Worker
) -> None:
    requests = Requests(scheduler)
    held = holding(client)
    assert await client.submit(inc, 1) == 2
    futures = client.map(inc, range(10))
    assert await client.gather(futures) == list(range(1, 11))
    completed: Any = as_completed(futures, with_results=True)
    assert {result async for _, result in completed} == set(range(1, 11))
    assert await client.gather({"a": futures[0], "b": [futures[1]]}) == {"a": 1, "b": [2]}
    assert requests.keys == []
    assert len(held) == 10
    # Large ones are asked for, and so is what is not plain.
    large = client.submit(np.zeros, 10_000, key="large")
    other = client.submit(operator.methodcaller, "lower", key="other")
    found = await client.gather([futures[3], large, other])
    assert (found[0], found[1].nbytes, found[2]("A")) == (4, 80_000, "a")
    assert sorted(requests.keys) == ["large", "other"]
    # The message is Dask's again before a plugin sees it.
    assert "value" not in requests.fields
    assert "nbytes" in requests.fields


class Made:
    """A class that was made while the program ran, which may be made again."""


@gen_cluster(nthreads=[("127.0.0.1", 1)] * 2, **CLUSTER)
async def test_futures_have_the_types_of_their_results(
    client: Client, scheduler: Scheduler, *_: Worker
) -> None:
    result_cache._classes.clear()
    for number in range(3):
        for kind in (int, dict, np.float64, Made):
            future = client.submit(kind, pure=False)
            await wait(future)
            assert future.type is kind, (number, kind)
    assert {int, dict} <= set(result_cache._classes.values())
    assert Made not in result_cache._classes.values()


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_each_look_gives_a_value_of_its_own(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    future: Any = client.submit(tuple, [1, 2])
    assert await future == (1, 2)
    assert (await future) is not (await future)
    assert len(holding(client)) == 1


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_a_result_that_changes_on_its_worker_is_fetched_with_the_change(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    assert await client.submit(inc, 1) == 2
    makers: list[Any] = [list, bytearray, lambda: np.zeros(3), lambda: ([0],)]
    futures: Any = [client.submit(make, pure=False) for make in makers]
    await wait(futures)
    for future in futures:
        # No message tells the client of this.
        change(worker.data[future.key])
    assert await futures[0] == [1]
    assert await futures[1] == b"\x01"
    assert (await futures[2]).tolist() == [1, 1, 1]
    assert await futures[3] == ([0, 1],)


def change(value: Any) -> None:
    if isinstance(value, np.ndarray):
        value += 1
    else:
        (value[0] if isinstance(value, tuple) else value).append(1)


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_a_result_goes_with_its_last_future(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    held = holding(client)
    future = client.submit(inc, 1)
    twin = client.submit(inc, 1)
    assert await future == 2
    future.release()
    await client.submit(inc, 5)
    assert await twin == 2
    assert held.value_of(twin.key) == (2,)
    key = twin.key
    twin.release()
    while key in client.futures:
        await asyncio.sleep(0.001)
    assert held.value_of(key) == ()
    assert len(held) == held.nbytes == 0


@gen_cluster(
    nthreads=[("127.0.0.1", 1)], config={f"{ROOT}.kept": "1 kB", f"{ROOT}.size": 600}, **CLUSTER
)
async def test_no_more_is_held_than_was_said(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    requests = Requests(scheduler)
    futures = client.map(lambda i: bytes([i]) * 300, range(10))
    await wait(futures)
    held = holding(client)
    assert 0 < len(held) < 10
    assert held.nbytes <= 1000
    assert await client.gather(futures) == [bytes([i]) * 300 for i in range(10)]
    assert len(requests.keys) == 10 - len(held)
    assert len(await client.submit(bytes, 700, key="too large")) == 700
    assert requests.keys[-1] == "too large"


@pytest.mark.parametrize("slow", ["client", "scheduler"])
def test_a_peer_that_does_not_keep_up_is_sent_no_results(
    slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        requests = Requests(scheduler)
        assert await client.submit(inc, 1) == 2
        stream: Any = (
            scheduler.client_comms[client.id] if slow == "client" else worker.batched_stream
        )
        # It looks as if much were waiting there, also when it has sent something.
        monkeypatch.setattr(stream, "__class__", crowded(type(stream)))
        stream.buffer = stream.__dict__.pop("buffer")
        assert await client.submit(inc, 2, key="asked") == 3
        assert requests.keys == ["asked"]

    run()


def crowded(kind: type[Any]) -> type[Any]:
    """Make a class of streams of which each buffer seems to hold much."""

    def set_buffer(stream: Any, messages: list[Any]) -> None:
        vars(stream)["_crowded"] = Crowded(messages)

    buffer = property(lambda stream: vars(stream)["_crowded"], set_buffer)
    return type("CrowdedStream", (kind,), {"buffer": buffer})


class Crowded(list[Any]):
    """A buffer that seems to hold much."""

    def __len__(self) -> int:
        return inline_results._WAITING_MAX + 1


@gen_cluster(nthreads=[("127.0.0.1", 1)] * 2, **CLUSTER)
async def test_every_client_that_wants_it_gets_it(
    client: Client, scheduler: Scheduler, *workers: Worker
) -> None:
    requests = Requests(scheduler)
    async with Client(scheduler.address, asynchronous=True) as other:
        gate = client.submit(inc, 0, key="gate")
        futures = [each.submit(inc, gate_key, key="one") for each, gate_key in [(client, 1)]]
        futures.append(other.submit(inc, 1, key="one"))
        assert [await each for each in futures] == [2, 2]
        assert await gate == 1
        assert len(holding(client)) == 2
        # The second may have come when it was there already: then it has asked.
        assert len(holding(other)) + len(requests.keys) == 1


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_errors_cancellation_and_retries_are_dasks(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    held = holding(client)
    failing = client.submit(operator.truediv, 1, 0)
    with pytest.raises(ZeroDivisionError):
        await failing
    assert await client.gather([failing, client.submit(inc, 1)], errors="skip") == [2]
    flaky = client.submit(fails_once, str(scheduler.id), retries=1)
    assert await flaky == "second"
    assert held.value_of(flaky.key) == ("second",)
    await client.cancel([flaky])
    assert held.value_of(flaky.key) == ()
    with pytest.raises(FutureCancelledError):
        await flaky


_seen: set[str] = set()


def fails_once(name: str) -> str:
    if name not in _seen:
        _seen.add(name)
        raise RuntimeError("first")
    return "second"


_counter = itertools.count()


def next_number(_: Any = None) -> int:
    return next(_counter)


@gen_cluster(nthreads=[("127.0.0.1", 1)] * 2, **CLUSTER)
async def test_a_result_that_is_lost_is_computed_anew(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker
) -> None:
    held = holding(client)
    future = client.submit(next_number, pure=False, workers=[a.address], allow_other_workers=True)
    first = await future
    await a.close()
    while future.status == "finished" and held.value_of(future.key) == (first,):
        await asyncio.sleep(0.001)
    assert await future == first + 1
    assert held.value_of(future.key) == (first + 1,)


@gen_cluster(nthreads=[("127.0.0.1", 1)], Worker=Nanny, config=FORKED, **CLUSTER)
async def test_after_a_restart_nothing_is_held(
    client: Client, scheduler: Scheduler, nanny: Nanny
) -> None:
    future = client.submit(inc, 1)
    assert await future == 2
    await client.restart()
    assert len(holding(client)) == 0
    assert await client.submit(inc, 1) == 2
    assert future.cancelled()


class Counter:
    """An actor."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


@gen_cluster(nthreads=[("127.0.0.1", 2)], **CLUSTER)
async def test_actors_and_clients_in_tasks_are_dasks(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    counter = await client.submit(Counter, actor=True)
    assert await counter.add() == 1
    assert await counter.add() == 2

    def inner() -> Any:
        return get_client().submit(inc, 41).result()

    assert await client.submit(inner) == 42


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_a_client_with_serializers_of_its_own_asks(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    requests = Requests(scheduler)
    async with Client(
        scheduler.address, asynchronous=True, deserializers=["dask", "pickle"]
    ) as other:
        assert held_by(other) is None
        assert await other.submit(inc, 1, key="asked") == 2
        assert requests.keys == ["asked"]


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_strange_results_are_left_out(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    requests = Requests(scheduler)
    held = holding(client)
    for value in (7, "text", b"x" * 100_000, [b"x"]):
        finished = {**FINISHED, "value": value}
        scheduler.stream_handlers["task-finished"](worker=worker.address, **finished)
    held.handle_result(key="unknown", value=b"x")
    held.handle_key_in_memory(key="unknown")
    assert len(held) == 0
    # Damaged on its way: fetched.
    future = client.submit(inc, 1, key="damaged")
    await wait(future)
    held._held["damaged"] = b"no pickle"
    assert await future == 2
    assert requests.keys == ["damaged"]
    assert len(held) == 0


FINISHED: dict[str, Any] = {
    "key": "nobody's",
    "run_id": 1,
    "nbytes": 1,
    "type": b"",
    "typename": "int",
    "metadata": {},
    "thread": 1,
    "startstops": [],
    "stimulus_id": "test",
    "status": "OK",
}


# Clients that hold it, and those that do not


@contextlib.asynccontextmanager
async def mixed(*, scheduler: bool, worker: bool, client: bool) -> AsyncIterator[Any]:
    """Open a cluster of which each part has small results or has not."""
    key = f"{ROOT}.enabled"
    host = "backhaul://127.0.0.1"
    async with contextlib.AsyncExitStack() as stack:
        with dask.config.set({key: scheduler}):
            s = await stack.enter_async_context(
                Scheduler(host=host, dashboard=False, dashboard_address=":0")
            )
        with dask.config.set({key: worker}):
            w = await stack.enter_async_context(Worker(s.address, nthreads=1))
        with dask.config.set({key: client}):
            c = await stack.enter_async_context(Client(s.address, asynchronous=True))
        yield s, w, c


@pytest.mark.parametrize("scheduler", [True, False])
@pytest.mark.parametrize("worker", [True, False])
@pytest.mark.parametrize("client", [True, False])
@gen_test()
async def test_in_any_mixture_results_are_right(
    scheduler: bool, worker: bool, client: bool
) -> None:
    async with mixed(scheduler=scheduler, worker=worker, client=client) as (s, _, c):
        requests = Requests(s)
        assert (inline_results.installed(s) is not None) == scheduler
        assert (held_by(c) is not None) == (scheduler and client)
        futures = c.map(inc, range(5))
        assert await c.submit(sum, futures) == 15
        assert await c.gather(futures) == list(range(1, 6))
        assert await c.submit(inc, 1, key="again") == 2
        everybody = scheduler and worker and client
        assert ("again" in requests.keys) == (not everybody)


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_workers_send_no_more_results_once_no_client_holds_them(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    carrier = inline_results.installed(scheduler)
    assert carrier is not None
    async with Client(scheduler.address, asynchronous=True) as other:
        assert await other.submit(inc, 1) == 2
        assert worker_results._asked[worker.address][0] == carrier.bytes_max
        await client.close()
        assert await other.submit(inc, 2) == 3
    with dask.config.set({f"{ROOT}.enabled": False}):
        async with Client(scheduler.address, asynchronous=True) as plain:
            while worker.address in worker_results._asked:
                assert await plain.submit(inc, 1, pure=False) == 2
            assert await plain.submit(inc, 1, pure=False) == 2
        async with Client(scheduler.address, asynchronous=True) as plain:
            held = result_cache.held_by(plain)
            assert held is None


@gen_cluster(nthreads=[("127.0.0.1", 1)] * 2, **CLUSTER)
async def test_streams_of_peers_that_left_are_released(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker
) -> None:
    async with Client(scheduler.address, asynchronous=True) as other:
        assert await other.gather(other.map(inc, range(9))) == list(range(1, 10))
        gone = [
            weakref.ref(scheduler.stream_comms[a.address]),
            weakref.ref(scheduler.client_comms[other.id]),
        ]
    # Of a message that comes too late Dask logs an error; pytest keeps what is logged, with the
    # stream in the error's frames.
    with captured_logger("distributed", propagate=False):
        await a.close()
        assert await client.submit(inc, 1) == 2
    for _ in range(100):
        gc.collect()
        if not any(one() for one in gone):
            break
        await asyncio.sleep(0.05)
    assert [one() for one in gone] == [None, None]


@gen_test()
async def test_a_worker_gets_no_request_of_one_that_had_its_address() -> None:
    key = f"{ROOT}.enabled"
    async with Scheduler(
        host="backhaul://127.0.0.1", dashboard=False, dashboard_address=":0"
    ) as scheduler:
        first = await Worker(scheduler.address, nthreads=1, host="127.0.0.1")
        async with Client(scheduler.address, asynchronous=True) as client:
            assert await client.submit(inc, 1) == 2
            carrier = inline_results.installed(scheduler)
            assert carrier is not None
            asked = worker_results._asked[first.address]
        await first.close()
        # The request to it is not withdrawn, and it is not collected yet.
        assert worker_results._asked[first.address] is asked
        port = first.port
        with dask.config.set({key: False}):
            second = await Worker(scheduler.address, nthreads=1, host="127.0.0.1", port=port)
            plain = await Client(scheduler.address, asynchronous=True)
        async with second, plain:
            assert second.address == first.address
            assert await plain.gather(plain.map(inc, range(5))) == list(range(1, 6))
            # Nor if it sends results that were not asked for.
            carrier._ask(second.address, 0)
            assert await plain.submit(inc, 7) == 8
            assert second.status == Status.running


CLIENT = """
import operator, sys
from distributed import Client
with Client(sys.argv[1]) as client:
    address = list(client.nthreads())
    assert len(address) == 2, address
    for worker in address:
        future = client.submit(operator.add, 1, 2, workers=[worker], pure=False)
        assert future.result(60) == 3
        futures = client.map(abs, range(-9, 0), workers=[worker], pure=False)
        assert client.gather(futures) == list(range(9, 0, -1))
    shown = "backhaul" in sys.modules, getattr(client, "_backhaul_held_results", None) is not None
    print("done", *shown, flush=True)
"""


SCHEDULER = ["-m", "dask", "scheduler", "--host", "127.0.0.1", "--no-dashboard", "--no-show"]
WORKER = ["-m", "dask", "worker", "--host", "127.0.0.1", "--no-nanny", "--no-dashboard"]


def test_peers_without_backhaul_are_served_beside_others(start: Start) -> None:
    """Processes: a scheduler for both protocols; a worker and a client of each kind."""
    scheduler = start(*SCHEDULER, "--protocol", "tcp,backhaul", "--port", "0,0")
    addresses = [
        scheduler.wait_for(rf"Scheduler at:\s+({protocol}://\S+)")
        for protocol in ("tcp", "backhaul")
    ]
    workers = [start(*WORKER, "--nthreads", "1", address) for address in addresses]
    for worker in workers:
        worker.wait_for(r"(Registered to:)")
    clients = [start("-c", CLIENT, address) for address in addresses]
    shown = [client.wait_for(r"done (.*)") for client in clients]
    assert [client.wait() for client in clients] == [0, 0]
    assert shown == ["False False", "True True"]
