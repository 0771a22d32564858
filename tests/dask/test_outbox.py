"""Messages and releases of a client: in order, nothing lost, in few callbacks."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from distributed import Client, LocalCluster, Scheduler, Worker
from distributed.client import ClosedClientError
from distributed.utils_test import gen_cluster, gen_test
from tornado.ioloop import IOLoop

from backhaul.dask.client.outgoing_queue import Outbox, outbox_of
from backhaul.dask.compat import activation
from backhaul.dask.compat.operations import RELEASE_EACH

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually

HOST = "backhaul://127.0.0.1"


class Loop:
    """An event loop that runs its callbacks on demand."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []

    def add_callback(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def call_later(self, _: float, callback: Callable[[], None]) -> None:
        self.later.append(callback)

    def pass_time(self) -> None:
        later, self.later = self.later, []
        for callback in later:
            callback()

    def turn(self) -> int:
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()
        return len(callbacks)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def outbox(loop: Loop) -> Outbox:
    return Outbox(loop)  # type: ignore[arg-type]


def increment(number: int) -> int:
    return number + 1


def test_calls_are_made_in_order_in_one_callback(loop: Loop, outbox: Outbox) -> None:
    made: list[int] = []
    for number in range(10):
        outbox.add(made.append, number)
    assert made == []
    assert loop.turn() == 1
    assert made == list(range(10))
    assert loop.turn() == 0


class Sender:
    """A client whose scheduler offers some operations, and what it has sent."""

    def __init__(self, *offered: str) -> None:
        self.sent: list[Any] = []
        comm = SimpleNamespace(remote_info={"backhaul": {"offers": list(offered)}})
        self.scheduler_comm = SimpleNamespace(comm=comm)

    def send(self, message: Any) -> None:
        self.sent.append(message)


def release(*keys: str) -> dict[str, Any]:
    return {"op": "client-releases-keys", "keys": list(keys), "client": "me"}


def test_releases_that_follow_each_other_are_one_message(loop: Loop, outbox: Outbox) -> None:
    ours, elsewhere = Sender(RELEASE_EACH), Sender(RELEASE_EACH)
    graph = {"op": "update-graph", "keys": ["f"]}
    messages = [release("a"), release("b"), graph, release("f"), release("c", "d"), release("e")]
    for message in messages:
        outbox.add(ours.send, message)
    outbox.add(elsewhere.send, release("g"))
    assert loop.turn() == 1
    assert ours.sent == [release("a", "b"), graph, release("f"), release("c", "d"), release("e")]
    assert elsewhere.sent == [release("g")]
    # No message of the sender's was changed.
    assert messages[0] == release("a")
    assert loop.turn() == 0


def test_so_many_releases_are_no_more_than_a_message_may_have(loop: Loop, outbox: Outbox) -> None:
    ours = Sender(RELEASE_EACH)
    for number in range(1000):
        outbox.add(ours.send, release(str(number)))
    assert loop.turn() == 1
    assert [len(message["keys"]) for message in ours.sent] == [256, 256, 256, 232]
    assert [key for message in ours.sent for key in message["keys"]] == [
        str(n) for n in range(1000)
    ]


def test_releases_are_not_joined_for_a_scheduler_that_does_not_offer_to_part_them(
    loop: Loop, outbox: Outbox
) -> None:
    dasks = Sender()
    for key in "abc":
        outbox.add(dasks.send, release(key))
    assert loop.turn() == 1
    assert dasks.sent == [release("a"), release("b"), release("c")]


def test_calls_added_by_a_call_come_after_the_others(loop: Loop, outbox: Outbox) -> None:
    made: list[str] = []

    def release(name: str) -> None:
        made.append(f"release {name}")
        outbox.add(made.append, f"send release {name}")

    outbox.add_release(release, "a")
    outbox.add(made.append, "send graph")
    outbox.add_release(release, "b")
    assert loop.turn() == 1
    assert made[:3] == ["release a", "send graph", "release b"]
    assert made[3:] == ["send release a", "send release b"]
    assert loop.turn() == 0


def test_a_call_that_goes_on_adding_leaves_the_loop_to_others(loop: Loop, outbox: Outbox) -> None:
    made: list[int] = []

    def again(number: int) -> None:
        made.append(number)
        outbox.add(again, number + 1)

    outbox.add(again, 0)
    for turns in range(1, 4):
        assert loop.turn() == 1
        assert made == list(range(2 * turns))


def test_a_release_holds_up_no_message_of_a_thread_what_it_has_to_say_does(
    loop: Loop, outbox: Outbox
) -> None:
    held_up: list[bool] = []

    def look(_: object) -> None:
        held_up.append(outbox.holds_up())

    def release(key: str) -> None:
        look(key)
        outbox.add(look, f"send {key}")
        look(key)

    outbox.add_release(release, "a")
    assert not outbox.holds_up()
    loop.turn()
    assert held_up == [False, True, True]
    assert not outbox.holds_up()


def test_while_threads_do_without_the_loop_releases_do_not_wake_it(
    loop: Loop, outbox: Outbox
) -> None:
    made: list[int] = []
    outbox.look_often()
    loop.turn()
    outbox.add_release(made.append, 1)
    outbox.add_release(made.append, 2)
    assert loop.callbacks == []
    loop.pass_time()
    assert made == [1, 2]
    # A message that cannot wait wakes it, and takes along those that can.
    outbox.add_release(made.append, 3)
    outbox.add(made.append, 4)
    loop.turn()
    assert made == [1, 2, 3, 4]
    # The timer ends once it has not been of use.
    while loop.later:
        loop.pass_time()
    outbox.add_release(made.append, 5)
    assert loop.turn() == 1
    assert made == [1, 2, 3, 4, 5]


def test_a_call_that_raises_is_logged_and_the_others_are_made(
    loop: Loop, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[int] = []

    def fail(_: int) -> None:
        raise ZeroDivisionError("on purpose")

    outbox.add(fail, 1)
    outbox.add(made.append, 2)
    loop.turn()
    assert made == [2]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("tornado.application", logging.ERROR)
    assert record.getMessage().startswith("Exception in callback functools.partial(")


def test_an_interrupt_loses_nothing(loop: Loop, outbox: Outbox) -> None:
    made: list[int] = []

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    outbox.add(interrupt, 1)
    outbox.add(made.append, 2)
    with pytest.raises(KeyboardInterrupt):
        loop.turn()
    assert made == []
    loop.turn()
    assert made == [2]


def test_a_loop_that_takes_nothing_is_asked_again(outbox: Outbox, loop: Loop) -> None:
    made: list[int] = []
    del loop.callbacks
    with pytest.raises(AttributeError):
        outbox.add(made.append, 1)
    loop.callbacks = []
    outbox.add(made.append, 2)
    loop.turn()
    assert made == [1, 2]


@gen_test()
async def test_many_threads_may_add_while_calls_are_made(eventually: Eventually) -> None:
    outbox = Outbox(IOLoop.current())
    made: list[tuple[int, int]] = []
    barrier = threading.Barrier(4)

    def add(thread: int) -> None:
        barrier.wait(300)
        for number in range(2000):
            outbox.add(made.append, (thread, number))

    with ThreadPoolExecutor(4) as pool:
        adding = [asyncio.wrap_future(pool.submit(add, thread)) for thread in range(4)]
        await asyncio.gather(*adding)
    await eventually(lambda: len(made) == 8000)
    for thread in range(4):
        assert [number for t, number in made if t == thread] == list(range(2000))


# Clients


@pytest.fixture(params=["backhaul", "dask"])
def is_ours(request: pytest.FixtureRequest, plain_dask: None) -> bool:
    """Run the test our way and Dask's."""
    ours: bool = request.param == "backhaul"
    if ours:
        activation.install()
    return ours


def cluster(**arguments: Any) -> Callable[[Any], Any]:
    return gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], **arguments)


