"""Streams of messages: what leaves when, in which order, and what happens when the comm ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from distributed.batched import BatchedSend
from distributed.comm import CommClosedError, connect, listen
from distributed.core import Server
from distributed.protocol.serialize import Serialized, serialize
from distributed.utils_test import gen_test

import dask
from backhaul.dask import BackhaulComm
from backhaul.dask.comm import batched_stream
from backhaul.dask.comm.batched_stream import AdaptiveBatchedSend
from backhaul.dask.comm.threaded_stream import adopt
from backhaul.dask.worker import event_stream

if TYPE_CHECKING:
    from tests.dask.conftest import CommPair, Eventually

#: Little may be on its way to a peer that does not read.
TIGHT = {
    "distributed.comm.backhaul.credit": "64 KiB",
    "distributed.comm.backhaul.eager": "16 KiB",
    "distributed.comm.backhaul.ring": "64 KiB",
}


@contextlib.asynccontextmanager
async def stream_pair(
    comm_pair: CommPair, **arguments: Any
) -> AsyncIterator[tuple[AdaptiveBatchedSend, BackhaulComm]]:
    """Open a stream and the comm that reads it."""
    async with comm_pair(**arguments) as (a, b):
        stream = BatchedSend(interval="10 s")
        stream.start(a)
        assert isinstance(stream, AdaptiveBatchedSend)
        try:
            yield stream, b
        finally:
            stream.abort()


async def fill(stream: AdaptiveBatchedSend) -> None:
    """Send what the peer, which does not read, has no room for."""
    # Serialized beforehand, or it would be serialized aside.
    stream.send(Serialized(*serialize(bytes(80 << 20))))
    await asyncio.sleep(0)
    assert stream.comm.congested()


async def read_messages(comm: BackhaulComm, count: int) -> list[list[Any]]:
    """Read batches until they hold `count` messages."""
    batches: list[list[Any]] = []
    while sum(map(len, batches)) < count:
        batches.append(list(await comm.read()))
    return batches


@gen_test()
async def test_a_message_does_not_wait_for_the_interval(comm_pair: CommPair) -> None:
    async with stream_pair(comm_pair) as (stream, comm):
        for number in range(20):
            stream.send(number)
            # With an interval of 10 s, the second would run into the timeout of the test.
            assert await comm.read() == (number,)
        assert stream.batch_count == stream.message_count == 20


@gen_test()
async def test_messages_of_one_turn_are_one_batch(comm_pair: CommPair) -> None:
    async with stream_pair(comm_pair) as (stream, comm):
        stream.send(1, 2)
        stream.send(3)
        assert await comm.read() == (1, 2, 3)


@gen_test()
async def test_messages_queued_before_the_start_leave_with_it(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, b):
        stream = BatchedSend(interval="10 s")
        stream.send("early")
        stream.start(a)
        stream.send("late")
        assert await b.read() == ("early", "late")
        await stream.close()


@gen_test()
async def test_order_is_kept_in_bursts(comm_pair: CommPair) -> None:
    count = 20_000

    async with stream_pair(comm_pair) as (stream, comm):
        reading = asyncio.create_task(read_messages(comm, count))
        for number in range(count):
            stream.send({"number": number})
            if number % 7 == 0:
                await asyncio.sleep(0)
        batches = await reading
    assert [message["number"] for batch in batches for message in batch] == list(range(count))
    assert stream.batch_count == len(batches)
    assert stream.byte_count > count


@gen_test()
async def test_messages_gather_while_the_peer_does_not_read(comm_pair: CommPair) -> None:
    async with stream_pair(comm_pair, config=TIGHT) as (stream, comm):
        await fill(stream)
        before = stream.batch_count
        for number in range(100):
            stream.send(number)
            await asyncio.sleep(0)
        assert stream.batch_count == before
        batches = await read_messages(comm, stream.message_count)
        assert batches[-1][-100:] == list(range(100))


@gen_test()
async def test_the_pause_grows_with_dense_messages_and_ends_with_a_later_one(
    comm_pair: CommPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Dense is what this machine can do, however slow it is.
    monkeypatch.setattr(batched_stream, "_DENSE_S", 0.1)
    async with stream_pair(comm_pair) as (stream, comm):
        pauses = []
        for number in range(8):
            stream.send(number)
            pauses.append(stream._pause_s)
            assert await comm.read() == (number,)
        assert pauses == sorted(pauses)
        assert pauses[0] == 0.0
        assert pauses[1] > 0.0
        assert pauses[-1] == pauses[-2] <= 0.002
        await asyncio.sleep(0.2)
        stream.send("later")
        assert stream._pause_s == 0.0
        assert await comm.read() == ("later",)


@gen_test()
async def test_patience_lets_messages_gather_once(comm_pair: CommPair) -> None:
    async with stream_pair(comm_pair) as (stream, comm):
        stream.send("first")
        assert await comm.read() == ("first",)
        stream.patience_s = 0.05
        stream.send(1)
        await asyncio.sleep(0)
        stream.send(2)
        assert await comm.read() == (1, 2)
        assert stream.patience_s == 0.0


class Held:
    """A comm around another one that writes on demand."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.held = asyncio.Event()
        self.free = asyncio.Event()

    async def write(self, *arguments: Any, **options: Any) -> Any:
        self.held.set()
        await self.free.wait()
        return await self.comm.write(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)


