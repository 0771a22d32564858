"""Event loops and threads that come and go, and what they leave behind: nothing."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import TYPE_CHECKING

import pytest
import uvloop

import backhaul.ucp as ucp
from tests.ucp.conftest import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ucp.conftest import Start


async def talk() -> None:
    """Use each kind of message once, as server and client of one loop."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(ep: ucp.Endpoint) -> None:
        await ep.recv(buffer := bytearray(3))
        await ep.send(buffer, tag="back")
        await ep.am_send(await ep.am_recv())
        await ep.send(buffer, tag=8, force_tag=True)
        await ep.close()
        ended.set_result(None)

    listener = ucp.create_listener(serve)
    ep = await ucp.create_endpoint("127.0.0.1", listener.port)
    await ep.send(b"abc")
    await ep.recv(buffer := bytearray(3), tag="back")
    await ep.am_send(b"active")
    assert await ep.am_recv() == b"active"
    await ucp.recv(buffer, tag=8)
    assert buffer == b"abc"
    await ended
    await ep.close()
    listener.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("resets", [True, False])
def test_loops_come_and_go(new_loop: Callable[[], asyncio.AbstractEventLoop], resets: bool) -> None:
    for _ in range(10):
        loop = new_loop()
        loop.run_until_complete(talk())
        assert not asyncio.all_tasks(loop)
        if resets:
            ucp.reset()
        loop.close()


def test_endpoints_outlive_the_loop_they_were_made_on() -> None:
    loops = [asyncio.new_event_loop() for _ in range(2)]
    peers: list[ucp.Endpoint] = []

    async def connect() -> ucp.Endpoint:
        listener = ucp.create_listener(peers.append)
        ep = await ucp.create_endpoint("127.0.0.1", listener.port)
        while not peers:
            await asyncio.sleep(0)
        # Waited for in vain on this loop
        for operation in (ep.am_recv(), ucp.recv(bytearray(1), tag=1), ep.recv(bytearray(1))):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(operation, 0.001)
        return ep

    async def use(ep: ucp.Endpoint) -> None:
        await peers[0].am_send(b"a")
        await peers[0].send(b"f", 1, True)
        await peers[0].send(b"t")
        assert await ep.am_recv() == b"a"
        for receive in (ucp.recv, ep.recv):
            await receive(bytearray(1), *([1] if receive == ucp.recv else []))

    ep = loops[0].run_until_complete(connect())
    loops[0].close()
    loops[1].run_until_complete(use(ep))
    loops[1].close()
    ep.abort()
    peers.pop().abort()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_receives_that_a_closed_loop_leaves_are_forgotten() -> None:
    async def leave() -> None:
        accepted: asyncio.Future[ucp.Endpoint] = asyncio.get_running_loop().create_future()
        listener = ucp.create_listener(accepted.set_result)
        ep = await ucp.create_endpoint("127.0.0.1", listener.port)
        await accepted
        receives = [
            asyncio.ensure_future(ep.recv(bytearray(1), tag=1, force_tag=True)),
            asyncio.ensure_future(ucp.recv(bytearray(1), tag=2)),
        ]
        await asyncio.sleep(0)
        for receive in receives:
            receive._log_destroy_pending = False  # type: ignore[attr-defined]

    for _ in range(2):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(leave())
        loop.close()
    context = ucp.core._get_ctx()
    assert all(len(waiting) == 1 for waiting in context.matcher._waiting.values())
    ucp.reset()
    assert not context.matcher._waiting
    assert not context.matcher.is_awaited_anywhere()


def test_threads_have_loops_of_their_own() -> None:
    failures: list[BaseException] = []
    tags = itertools.count(1)

    def run() -> None:
        try:
            for _ in range(5):
                asyncio.run(talk_apart())
        except BaseException as error:
            failures.append(error)

    async def talk_apart() -> None:
        # Forced tags are matched across all threads, so each has one of its own.
        mine = next(tags)
        peers: list[ucp.Endpoint] = []
        listener = ucp.create_listener(peers.append)
        ep = await ucp.create_endpoint("127.0.0.1", listener.port)
        receive = asyncio.create_task(ucp.recv(buffer := bytearray(2), tag=mine))
        await ep.send(mine.to_bytes(2, "little"), mine, True)
        await receive
        assert int.from_bytes(buffer, "little") == mine
        await ep.am_send(b"active")
        while not peers:
            await asyncio.sleep(0)
        assert await peers[0].am_recv() == b"active"
        await peers[0].close()
        await ep.close()
        listener.close()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)


