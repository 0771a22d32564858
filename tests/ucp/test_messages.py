"""Messages of an endpoint: sizes, tags, order, memory, and what is refused."""

from __future__ import annotations

import array
import asyncio
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import backhaul.ucp as ucp
from backhaul.errors import CudaUnavailable, InvalidBuffer
from backhaul.ucp.exceptions import UCXError, UCXMsgTruncated

if TYPE_CHECKING:
    from tests.ucp.conftest import Connected

pytestmark = [pytest.mark.asyncio]

SIZES = [0, 1, 8, 8193, (64 << 10) + 1, (3 << 20) + 5]


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("posted", ["receive first", "send first"])
async def test_a_message_arrives_whole(
    transport: str, nbytes: int, posted: str, connected: Connected
) -> None:
    message, buffer = random.Random(nbytes).randbytes(nbytes), bytearray(nbytes)
    async with connected() as (a, b):
        if posted == "receive first":
            receive = asyncio.create_task(b.recv(buffer))
            await asyncio.sleep(0)
            send = asyncio.create_task(a.send(message))
        else:
            send = asyncio.create_task(a.send(message))
            await asyncio.sleep(0)
            receive = asyncio.create_task(b.recv(buffer))
        assert all(await asyncio.gather(send, receive))
    assert buffer == message


async def test_messages_of_a_tag_come_in_order_and_others_pass_them(connected: Connected) -> None:
    async with connected() as (a, b):
        for i in range(50):
            await a.send(bytes([i]), tag="even" if i % 2 == 0 else "odd")
        await a.send(b"x")
        buffer = bytearray(1)
        await b.recv(buffer)
        assert buffer == b"x"
        for first, tag in ((1, "odd"), (0, "even")):
            for i in range(first, 50, 2):
                await b.recv(buffer, tag=tag)
                assert buffer[0] == i


async def test_both_ways_and_many_at_once(transport: str, connected: Connected) -> None:
    async with connected() as (a, b):
        messages = [random.Random(i).randbytes(i * 601) for i in range(60)]
        there, back = ([bytearray(len(m)) for m in messages] for _ in range(2))
        await asyncio.gather(
            *(a.send(m, tag=i) for i, m in enumerate(messages)),
            *(b.send(m, tag=i) for i, m in enumerate(messages)),
            *(b.recv(m, tag=i) for i, m in enumerate(there)),
            *(a.recv(m, tag=i) for i, m in enumerate(back)),
        )
        assert there == back == messages


@pytest.mark.parametrize(
    "obj",
    [
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.array(5, dtype=np.int64),
        np.array(["2026-11-22"], dtype="datetime64[D]"),
        array.array("Q", [1, 2, 3]),
        memoryview(b"bytes"),
        ucp.Array(np.arange(7)),
        np.empty((0, 3)),
    ],
    ids=lambda obj: f"{type(obj).__name__}",
)
async def test_any_contiguous_memory_is_sent_in_the_order_in_which_it_lies(
    obj: Any, connected: Connected
) -> None:
    array_like = obj.obj if isinstance(obj, ucp.Array) else obj
    expected = np.asarray(array_like).tobytes(order="A")
    buffer = bytearray(len(expected))
    async with connected() as (a, b):
        await a.send(obj)
        await b.recv(buffer)
        assert buffer == expected
        # The other way round, into memory of this kind
        target = np.zeros_like(np.asarray(array_like))
        await b.send(expected)
        await a.recv(ucp.Array(target) if isinstance(obj, ucp.Array) else target)
        assert target.tobytes(order="A") == expected


