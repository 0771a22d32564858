"""Threads that share native objects: nothing is lost, torn or handed out twice.

They switch often here, so that a Python with the interpreter's lock interleaves them, too. On a
free-threaded one they run at once.
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from backhaul import Arena, BackhaulError, Cancelled, Context
from backhaul._loops import bridge_of
from backhaul._native import Lookout
from tests.threads import DEADLINE_S, THREADS, at_once, switching_often

if TYPE_CHECKING:
    from tests.native.conftest import Connected

MESSAGES = 300


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    with switching_often():
        yield


def test_threads_share_an_endpoint(lane: str, connected: Connected) -> None:
    def talk(number: int) -> list[bytes]:
        if number % 2:
            for i in range(MESSAGES):
                a.send(b"%d" % i * (1 + 5000 * (i % 3)), tag=number).wait(DEADLINE_S)
            return []
        received = []
        for _ in range(MESSAGES):
            buffer = bytearray(30_003)
            nbytes = b.recv(buffer, tag=number + 1).wait(DEADLINE_S).nbytes
            received.append(bytes(buffer[:nbytes]))
        return received

    with connected(lane) as (a, b):
        for received in at_once(talk)[::2]:
            assert received == [b"%d" % i * (1 + 5000 * (i % 3)) for i in range(MESSAGES)]


def test_threads_share_a_context_and_a_listener() -> None:
    with Context() as context, context.listen("127.0.0.1:0") as listener:

        def come_and_go(number: int) -> int:
            arrived = 0
            for _ in range(10):
                if number % 2:
                    with context.connect(listener.address).wait(DEADLINE_S) as near:
                        near.send_frames([b"%d" % number]).wait(DEADLINE_S)
                        context.flows()
                else:
                    with listener.accept().wait(DEADLINE_S) as far:
                        arrived += int(bytes(far.recv_frames().wait(DEADLINE_S)[0])) % 2
            return arrived

        assert sum(at_once(come_and_go)) == 10 * THREADS // 2


def test_threads_end_a_request_once(connected: Connected) -> None:
    def outcome(number: int) -> str:
        if number == 0:
            request.cancel()
        try:
            request.wait(DEADLINE_S)
        except Cancelled:
            return "cancelled"
        return "done"

    with connected("inproc") as (a, b):
        for i in range(20):
            request = b.recv(bytearray(8), tag=i)
            sending = a.send(b"12345678", tag=i)
            outcomes = set(at_once(outcome))
            assert len(outcomes) == 1
            assert request.done()
            if outcomes == {"cancelled"}:
                # It was not lost with the receive that was given up.
                assert b.recv(bytearray(8), tag=i).wait(DEADLINE_S).nbytes == 8
            sending.wait(DEADLINE_S)


def test_threads_take_from_an_arena_what_is_theirs_alone() -> None:
    arena = Arena()

    def fill(number: int) -> bool:
        whole = True
        for i in range(MESSAGES):
            memory = arena.take(1 << (16 + i % 3))
            memory[:] = bytes([number]) * memory.nbytes
            whole &= bytes(memory[:64]) == bytes([number]) * 64
            whole &= bytes(memory[-64:]) == bytes([number]) * 64
        return whole

    assert all(at_once(fill))


def test_a_close_ends_all_that_threads_wait_for(lane: str, connected: Connected) -> None:
    for round_number in range(10):
        posted = threading.Barrier(THREADS)

        def wait_or_close(
            number: int, closes_far: bool = round_number % 2 == 1, posted: Any = posted
        ) -> str:
            if number == 0:
                posted.wait(DEADLINE_S)
                (b if closes_far else a).close().wait(DEADLINE_S)
                return "closed"
            request: Any
            if number % 2:
                request = a.recv(bytearray(8), tag=number)
                posted.wait(DEADLINE_S)
            else:
                posted.wait(DEADLINE_S)
                try:
                    request = a.send_frames([bytes(100_000)])
                except BackhaulError:
                    return "closed"
            try:
                request.wait(DEADLINE_S)
            except (BackhaulError, OSError):
                return "closed"
            return "sent" if number % 2 == 0 else "received"

        with connected(lane) as (a, b):
            outcomes = at_once(wait_or_close)
            # No receive waits for ever, and none reports a message that has not come.
            assert set(outcomes[1::2]) == {"closed"}
            assert set(outcomes[::2]) <= {"closed", "sent"}


def test_threads_listen_and_are_listened_to_while_another_closes(connected: Connected) -> None:
    def meet_or_close(number: int) -> str:
        met = 0
        if number == 0:
            while not begun.wait(0.001):
                pass
            listener.close()
            context.close()
            return "closed"
        while True:
            try:
                request = context.connect(address) if number % 2 else listener.accept()
                with request.wait(DEADLINE_S):
                    met += 1
                    if met > 3:
                        begun.set()
            except (BackhaulError, OSError):
                return "ended"

    for _ in range(3):
        begun = threading.Event()
        context = Context(handshake_timeout_s=5)
        listener = context.listen("127.0.0.1:0")
        address = listener.address
        assert at_once(meet_or_close)[1:] == ["ended"] * (THREADS - 1)
        assert listener.closed()
        assert context.closed()


def test_an_event_loop_and_threads_share_an_endpoint(lane: str, connected: Connected) -> None:
    async def echo(messages: int) -> None:
        for _ in range(messages):
            buffer = bytearray(8)
            received = await b.recv(buffer, tag=0, mask=0)
            await b.send(buffer, tag=received.tag + 1000)

    def ask(number: int) -> int:
        if number == 0:
            asyncio.run(echo(MESSAGES * (THREADS - 1)))
            return MESSAGES
        right = 0
        for i in range(MESSAGES):
            buffer = bytearray(8)
            answer = a.recv(buffer, tag=1000 + number)
            a.send(b"%8d" % i, tag=number).wait(DEADLINE_S)
            answer.wait(DEADLINE_S)
            right += bytes(buffer) == b"%8d" % i
        return right

    with connected(lane) as (a, b):
        assert at_once(ask) == [MESSAGES] * THREADS


def test_one_thread_at_a_time_is_on_the_lookout_and_none_is_forgotten(
    lane: str, connected: Connected
) -> None:
    """Threads take turns there; one that leaves has looked, or has had the event loop called."""

    async def main() -> list[bytes]:
        lookout = Lookout(bridge_of(asyncio.get_running_loop()))
        lock = threading.Lock()
        seen: list[bytes] = []
        is_over = threading.Event()
        state: Any = {}

        def post() -> None:
            state["request"] = b.recv_frames()
            lookout.watch(state["request"])

        def look() -> None:
            with lock:
                while len(seen) < MESSAGES and state["request"].done():
                    seen.append(bytes(state["request"].result()[0]))
                    if len(seen) < MESSAGES:
                        post()
                if len(seen) == MESSAGES:
                    is_over.set()
                    lookout.rouse(or_next=True)

        def wait_and_look() -> None:
            while not is_over.is_set():
                try:
                    lookout.wait(state["request"], DEADLINE_S)
                except RuntimeError:
                    # Another thread is there.
                    is_over.wait(0.0005)
                else:
                    look()

        def send() -> None:
            for number in range(MESSAGES):
                a.send_frames([b"%d" % number]).wait(DEADLINE_S)

        post()
        with ThreadPoolExecutor(4) as pool:
            event_loop = asyncio.get_running_loop()
            work = [wait_and_look, wait_and_look, wait_and_look, send]
            waiting = [event_loop.run_in_executor(pool, each) for each in work]
            await asyncio.wait_for(asyncio.gather(*waiting), DEADLINE_S)
        return seen

    with connected(lane) as (a, b):
        assert asyncio.run(main()) == [b"%d" % number for number in range(MESSAGES)]


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python is not free-threaded"
)
def test_importing_leaves_the_interpreter_free_threaded() -> None:
    assert not getattr(sys, "_is_gil_enabled")()  # noqa: B009 - not in every stub
