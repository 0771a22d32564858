"""Messages within a process, on every lane, awaited and waited for."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from backhaul import Cancelled, NotDone, Received, TimedOut, TruncatedError

if TYPE_CHECKING:
    from tests.native.conftest import Connected, Finish

pytestmark = [pytest.mark.asyncio]

#: Around the bounds at which the way of a message changes: none, copied or pinned, eager or asked
#: for, one chunk or several, and more than the ring holds.
SIZES = [0, 1, 4096, 4097, 64 << 10, (64 << 10) + 1, (256 << 10) + 3, (3 << 20) + 5]


def pattern(nbytes: int) -> bytes:
    return random.Random(nbytes).randbytes(nbytes)


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("posted", ["receive first", "send first"])
async def test_a_tagged_message_arrives_whole(
    lane: str, nbytes: int, posted: str, connected: Connected, finish: Finish
) -> None:
    message, buffer = pattern(nbytes), bytearray(nbytes)
    with connected(lane) as (a, b):
        if posted == "receive first":
            receive = b.recv(buffer, tag=7)
            send = a.send(message, tag=7)
        else:
            send = a.send(message, tag=7)
            receive = b.recv(buffer, tag=7)
        assert await finish(receive) == Received(nbytes, 7)
        assert await finish(send) is None
    assert buffer == message


@pytest.mark.parametrize("nbytes", SIZES)
async def test_frames_arrive_in_memory_of_their_own(
    lane: str, nbytes: int, connected: Connected, finish: Finish
) -> None:
    frames = [pattern(nbytes), b"", pattern(nbytes // 2), b"header"]
    with connected(lane) as (a, b):
        send = a.send_frames(frames)
        received = await finish(b.recv_frames())
        await finish(send)
    assert received == frames
    assert [frame.format for frame in received] == ["B"] * 4


@pytest.mark.parametrize("frames", [[], [b""], [b""] * 100, [b"x"] * 10_000])
async def test_any_number_of_frames_makes_a_message(
    lane: str, frames: list[bytes], connected: Connected, finish: Finish
) -> None:
    with connected(lane) as (a, b):
        send = a.send_frames(frames)
        assert await finish(b.recv_frames()) == frames
        await finish(send)


async def test_frames_may_come_from_any_iterable(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b):
        await a.send_frames(bytes([i]) * i for i in range(5))
        assert await b.recv_frames() == [b"", b"\1", b"\2\2", b"\3\3\3", b"\4\4\4\4"]


async def test_a_large_message_arrives_whole(lane: str, connected: Connected) -> None:
    message = bytearray(random.Random(1).randbytes(1 << 20) * 64)
    message[-1] ^= 0xFF
    buffer = bytearray(len(message))
    with connected(lane) as (a, b):
        receive, send = b.recv(buffer), a.send(message)
        await receive
        await send
        assert buffer == message
        send = a.send_frames([message, b"end"])
        frame, end = await b.recv_frames()
        assert frame == message
        assert end.tobytes() == b"end"


async def test_large_messages_cross_each_other(lane: str, connected: Connected) -> None:
    messages = [pattern((8 << 20) + i) for i in range(4)]
    with connected(lane) as (a, b):
        sends = [end.send_frames([message]) for message in messages for end in (a, b)]
        for message in messages:
            assert await a.recv_frames() == [message]
            assert await b.recv_frames() == [message]
        await asyncio.gather(*sends)


async def test_a_receive_takes_only_its_tag(
    lane: str, connected: Connected, finish: Finish
) -> None:
    with connected(lane) as (a, b):
        for tag in (1, 2, 3):
            a.send(bytes([tag]), tag=tag)
        for tag in (3, 1, 2):
            buffer = bytearray(1)
            assert await finish(b.recv(buffer, tag=tag)) == Received(1, tag)
            assert buffer == bytes([tag])


async def test_a_mask_says_which_bits_of_the_tag_count(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b):
        for tag in (0x11, 0x12, 0x21):
            a.send(b"", tag=tag)
        assert (await b.recv(bytearray(), tag=0x20, mask=0xF0)).tag == 0x21
        assert (await b.recv(bytearray(), tag=0x02, mask=0x0F)).tag == 0x12
        assert (await b.recv(bytearray(), tag=0x99, mask=0)).tag == 0x11


async def test_tags_have_64_bits(lane: str, connected: Connected) -> None:
    last = 2**64 - 1
    with connected(lane) as (a, b):
        receive = b.recv(bytearray(), tag=last)
        a.send(b"", tag=last - 1)
        a.send(b"", tag=last)
        assert (await receive).tag == last


async def test_messages_of_one_tag_keep_their_order(lane: str, connected: Connected) -> None:
    sizes = random.Random(2).choices([1, 100, 5000, 70_000, 300_000], k=100)
    with connected(lane) as (a, b):
        sends = [a.send(bytes([i]) * nbytes, tag=5) for i, nbytes in enumerate(sizes)]
        buffer = bytearray(300_000)
        for i, nbytes in enumerate(sizes):
            assert (await b.recv(buffer, tag=5)).nbytes == nbytes
            assert buffer[:nbytes] == bytes([i]) * nbytes
        await asyncio.gather(*sends)


async def test_tagged_messages_and_frames_do_not_mix(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b):
        anything = b.recv(bytearray(10), mask=0)
        a.send_frames([b"frame"])
        a.send(b"tagged", tag=9)
        assert await anything == Received(6, 9)
        assert await b.recv_frames() == [b"frame"]


async def test_a_shorter_message_leaves_the_rest_of_the_buffer(
    lane: str, connected: Connected
) -> None:
    buffer = bytearray(b"..........")
    with connected(lane) as (a, b):
        a.send(b"abc")
        assert await b.recv(memoryview(buffer)[2:8]) == Received(3, 0)
    assert buffer == b"..abc....."


@pytest.mark.parametrize("nbytes", [11, 100_000])
@pytest.mark.parametrize("posted", ["receive first", "send first"])
async def test_a_message_larger_than_the_buffer_is_refused_and_consumed(
    lane: str, nbytes: int, posted: str, connected: Connected, finish: Finish
) -> None:
    buffer = bytearray(10)
    with connected(lane) as (a, b):
        if posted == "receive first":
            receive = b.recv(buffer)
            send = a.send(bytes(nbytes))
        else:
            send = a.send(bytes(nbytes))
            receive = b.recv(buffer)
        with pytest.raises(TruncatedError, match=rf"{nbytes} bytes .* buffer of 10 bytes"):
            await finish(receive)
        await finish(send)
        a.send(b"next")
        assert await finish(b.recv(buffer)) == Received(4, 0)


async def test_a_request_says_when_it_is_done(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b):
        receive = b.recv_frames()
        assert not receive.done()
        with pytest.raises(NotDone, match="the operation is not done"):
            receive.result()
        for timeout in (0, 0.01, -1):
            with pytest.raises(TimedOut, match=f"not done after {timeout} s"):
                receive.wait(timeout)
        await a.send_frames([b"x"])
        frames = receive.wait(timeout=float("inf"))
        assert receive.done()
        assert receive.result() is frames
        assert receive.wait() is frames
        assert receive.wait(0) is frames
        assert await receive is frames
        assert not receive.cancel()


async def test_a_cancelled_receive_takes_no_message(
    lane: str, connected: Connected, finish: Finish
) -> None:
    with connected(lane) as (a, b):
        receive = b.recv(bytearray(10))
        assert receive.cancel()
        with pytest.raises(Cancelled, match="receive was cancelled"):
            await finish(receive)
        with pytest.raises(Cancelled):
            receive.result()
        assert not receive.cancel()
        a.send(b"kept")
        assert await finish(b.recv(bytearray(10))) == Received(4, 0)


async def test_a_send_that_waits_for_the_peer_is_withdrawn(
    lane: str, connected: Connected, finish: Finish
) -> None:
    with connected(lane, credit_messages=4) as (a, b):
        sends = [a.send(bytes([i]), tag=i) for i in range(10)]
        assert sends[9].cancel()
        with pytest.raises(Cancelled, match="send was cancelled"):
            await finish(sends[9])
        buffer = bytearray(1)
        for i in range(9):
            assert await finish(b.recv(buffer, mask=0)) == Received(1, i)
        a.send(b"next", tag=10)
        assert await finish(b.recv(bytearray(4), mask=0)) == Received(4, 10)
        for send in sends[:9]:
            await finish(send)


async def test_a_send_that_was_announced_goes_on_when_cancelled(
    lane: str, connected: Connected, finish: Finish
) -> None:
    message, buffer = pattern(1 << 20), bytearray(1 << 20)
    with connected(lane) as (a, b):
        send = a.send(message)
        # Known to the peer, which has said so by answering something later.
        a.send_frames([b"ping"])
        await b.recv_frames()
        assert send.cancel()
        assert await finish(b.recv(buffer)) == Received(len(message), 0)
        assert await finish(send) is None
    assert buffer == message


async def test_many_requests_are_posted_before_any_is_answered(
    lane: str, connected: Connected
) -> None:
    with connected(lane) as (a, b):
        receives = [b.recv_frames() for _ in range(1000)]
        sends = [a.send_frames([i.to_bytes(2, "little")]) for i in range(1000)]
        got = [int.from_bytes(frames[0], "little") for frames in await asyncio.gather(*receives)]
        await asyncio.gather(*sends)
    assert got == list(range(1000))
