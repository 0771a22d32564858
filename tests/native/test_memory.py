"""How long an operation holds memory, and that none is lost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backhaul import BackhaulError, Cancelled, Context, EndpointClosed, TruncatedError

if TYPE_CHECKING:
    from tests.native.conftest import Connected, Eventually

#: Long enough to wait for the peer's receive.
LARGE = 1 << 20
LEAKS = Path(__file__).with_name("leaks.py")


def is_held(memory: bytearray) -> bool:
    try:
        memory.append(0)
    except BufferError:
        return True
    memory.pop()
    return False


def test_a_send_holds_its_memory_until_it_is_done(lane: str, connected: Connected) -> None:
    memory = bytearray(LARGE)
    with connected(lane) as (a, b):
        send = a.send(memory)
        assert is_held(memory)
        b.recv(bytearray(LARGE)).wait(60)
        send.wait(60)
        assert not is_held(memory)


def test_a_receive_holds_its_memory_until_it_is_done(lane: str, connected: Connected) -> None:
    memory = bytearray(10)
    with connected(lane) as (a, b):
        receive = b.recv(memory)
        assert is_held(memory)
        a.send(b"x").wait(60)
        receive.wait(60)
        assert not is_held(memory)


def test_a_small_send_copies_its_memory(lane: str, connected: Connected) -> None:
    memory = bytearray(b"before")
    with connected(lane) as (a, b):
        a.send(memory)
        memory[:] = b"after!"
        assert not is_held(memory)
        buffer = bytearray(6)
        b.recv(buffer).wait(60)
    assert buffer == b"before"


@pytest.mark.parametrize("nbytes", [5000, LARGE])
def test_memory_is_free_as_soon_as_the_send_is_done(
    lane: str, nbytes: int, connected: Connected
) -> None:
    target = bytearray(nbytes)
    with connected(lane) as (a, b):
        for _ in range(200):
            memory = bytearray(nbytes)
            receive = b.recv(target)
            send = a.send(memory)
            # The engine, this wait or the other may be the one to finish the send.
            receive.wait(60)
            send.wait(60)
            assert not is_held(memory)
            # Python 3.14 counts no reference for the argument.
            never_sent = bytearray()
            assert sys.getrefcount(memory) == sys.getrefcount(never_sent)


def test_memory_is_free_once_the_result_of_a_finished_send_is_taken(
    lane: str, connected: Connected, eventually: Eventually
) -> None:
    with connected(lane) as (a, b):
        for _ in range(50):
            memory = bytearray(LARGE)
            send = a.send(memory)
            b.recv_frames().cancel()
            receive = b.recv(bytearray(LARGE))
            eventually(send.done)
            send.result()
            assert not is_held(memory)
            receive.wait(60)


@pytest.mark.asyncio
async def test_memory_is_free_when_the_loop_has_turned(
    lane: str, connected: Connected, eventually: Eventually
) -> None:
    with connected(lane) as (a, b):
        memories = [bytearray(LARGE) for _ in range(8)]
        sends = [a.send(memory, tag=i) for i, memory in enumerate(memories)]
        for i in range(8):
            await b.recv(bytearray(LARGE), tag=i)
        await asyncio.gather(*sends)
        assert not any(map(is_held, memories))


@pytest.mark.asyncio
async def test_memory_of_a_send_that_nobody_watches_is_freed(
    lane: str, connected: Connected
) -> None:
    memory = bytearray(LARGE)
    with connected(lane) as (a, b):
        a.send(memory)
        await b.recv(bytearray(LARGE))
        while is_held(memory):
            await asyncio.sleep(0)


def test_a_cancelled_receive_gives_its_memory_back(lane: str, connected: Connected) -> None:
    memory = bytearray(10)
    with connected(lane) as (_, b):
        receive = b.recv(memory)
        receive.cancel()
        with pytest.raises(Cancelled):
            receive.wait(60)
        assert not is_held(memory)


def test_a_truncated_receive_gives_its_memory_back(lane: str, connected: Connected) -> None:
    memory = bytearray(10)
    with connected(lane) as (a, b):
        a.send(bytes(11))
        with pytest.raises(TruncatedError):
            b.recv(memory).wait(60)
        assert not is_held(memory)


@pytest.mark.parametrize("how", ["abort", "drop", "close the context", "peer"])
def test_memory_is_free_when_the_endpoint_has_ended(
    lane: str, how: str, eventually: Eventually
) -> None:
    sent, received = bytearray(LARGE), bytearray(LARGE)
    with Context(lanes=[lane]) as context, Context(lanes=[lane]) as other:
        listener = other.listen("127.0.0.1:0")
        a = context.connect(listener.address).wait(60)
        b = listener.accept().wait(60)
        send, receive = a.send(sent), a.recv(received)
        if how == "abort":
            a.abort()
        elif how == "drop":
            del a
        elif how == "close the context":
            context.close()
        else:
            b.abort()
        for operation in (send, receive):
            with pytest.raises(BackhaulError):
                operation.wait(60)
        assert not is_held(sent)
        assert not is_held(received)


def test_a_dropped_request_goes_on(lane: str, connected: Connected) -> None:
    received = bytearray(3)
    with connected(lane) as (a, b):
        b.recv(received)
        a.send(b"abc")
        gc.collect()
        a.send_frames([b"end"])
        b.recv_frames().wait(60)
    assert received == b"abc"


def test_a_failed_send_takes_nothing(lane: str, connected: Connected) -> None:
    memory = bytearray(LARGE)
    with connected(lane) as (a, _):
        a.close().wait(60)
        for _ in range(3):
            with pytest.raises(EndpointClosed):
                a.send(memory).wait(60)
            assert not is_held(memory)


@pytest.mark.parametrize("nbytes", [100, 100_000])
def test_messages_leave_nothing_behind(lane: str, nbytes: int) -> None:
    alone("messages", lane, str(nbytes))


def test_awaited_messages_leave_nothing_behind(lane: str) -> None:
    alone("awaited_messages", lane)


def test_connections_leave_nothing_behind(lane: str) -> None:
    alone("connections", lane)


def test_contexts_leave_nothing_behind() -> None:
    alone("contexts")


def alone(*arguments: str) -> None:
    """Count in a process that does nothing else."""
    counting = subprocess.run(
        [sys.executable, LEAKS, *arguments], capture_output=True, text=True, check=False
    )
    assert counting.returncode == 0, counting.stderr


def test_an_exception_kept_by_a_request_does_not_stay(connected: Connected) -> None:
    class Marker:
        """Something that a frame keeps."""

    markers = []

    def fail() -> None:
        marker = Marker()
        markers.append(id(marker))
        request = a.recv_frames()
        request.cancel()
        with contextlib.suppress(Cancelled):
            request.wait(60)
        # The exception keeps its traceback, that this frame, and this frame the request.
        assert request.done()
        assert marker is not None

    with connected("shm") as (a, _):
        gc.collect()
        for _ in range(10):
            fail()
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, Marker)]
    assert len(markers) == 10


def test_nothing_is_left_in_the_file_system(connected: Connected) -> None:
    def files() -> set[str]:
        # Semaphores are there for a moment, wherever multiprocessing starts something.
        return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}

    before = files()
    with connected("shm") as (a, b):
        a.send_frames([bytes(LARGE)])
        b.recv_frames().wait(60)
        assert files() <= before
