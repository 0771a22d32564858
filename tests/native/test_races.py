"""Threads that share native objects: nothing is lost, torn or handed out twice.

They switch often here, so that a Python with the interpreter's lock interleaves them, too. On a
free-threaded one they run at once; `make wheels` builds for those that are found.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from backhaul import Arena, Cancelled, Context

if TYPE_CHECKING:
    from tests.native.conftest import Connected

THREADS = 8
MESSAGES = 300
DEADLINE_S = 300.0


@pytest.fixture(autouse=True)
def switching_often() -> Iterator[None]:
    """Have the interpreter's lock, where there is one, change hands at every occasion."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def at_once(work: Callable[[int], Any]) -> list[Any]:
    """Run it on several threads, which begin together; gives what each returns."""
    barrier = threading.Barrier(THREADS)

    def begin(number: int) -> Any:
        barrier.wait(DEADLINE_S)
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return [each.result() for each in [pool.submit(begin, n) for n in range(THREADS)]]


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


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python is not free-threaded"
)
def test_importing_leaves_the_interpreter_free_threaded() -> None:
    assert not getattr(sys, "_is_gil_enabled")()  # noqa: B009 - not in every stub