@gen_test()
async def test_a_comm_that_others_put_around_ours_can_hold_the_stream_up(
    comm_pair: CommPair,
) -> None:
    async with stream_pair(comm_pair) as (stream, comm):
        ours = stream.comm
        stream.comm = held = Held(ours)
        stream.send(1)
        await held.held.wait()
        stream.send(2)
        await asyncio.sleep(0)
        assert stream.buffer == [2]
        held.free.set()
        assert await comm.read() == (1,)
        assert await comm.read() == (2,)
        stream.comm = ours
        stream.send(3)
        assert await comm.read() == (3,)


@gen_test()
async def test_closing_sends_queued_messages(comm_pair: CommPair) -> None:
    async with stream_pair(comm_pair) as (stream, comm):
        stream.send(1)
        closing = stream.close()
        assert await comm.read() == (1,)
        await closing
        assert stream.comm.closed()
        with pytest.raises(CommClosedError):
            stream.send(2)
        await stream.close()
        with pytest.raises(CommClosedError):
            await comm.read()


@gen_test()
async def test_closing_gives_up_after_its_timeout(comm_pair: CommPair) -> None:
    async with stream_pair(comm_pair, config=TIGHT) as (stream, _):
        await fill(stream)
        with pytest.raises(TimeoutError):
            await stream.close(timeout=0.05)


@gen_test()
async def test_a_stream_whose_peer_is_gone_says_so(
    comm_pair: CommPair, eventually: Eventually
) -> None:
    async with stream_pair(comm_pair) as (stream, comm):
        stream.send(1)
        await comm.read()
        comm.abort()
        await eventually(stream.comm.closed)
        with pytest.raises(CommClosedError):
            stream.send(2)
        await stream.close()


@gen_test()
async def test_a_peer_that_goes_with_a_batch_in_flight_ends_the_stream(
    comm_pair: CommPair, eventually: Eventually
) -> None:
    async with stream_pair(comm_pair, config=TIGHT) as (stream, comm):
        await fill(stream)
        stream.send("never leaves")
        comm.abort()
        await eventually(stream.stopped.is_set)
        assert stream.comm.closed()
        assert stream.buffer == []


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("not this one")


@gen_test()
async def test_a_message_that_cannot_be_sent_ends_the_stream(
    comm_pair: CommPair, caplog: pytest.LogCaptureFixture
) -> None:
    async with stream_pair(comm_pair) as (stream, comm):
        stream.send(Unpicklable())
        with pytest.raises(CommClosedError):
            await comm.read()
        assert stream.comm.closed()
        assert "Error in batched write" in caplog.text


@gen_test()
async def test_streams_over_other_comms_stay_as_they_are() -> None:
    accepted: asyncio.Queue[Any] = asyncio.Queue()
    async with listen("tcp://127.0.0.1", accepted.put) as listener:
        comm = await connect(listener.contact_address)
        peer = await accepted.get()
        stream = BatchedSend(interval="1 ms")
        assert not adopt(stream, comm)
        stream.start(comm)
        assert type(stream) is BatchedSend
        stream.send(1)
        assert await peer.read() == (1,)
        await stream.close()
        await peer.close()


@gen_test()
async def test_the_switch_keeps_dasks_own(comm_pair: CommPair, plain_dask: None) -> None:
    with dask.config.set({"distributed.comm.backhaul.hot-path.batching": False}):
        async with comm_pair() as (a, b):
            stream = BatchedSend(interval="1 ms")
            stream.start(a)
            assert type(stream) is BatchedSend
            stream.send(1)
            assert await b.read() == (1,)
            await stream.close()


@gen_test()
async def test_reading_gives_all_that_has_arrived(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, b):
        for number in range(10):
            await a.write(number)
        seen: list[Any] = []
        while len(seen) < 10:
            seen += await b.read_arrived()
        assert seen == list(range(10))
        await a.write("last")
        await a.close()
        assert await b.read_arrived() == ["last"]
        with pytest.raises(CommClosedError):
            await b.read_arrived()


@gen_test()
async def test_a_message_that_cannot_be_read_does_not_take_others_with_it(
    comm_pair: CommPair,
) -> None:
    async with comm_pair() as (a, b):
        await a.write("good")
        await a._endpoint.send_frames([b"\xc1"])
        await a.write("good too")
        await asyncio.sleep(0.05)
        seen: list[Any] = []
        while not seen:
            seen += await b.read_arrived()
        assert seen == ["good"]
        with pytest.raises(msgpack.FormatError):
            await b.read_arrived()
        assert await b.read_arrived() == ["good too"]


@gen_test()
async def test_a_handler_that_closes_its_stream_gets_no_more_messages(comm_pair: CommPair) -> None:
    heard: list[int] = []
    async with comm_pair() as (a, b):
        handlers = {"number": lambda number: heard.append(number), "abort": b.abort}
        server = Server({}, stream_handlers=handlers)
        for message in ({"op": "number", "number": 1}, {"op": "abort"}):
            await a.write([message])
        for number in range(100):
            await a.write([{"op": "number", "number": number}])
        await event_stream.handle_stream(server, b, None)
        await server.close()
    assert heard == [1]