def test_threads_that_begin_together_share_a_context() -> None:
    for _ in range(20):
        barrier, workers = threading.Barrier(4), set[int]()

        def begin(barrier: threading.Barrier = barrier, workers: set[int] = workers) -> None:
            barrier.wait(DEADLINE_S)
            workers.add(ucp.get_ucp_worker())

        threads = [threading.Thread(target=begin) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert workers == {ucp.get_ucp_worker()}
        ucp.reset()


def test_a_message_that_one_loop_takes_in_wakes_who_waits_on_another() -> None:
    ready = threading.Event()
    received: list[bytes] = []

    async def wait() -> None:
        receive = asyncio.create_task(ucp.recv(buffer := bytearray(5), tag=5))
        await asyncio.sleep(0)
        ready.set()
        await receive
        received.append(bytes(buffer))

    async def send() -> None:
        listener = ucp.create_listener(peers.append)
        ep = await ucp.create_endpoint("127.0.0.1", listener.port)
        await ep.send(b"hello", tag=5, force_tag=True)
        while not received:
            # Whichever thread looks first hands it over.
            ucp.progress()
            await asyncio.sleep(0)
        ep.abort()

    peers: list[ucp.Endpoint] = []
    waiting = threading.Thread(target=lambda: asyncio.run(wait()))
    waiting.start()
    assert ready.wait(DEADLINE_S)
    asyncio.run(send())
    waiting.join(DEADLINE_S)
    assert received == [b"hello"]
    peers.pop().abort()


def test_a_listener_may_be_made_before_the_loop() -> None:
    peers: list[ucp.Endpoint] = []
    address = ucp.get_worker_address()

    async def main() -> None:
        listener = ucp.create_listener(peers.append)
        ep = await ucp.create_endpoint_from_worker_address(address)
        await ep.send(b"x", 1, True)
        await ucp.recv(bytearray(1), tag=1)
        await ep.close()
        listener.close()

    asyncio.run(main())


def test_progress_and_fence_need_no_loop() -> None:
    ucp.progress()
    ucp.fence()
    ucp.continuous_ucx_progress()
    loop = asyncio.new_event_loop()
    ucp.continuous_ucx_progress(event_loop=loop)
    loop.run_until_complete(ucp.flush())
    loop.close()


@pytest.mark.parametrize("blocking_progress_mode", [True, False])
def test_init_takes_ucx_pys_parameters(blocking_progress_mode: bool) -> None:
    ucp.init(blocking_progress_mode=blocking_progress_mode, connect_timeout=3.0)
    with pytest.raises(RuntimeError, match="already"):
        ucp.init()
    asyncio.run(talk())


UNFINISHED = """
import asyncio, sys
import backhaul.ucp as ucp

async def main():
    async def serve(ep):
        await ep.am_recv()
    listener = ucp.create_listener(serve)
    ep = await ucp.create_endpoint("127.0.0.1", listener.port)
    tasks = [asyncio.ensure_future(o) for o in (ep.am_recv(), ucp.recv(bytearray(1), tag=1))]
    await asyncio.sleep(0.01)
    print("waiting", flush=True)
    # And so it ends, with everything open.

asyncio.run(main())
"""


def test_a_program_that_ends_with_everything_open_ends_without_a_word(start: Start) -> None:
    program = start(UNFINISHED)
    assert program.read() == "waiting"
    program.end()


FORKS = """
import asyncio, gc, os
import backhaul.ucp as ucp

async def connect():
    peers = []
    listener = ucp.create_listener(peers.append)
    ep = await ucp.create_endpoint("127.0.0.1", listener.port)
    while not peers:
        await asyncio.sleep(0)
    return listener, ep, peers.pop()

async def talk(a, b):
    await a.send(b"x")
    await b.recv(bytearray(1))
    await a.am_send(b"y")
    assert await b.am_recv() == b"y"

def in_child(a, b, listener):
    for use in (a.send(b"x"), a.recv(bytearray(1)), a.am_recv(), a.send(b"x", 1, True)):
        try:
            asyncio.run(use)
        except ucp.exceptions.UCXBaseException:
            continue
        raise AssertionError("used in a child")
    assert a.closed() and listener.closed()
    asyncio.run(a.close())
    b.abort()
    # The new process has a context of its own.
    mine = asyncio.run(connect())
    asyncio.run(talk(*mine[1:]))

loop = asyncio.new_event_loop()
listener, a, b = loop.run_until_complete(connect())
child = os.fork()
if child == 0:
    status = 1
    try:
        in_child(a, b, listener)
        del a, b, listener
        gc.collect()
        ucp.reset()
        status = 0
    finally:
        # The loop is the parent's too, and must not be closed.
        os._exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
# The child has not changed the connection of its parent.
loop.run_until_complete(talk(a, b))
print("talked", flush=True)
loop.close()
"""


def test_a_fork_begins_anew_and_leaves_its_parent_alone(start: Start) -> None:
    program = start(FORKS)
    assert program.read() == "talked"
    program.end()
