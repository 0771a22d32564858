"""Active messages: allocators, order, probes, and ends."""

from __future__ import annotations

import asyncio
import functools
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import backhaul.ucp as ucp
from backhaul.errors import InvalidBuffer
from backhaul.ucp.exceptions import UCXCanceled, UCXCloseError, UCXError
from tests.ucp.conftest import until

if TYPE_CHECKING:
    from tests.ucp.conftest import Connected

pytestmark = [pytest.mark.asyncio]


@pytest.mark.parametrize("nbytes", [0, 1, 8192, 8193, 100_000, 3 << 20])
@pytest.mark.parametrize("posted", ["receive first", "send first"])
async def test_an_active_message_arrives_whole(
    transport: str, nbytes: int, posted: str, connected: Connected
) -> None:
    message = random.Random(nbytes).randbytes(nbytes)
    async with connected() as (a, b):
        if posted == "receive first":
            receive = asyncio.create_task(b.am_recv())
            await asyncio.sleep(0)
            send = asyncio.create_task(a.am_send(message))
        else:
            send = asyncio.create_task(a.am_send(message))
            await asyncio.sleep(0)
            receive = asyncio.create_task(b.am_recv())
        _, received = await asyncio.gather(send, receive)
    assert type(received) is bytearray
    assert received == message


async def test_fields_may_have_names_like_kinds_of_elements(connected: Connected) -> None:
    records = np.array([(1.5, 2), (2.5, 3)], dtype=[("Offset", "f8"), ("O", "i4")])
    async with connected() as (a, b):
        await a.am_send(records)
        assert await b.am_recv() == records.tobytes()
        with pytest.raises(InvalidBuffer):
            await a.am_send(np.zeros(1, dtype=[("a", "f8"), ("b", [("c", "O")])]))


@pytest.mark.asyncio
async def test_active_messages_come_in_order_to_receives_in_order(connected: Connected) -> None:
    messages = [bytes([i]) * size for i, size in enumerate([1, 30_000, 2, 0, 9000, 3] * 4)]
    async with connected() as (a, b):
        receives = [asyncio.create_task(b.am_recv()) for _ in messages[:10]]
        await asyncio.sleep(0)
        sending = asyncio.gather(*map(a.am_send, messages))
        received = await asyncio.gather(*receives)
        received += [await b.am_recv() for _ in messages[10:]]
        assert received == messages
        await sending


@pytest.mark.parametrize("nbytes", [5, 10_000])
async def test_memory_is_made_by_the_allocator(nbytes: int, connected: Connected) -> None:
    ucp.register_am_allocator(functools.partial(np.empty, dtype=np.uint8), "host")
    ucp.register_am_allocator(bytearray, "cuda")
    async with connected() as (a, b):
        _, received = await asyncio.gather(a.am_send(b"m" * nbytes), b.am_recv())
        assert isinstance(received, np.ndarray)
        assert received.tobytes() == b"m" * nbytes


@pytest.mark.parametrize(
    ("allocator", "error"),
    [
        (lambda n: bytearray(n + 1), ValueError),
        (lambda n: bytes(n), ValueError),
        (lambda n: None, TypeError),
        (lambda n: 1 / 0, ZeroDivisionError),
    ],
)
async def test_an_allocator_that_fails_loses_no_message(
    allocator: Any, error: type[Exception], connected: Connected
) -> None:
    async with connected() as (a, b):
        await a.am_send(b"kept")
        ucp.register_am_allocator(allocator, "host")
        with pytest.raises(error):
            await b.am_recv()
        ucp.register_am_allocator(bytearray, "host")
        assert await b.am_recv() == b"kept"


async def test_allocators_are_checked() -> None:
    with pytest.raises(UCXError, match="rocm"):
        ucp.register_am_allocator(bytearray, "rocm")
    with pytest.raises(TypeError, match="7"):
        ucp.register_am_allocator(7, "host")  # type: ignore[arg-type]


async def test_a_probe_sees_a_message_and_leaves_it(connected: Connected) -> None:
    async with connected() as (a, b):
        assert b.am_probe() is False
        await a.am_send(b"x")
        await until(b.am_probe)
        assert b._ep is not None
        assert b._ep.am_probe()
        assert await b.am_recv() == b"x"
        assert b.am_probe() is False


@pytest.mark.parametrize("nbytes", [3, 100_000])
async def test_a_receive_that_is_cancelled_takes_nothing(
    transport: str, nbytes: int, connected: Connected
) -> None:
    async with connected() as (a, b):
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(b.am_recv(), 0.005)
        _, received = await asyncio.gather(a.am_send(b"x" * nbytes), b.am_recv())
        assert received == b"x" * nbytes


@pytest.mark.parametrize("end", ["close", "abort"])
@pytest.mark.parametrize("side", ["here", "there"])
async def test_the_end_cancels_what_waits(
    transport: str, end: str, side: str, connected: Connected
) -> None:
    async with connected() as (a, b):
        waiting = asyncio.create_task(a.am_recv())
        await asyncio.sleep(0)
        ending = a if side == "here" else b
        if end == "close":
            await ending.close()
        else:
            ending.abort()
        with pytest.raises(UCXCanceled, match="am_recv"):
            await waiting
        await until(a.closed)
        with pytest.raises((UCXCloseError, ucp.exceptions.UCXConnectionReset)):
            await a.am_send(b"x")


async def test_what_was_sent_before_the_end_is_received_after_it(connected: Connected) -> None:
    async with connected() as (a, b):
        await a.am_send(b"first")
        await a.am_send(b"second")
        await a.close()
        await until(lambda: b._connection.native.closed())
        assert not b.closed()
        assert [await b.am_recv(), await b.am_recv()] == [b"first", b"second"]
        assert b.closed()
        with pytest.raises(UCXCloseError):
            await b.am_recv()
