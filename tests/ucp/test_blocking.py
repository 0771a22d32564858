"""The face that blocks."""

from __future__ import annotations

import asyncio
import random
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

import backhaul.ucp as ucp
from backhaul.ucp import blocking
from backhaul.ucp.exceptions import (
    UCXCanceled,
    UCXCloseError,
    UCXConnectionReset,
    UCXError,
    UCXMsgTruncated,
)
from tests.ucp.conftest import DEADLINE_S

if TYPE_CHECKING:
    from tests.ucp.conftest import Start


@contextmanager
def connected() -> Iterator[tuple[blocking.Endpoint, blocking.Endpoint]]:
    with blocking.create_listener() as listener:
        a = blocking.create_endpoint("127.0.0.1", listener.port, timeout=DEADLINE_S)
        b = listener.accept(timeout=DEADLINE_S)
    yield a, b
    a.abort()
    b.abort()


@contextmanager
def meanwhile(*calls: Callable[[], object]) -> Iterator[None]:
    """Make calls in a thread, each of which must succeed."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for call in calls:
                call()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert not failures


@pytest.mark.parametrize("nbytes", [0, 8, 100_000, 3 << 20])
def test_every_kind_of_message(transport: str, nbytes: int) -> None:
    message, buffer = random.Random(nbytes).randbytes(nbytes), bytearray(nbytes)
    with (
        connected() as (a, b),
        meanwhile(
            lambda: a.send(message, timeout=DEADLINE_S),
            lambda: a.send(message, tag="t"),
            lambda: a.send(message, tag=3, force_tag=True),
            lambda: a.send(message, tag=4, force_tag=True),
            lambda: a.am_send(message),
            lambda: a.send_obj(message),
        ),
    ):
        receives: list[Callable[[], None]] = [
            partial(b.recv, buffer, timeout=DEADLINE_S),
            partial(b.recv, buffer, tag="t"),
            partial(b.recv, buffer, tag=3, force_tag=True),
            partial(blocking.recv, buffer, tag=4, timeout=DEADLINE_S),
        ]
        for receive in receives:
            buffer[:] = bytes(nbytes)
            receive()
            assert buffer == message
        assert b.am_recv(timeout=DEADLINE_S) == message
        assert b.recv_obj(timeout=DEADLINE_S) == message


def test_time_runs_out_and_nothing_is_taken() -> None:
    with connected() as (a, b):
        buffer = bytearray(1)
        receives: list[Callable[[], object]] = [
            partial(b.recv, buffer, timeout=0.005),
            partial(b.recv, buffer, tag=3, force_tag=True, timeout=0.005),
            partial(b.am_recv, timeout=0.005),
        ]
        for receive in receives:
            with pytest.raises(TimeoutError):
                receive()
        a.send(b"1")
        a.send(b"2", tag=3, force_tag=True)
        a.am_send(b"3")
        b.recv(buffer)
        assert buffer == b"1"
        b.recv(buffer, tag=3, force_tag=True)
        assert buffer == b"2"
        assert b.am_recv() == b"3"


def test_an_object_whose_size_has_come_is_left_to_the_next_receive() -> None:
    with connected() as (a, b):
        a.send(struct.pack("=Q", 3))
        with pytest.raises(TimeoutError):
            b.recv_obj(timeout=0.05)
        a.send(b"abc")
        with pytest.raises(MemoryError):
            b.recv_obj(allocator=fail)
        assert b.recv_obj() == b"abc"


def fail(nbytes: int) -> bytearray:
    raise MemoryError(nbytes)


@pytest.mark.parametrize("closes", [True, False])
def test_peers_that_were_not_accepted_end_with_their_listener(closes: bool) -> None:
    listener = blocking.create_listener()
    with blocking.create_endpoint("127.0.0.1", listener.port) as ep:
        while not listener._context.matcher.has(listener._key):
            ucp.progress()
        if closes:
            listener.close()
        del listener
        with pytest.raises((UCXCanceled, UCXConnectionReset)):
            ep.recv(bytearray(1), timeout=DEADLINE_S)
    ucp.reset()


def test_a_program_ends_without_a_word_while_threads_wait(start: Start) -> None:
    program = start(
        """
        import threading, time
        from backhaul.ucp import blocking
        listener = blocking.create_listener()
        threading.Thread(target=listener.accept, daemon=True).start()
        threading.Thread(target=blocking.recv, args=(bytearray(1), 1), daemon=True).start()
        while len(blocking.core._ctx.matcher._waiting) < 2:
            time.sleep(0.001)
        # On their way into the wait they run Python below native frames, through which CPython
        # before 3.14 cannot end a daemon thread.
        time.sleep(0.5)
        """
    )
    program.end()


def test_the_loop_of_a_thread_that_ended_may_be_collected_within_another(start: Start) -> None:
    program = start(
        """
        import asyncio, gc, threading
        from backhaul.ucp import blocking

        def listen():
            listener = blocking.create_listener()
            try:
                listener.accept(timeout=0.001)
            except TimeoutError:
                pass
            # Only the collector ends the loop of this thread.
            blocking._loops.loop.itself = blocking._loops.loop

        gc.disable()
        thread = threading.Thread(target=listen)
        thread.start()
        thread.join()

        async def collect():
            gc.collect()

        asyncio.run(collect())
        print("collected")
        """
    )
    assert program.read() == "collected"
    program.end()


def test_a_fork_leaves_the_loops_of_its_parent_alone(start: Start) -> None:
    program = start(
        """
        import os, signal, sys, threading, time
        from backhaul.ucp import blocking

        def accept(listener, timeout=0.001):
            try:
                listener.accept(timeout=timeout)
            except TimeoutError:
                pass

        def waits(listener):
            return listener._key in listener._context.matcher._waiting

        listener = blocking.create_listener()
        accept(listener)
        other = blocking.create_listener()
        thread = threading.Thread(target=accept, args=(other, 0.5))
        thread.start()
        while not waits(other):
            time.sleep(0.001)
        if (child := os.fork()) == 0:
            with blocking.create_listener() as another:
                accept(another)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        thread.join()

        def interrupt():
            while not waits(listener):
                time.sleep(0.001)
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            accept(listener, 20)
            print("was not woken")
        except KeyboardInterrupt:
            print("was woken")
        """
    )
    assert program.read() == "was woken"
    program.end()


def test_a_listener_accepts_peers_in_turn_and_stops() -> None:
    with blocking.create_listener() as listener:
        with pytest.raises(TimeoutError):
            listener.accept(timeout=0.005)
        ours = [blocking.create_endpoint("127.0.0.1", listener.port) for _ in range(3)]
        theirs = [listener.accept(timeout=DEADLINE_S) for _ in range(3)]
        for i, ep in enumerate(ours):
            ep.send(bytes([i]))
        received = []
        for ep in theirs:
            ep.recv(buffer := bytearray(1), timeout=DEADLINE_S)
            received.append(buffer[0])
        assert sorted(received) == [0, 1, 2]
        stopping = threading.Timer(0.01, listener.close)
        stopping.start()
        with pytest.raises(UCXCloseError, match=str(listener.port)):
            listener.accept(timeout=DEADLINE_S)
        stopping.join()
    with pytest.raises(UCXCloseError):
        listener.accept()
    with pytest.raises(ucp.exceptions.UCXUnreachable):
        blocking.create_endpoint("127.0.0.1", listener.port)
    for ep in (*ours, *theirs):
        ep.abort()


def test_errors_are_those_of_the_other_face() -> None:
    with connected() as (a, b):
        a.send(b"abc")
        with pytest.raises(UCXMsgTruncated, match="length mismatch"):
            b.recv(bytearray(4))
        a.send(b"abc")
        with pytest.raises(UCXError, match="Message truncated"):
            b.recv(bytearray(2))
        with pytest.raises(TypeError, match="hashable"):
            a.send(b"", tag=[])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="int"):
            a.send(3)
        ending = threading.Timer(0.01, a.close)
        ending.start()
        with pytest.raises(UCXCanceled):
            b.recv(bytearray(1), timeout=DEADLINE_S)
        ending.join()
        with pytest.raises(UCXCloseError):
            b.send(b"x")
        assert a.closed()
        assert b.closed()


def test_a_body_that_raises_aborts() -> None:
    with connected() as (a, b):
        with pytest.raises(ZeroDivisionError), a:
            raise ZeroDivisionError
        with pytest.raises((UCXCanceled, UCXConnectionReset)):
            b.recv(bytearray(1), timeout=DEADLINE_S)
        with b:
            pass
        assert b.closed()


@pytest.mark.asyncio
async def test_it_does_not_stop_a_running_loop() -> None:
    with pytest.raises(RuntimeError, match="await"):
        blocking.create_endpoint("127.0.0.1", 1)


AWAITS = """
import asyncio, sys
import backhaul.ucp as ucp

async def main():
    ep = await ucp.create_endpoint("127.0.0.1", int(sys.argv[1]))
    await ep.send(b"awaited")
    await ep.recv(bytearray(7))
    await ep.close()

asyncio.run(main())
"""


def test_it_talks_to_programs_that_await(start: Start) -> None:
    with blocking.create_listener() as listener:
        program = start(AWAITS, str(listener.port))
        with listener.accept(timeout=DEADLINE_S) as ep:
            ep.recv(buffer := bytearray(7), timeout=DEADLINE_S)
            ep.send(buffer)
            program.end()
    asyncio.run(asyncio.sleep(0))
    ucp.reset()