async def test_objects_are_received_without_knowing_their_size(connected: Connected) -> None:
    async with connected() as (a, b):
        for obj in (b"", b"object" * 50_000):
            sending = asyncio.create_task(a.send_obj(bytearray(obj), tag="t"))
            assert await b.recv_obj(tag="t") == obj
            await sending
        await a.send_obj(np.arange(5))
        received = await b.recv_obj(allocator=lambda n: np.empty(n // 8, dtype=np.int64))
        np.testing.assert_array_equal(received, np.arange(5))


async def test_a_shorter_message_raises_and_is_there(connected: Connected) -> None:
    async with connected() as (a, b):
        await a.send(b"Hey")
        buffer = bytearray(100)
        message = r"length mismatch: 3 \(got\) != 100 \(expected\)"
        with pytest.raises(UCXMsgTruncated, match=message) as caught:
            await b.recv(buffer)
        assert buffer[:4] == b"Hey\0"
        assert "[Recv #000]" in str(caught.value)
        assert "bytearray" in str(caught.value)


@pytest.mark.parametrize("nbytes", [100, 100_000])
async def test_a_longer_message_raises_and_is_dropped(nbytes: int, connected: Connected) -> None:
    async with connected() as (a, b):
        sending = asyncio.gather(a.send(bytes(nbytes)), a.send(b"next"))
        with pytest.raises(UCXError, match=f"Message truncated.*{nbytes}"):
            await b.recv(bytearray(3))
        buffer = bytearray(4)
        await b.recv(buffer)
        assert buffer == b"next"
        await sending


@pytest.mark.parametrize(
    ("buffer", "error", "match"),
    [
        (3, TypeError, "int"),
        ("text", TypeError, "str"),
        (np.arange(10)[::2], InvalidBuffer, "contiguous"),
        (memoryview(b"abcdef")[::2], InvalidBuffer, "contiguous"),
        (np.array([object()]), ValueError, "object"),
    ],
)
async def test_what_is_no_memory_is_refused_and_nothing_is_sent(
    buffer: Any, error: type[Exception], match: str, connected: Connected
) -> None:
    async with connected() as (a, b):
        for send in (a.send, a.am_send, a.send_obj):
            with pytest.raises(error, match=match):
                await send(buffer)
        with pytest.raises(error, match=match):
            await a.send(buffer, tag=1, force_tag=True)
        with pytest.raises((error, InvalidBuffer)):
            await b.recv(buffer)
        await a.send(b"1")
        one = bytearray(1)
        await b.recv(one)
        assert one == b"1"
        assert not b.am_probe()


async def test_what_is_no_memory_of_a_gpu_is_refused(connected: Connected) -> None:
    class OfGpu:
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (4, 2),
            "typestr": "<f4",
            "data": (4096, False),
            "version": 3,
        }

    described: ucp.Array[OfGpu] = ucp.Array(OfGpu())
    assert (described.cuda, described.nbytes, described.strides) == (True, 32, (8, 4))
    async with connected() as (a, b):
        for buffer in (OfGpu(), described):
            # Where there is a GPU it has no such memory.
            with pytest.raises((InvalidBuffer, CudaUnavailable)):
                await a.send(buffer)
            with pytest.raises((InvalidBuffer, CudaUnavailable)):
                await a.am_send(buffer)
            if not a.cuda_support():
                with pytest.raises(CudaUnavailable):
                    await b.recv(buffer)


@pytest.mark.parametrize("readonly", [b"1234", np.arange(4).data.toreadonly()])
async def test_read_only_memory_is_not_received_into(readonly: Any, connected: Connected) -> None:
    async with connected() as (a, b):
        await a.send(bytes(4))
        with pytest.raises(ValueError, match="read-only"):
            await b.recv(readonly)
        with pytest.raises(ValueError, match="read-only"):
            await b.recv(readonly, tag=1, force_tag=True)
        await b.recv(bytearray(4))


async def test_a_receive_that_is_cancelled_takes_nothing(
    transport: str, connected: Connected
) -> None:
    async with connected() as (a, b):
        buffer = bytearray(3)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(b.recv(buffer), 0.01)
        await a.send(b"abc")
        await b.recv(buffer)
        assert buffer == b"abc"


@pytest.mark.asyncio
async def test_an_array_tells_what_memory_it_is() -> None:
    fortran: ucp.Array[Any] = ucp.Array(np.asfortranarray(np.ones((2, 3))))
    assert (fortran.c_contiguous, fortran.f_contiguous, fortran.contiguous) == (False, True, True)
    assert (fortran.shape, fortran.strides, fortran.nbytes) == ((2, 3), (8, 16), 48)
    gaps: ucp.Array[Any] = ucp.Array(np.arange(10)[::2])
    assert (gaps.contiguous, gaps.nbytes) == (False, 40)
    text = b"abc"
    plain: ucp.Array[Any] = ucp.Array(text)
    assert (plain.obj, plain.readonly, plain.cuda, plain.ndim) == (text, True, False, 1)
    memory = np.arange(3)
    assert ucp.Array(memory).ptr == memory.ctypes.data
    with pytest.raises(TypeError, match="int"):
        ucp.Array(3)