@cluster()
async def test_dropped_futures_are_forgotten(
    client: Client, scheduler: Scheduler, worker: Worker, is_ours: bool, eventually: Eventually
) -> None:
    futures = client.map(increment, range(100))
    twice = futures[:1]
    await client.gather(futures)
    kept = futures.pop()
    futures.clear()
    await eventually(lambda: len(scheduler.tasks) == 2)
    assert set(client.futures) == {kept.key, twice[0].key}
    twice.clear()
    await eventually(lambda: set(scheduler.tasks) == {kept.key})
    assert await kept == 100
    assert ("_backhaul_outbox" in vars(client)) == is_ours


@cluster()
async def test_released_twice_is_released_once(
    client: Client, scheduler: Scheduler, worker: Worker, is_ours: bool, eventually: Eventually
) -> None:
    future = client.submit(increment, 1)
    other = client.submit(increment, 1)
    future.release()
    future.release()
    assert await other == 2
    assert client.refcount[other.key] == 1
    other.release()
    await eventually(lambda: not scheduler.tasks)
    assert not client.refcount


@cluster()
async def test_a_client_with_its_own_way_to_send_releases_as_dask_does(
    client: Client,
    scheduler: Scheduler,
    worker: Worker,
    plain_dask: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    activation.install()
    send: Any = client._send_to_scheduler
    monkeypatch.setattr(client, "_send_to_scheduler", lambda msg: send(msg))
    future = client.submit(increment, 1)
    assert await future == 2
    added: list[Any] = []
    monkeypatch.setattr(Outbox, "add", lambda *call: added.append(call))
    future.release()
    assert added == []


def test_a_dependency_may_be_dropped_once_it_is_used(is_ours: bool) -> None:
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as local,
        Client(local, set_as_default=False) as client,
    ):
        last = []
        for number in range(200):
            future = client.submit(increment, number, pure=False)
            dropped = client.submit(increment, number, pure=False)
            future = client.submit(increment, future, pure=False)
            del dropped
            last.append(future)
        assert client.gather(last) == [number + 2 for number in range(200)]


@gen_test()
async def test_a_closed_client_sends_nothing(is_ours: bool, eventually: Eventually) -> None:
    async with Scheduler(dashboard_address=":0", port=0) as scheduler:
        client: Client = await as_client(Client(scheduler.address, asynchronous=True))
        future = client.submit(increment, 1)
        await client.close()
        with pytest.raises(ClosedClientError, match="Can't send x message"):
            client._send_to_scheduler({"op": "x"})
        future.release()
        del future
        await eventually(lambda: not scheduler.clients or len(scheduler.clients) == 1)


async def as_client(client: Awaitable[Client]) -> Client:
    return await client


@cluster()
async def test_each_client_has_one_outbox(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    assert outbox_of(client) is outbox_of(client)
    async with Client(scheduler.address, asynchronous=True) as other:
        assert outbox_of(other) is not outbox_of(client)
