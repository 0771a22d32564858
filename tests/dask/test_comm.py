"""Comms: what `distributed.comm.Comm` promises, on every lane that one process can use."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import Serialized, deserialize, serialize, to_serialize
from distributed.utils_test import gen_test

if TYPE_CHECKING:
    from tests.dask.conftest import CommPair, Eventually

MIB = 2**20


def messages() -> Iterable[Any]:
    """Messages of every kind that Dask sends."""
    structured = np.zeros(5, dtype=[("a", "i4"), ("b", "f8")])
    yield pytest.param(None, id="none")
    yield pytest.param(b"", id="empty bytes")
    yield pytest.param({"op": "x", "n": 1, "l": [1, 2.5, "ä", None, True]}, id="plain")
    yield pytest.param({"x": b"a" * 3 * MIB}, id="long bytes")
    yield pytest.param({"x": to_serialize(np.arange(10.0))}, id="array")
    yield pytest.param({"x": to_serialize(np.empty(0))}, id="array without items")
    yield pytest.param({"x": to_serialize(np.array(7))}, id="array without axes")
    yield pytest.param({"x": to_serialize(np.arange(12.0).reshape(3, 4).T)}, id="Fortran order")
    yield pytest.param({"x": to_serialize(np.arange(100)[::7])}, id="strided")
    yield pytest.param({"x": to_serialize(structured)}, id="structured")
    yield pytest.param({"x": to_serialize(np.array([{1}, "a"], dtype=object))}, id="objects")
    yield pytest.param({"x": to_serialize(np.ones(70 * MIB, "u1"))}, id="above Dask's shard size")
    yield pytest.param({i: to_serialize(np.full(3, i)) for i in range(2000)}, id="2000 arrays")
    yield pytest.param({"x": to_serialize(pd.DataFrame({"a": [1], "b": ["x"]}))}, id="dataframe")
    yield pytest.param({"x": to_serialize([b"", bytearray(), "", 3])}, id="empty parts")


def plain(value: Any) -> Any:
    """Write a message so that equal ones compare equal, whatever arrays they hold."""
    if hasattr(value, "data") and type(value).__name__ == "Serialize":
        return plain(value.data)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tolist() if value.size < MIB else value.sum()
    if isinstance(value, pd.DataFrame):
        return value.to_dict()
    return value


@pytest.mark.parametrize("message", list(messages()))
@gen_test()
async def test_a_message_arrives_as_it_was_sent(comm_pair: CommPair, message: Any) -> None:
    async with comm_pair() as (a, b):
        sent_bytes, received = await asyncio.gather(a.write(message), b.read())
        assert plain(received) == plain(message)
        assert sent_bytes > 0
        # And back, from the side that accepted.
        _, received = await asyncio.gather(b.write(message), a.read())
        assert plain(received) == plain(message)


@gen_test()
async def test_a_write_tells_how_many_bytes_it_sent(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, b):
        array = np.ones(MIB, "u1")
        sent_bytes, _ = await asyncio.gather(a.write({"x": to_serialize(array)}), b.read())
        assert MIB < sent_bytes < MIB + 4096


@gen_test()
async def test_messages_keep_their_order(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, b):

        async def write() -> None:
            for i in range(500):
                await a.write({"i": i, "x": to_serialize(np.full(i * 50, i % 256, "u1"))})

        async def read() -> list[tuple[int, int]]:
            got = [await b.read() for _ in range(500)]
            return [(message["i"], message["x"].sum()) for message in got]

        _, got = await asyncio.gather(write(), read())
        assert got == [(i, i * 50 * (i % 256)) for i in range(500)]


@gen_test()
async def test_both_sides_may_write_while_they_read(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, b):
        reads = [asyncio.create_task(comm.read()) for comm in (a, b)]
        await asyncio.sleep(0)
        big = {"x": to_serialize(np.ones(20 * MIB, "u1"))}
        await asyncio.gather(a.write(big), b.write(big))
        assert [message["x"].nbytes for message in await asyncio.gather(*reads)] == [20 * MIB] * 2


def owner(array: Any) -> Any:
    """Follow a buffer to the object that owns its memory."""
    while (base := array.obj if isinstance(array, memoryview) else array.base) is not None:
        array = base
        if not isinstance(array, np.ndarray | memoryview):
            break
    return array


@gen_test()
async def test_received_arrays_are_writable_and_own_their_memory(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, b):
        sent = [np.full(n, 1, "u1") for n in (16, 4096, MIB, 8 * MIB)]
        message = {"arrays": [to_serialize(array) for array in sent], "pickled": to_serialize(sent)}
        _, received = await asyncio.gather(a.write(message), b.read())
        arrays = [*received["arrays"], *received["pickled"]]
        for array in arrays:
            array += 1
        assert [array.sum() for array in arrays] == [2 * array.nbytes for array in sent * 2]
        # Nothing of it reached the sender's memory, and none shares memory with another.
        assert all((array == 1).all() for array in sent)
        large = [array for array in arrays if array.nbytes >= 4096]
        assert len({id(owner(array)) for array in large}) == len(large)


@gen_test()
async def test_a_comm_that_does_not_deserialize_passes_parts_on(comm_pair: CommPair) -> None:
    async with comm_pair(deserialize=False) as (a, b):
        array = np.arange(MIB)
        message = {"x": to_serialize(array), "y": Serialized(*serialize(456))}
        _, received = await asyncio.gather(a.write(message), b.read())
        _, back = await asyncio.gather(b.write(received), a.read())
        for got in (received, back):
            assert (deserialize(got["x"].header, got["x"].frames) == array).all()
            assert deserialize(got["y"].header, got["y"].frames) == 456


@gen_test()
async def test_the_handshake_names_the_peer(comm_pair: CommPair, lane: str) -> None:
    async with comm_pair() as (a, b):
        ours = {"pid": os.getpid(), "host": socket.gethostname(), "lane": lane}
        assert a.remote_info["backhaul"] == b.remote_info["backhaul"] == ours
        assert a.remote_info["address"] == a.peer_address
        assert b.local_info["address"] == b.local_address
        assert a.same_host
        assert a.handshake_options["compression"] is None


@gen_test()
async def test_serializers_follow_the_handshake(comm_pair: CommPair) -> None:
    overrides = {"handshake_overrides": {"pickle-protocol": 4}}
    async with comm_pair(connect_args=overrides) as (a, b):
        assert a.handshake_options["pickle-protocol"] == 4
        assert b.handshake_options["pickle-protocol"] == 4
        frames: list[int] = []
        for comm in (a, b):
            _, received = await asyncio.gather(
                comm.write({"x": to_serialize([np.ones(10)])}), (b if comm is a else a).read()
            )
            # Protocol 4 has no buffers beside the pickle: the array lives in it, read-only or not.
            frames.append(received["x"][0].sum())
        assert frames == [10.0, 10.0]


@gen_test()
async def test_addresses_mirror_each_other(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, b):
        assert a.peer_address == b.local_address
        assert a.local_address == b.peer_address
        assert a.peer_address != a.local_address
        assert a.local_address.startswith("backhaul://127.0.0.1:")
        assert a.extra_info == {}


@gen_test()
async def test_repr_names_both_addresses_and_says_when_closed(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, _):
        assert a.local_address in repr(a)
        assert a.peer_address in repr(a)
        assert "closed" not in repr(a)
        await a.close()
        assert "closed" in repr(a)
        assert a.local_address in repr(a)


LOW_MARK = {"distributed.comm.backhaul.high-water-mark": "1MiB"}


async def fill(comm: Any) -> asyncio.Task[Any]:
    """Write until a write has to wait, and give that one back."""
    array = np.ones(MIB, "u1")
    while True:
        write = asyncio.create_task(comm.write({"x": to_serialize(array)}))
        done, _ = await asyncio.wait([write], timeout=0.5)
        if not done:
            return write
        await write


@gen_test()
async def test_a_write_waits_while_too_much_is_queued(comm_pair: CommPair) -> None:
    async with comm_pair(config=LOW_MARK) as (a, b):
        waiting = await fill(a)

        async def read_all() -> None:
            while True:
                assert (await b.read())["x"].nbytes == MIB

        reading = asyncio.create_task(read_all())
        await waiting
        reading.cancel()
        await asyncio.wait([reading])


@gen_test()
async def test_a_cancelled_write_stays_cancelled_and_ends_the_comm(
    comm_pair: CommPair, eventually: Eventually
) -> None:
    async with comm_pair(config=LOW_MARK) as (a, b):
        waiting = await fill(a)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert a.closed()
        await eventually(b.closed)


@gen_test()
async def test_a_write_to_a_peer_that_goes_away_fails(comm_pair: CommPair) -> None:
    async with comm_pair(config=LOW_MARK) as (a, b):
        waiting = await fill(a)

        async def go_on() -> None:
            await waiting
            # It only took long, on a busy machine: then those behind it fail.
            while True:
                await a.write({"x": to_serialize(np.ones(MIB, "u1"))})

        b.abort()
        with pytest.raises(CommClosedError):
            await go_on()
        assert a.closed()


@gen_test()
async def test_closing_one_side_fails_its_own_write_that_waits(comm_pair: CommPair) -> None:
    async with comm_pair(config=LOW_MARK) as (a, _):
        waiting = await fill(a)
        a.abort()
        with pytest.raises(CommClosedError):
            await waiting


@gen_test()
async def test_a_write_waits_while_too_many_messages_are_queued(comm_pair: CommPair) -> None:
    keys = {"sends-limit": 4, "credit-messages": 4}
    config = {f"distributed.comm.backhaul.{key}": value for key, value in keys.items()}
    async with comm_pair(config=config) as (a, b):

        async def write() -> None:
            for i in range(200):
                await a.write(i)

        writing = asyncio.create_task(write())
        assert [await b.read() for _ in range(200)] == list(range(200))
        await writing


@gen_test()
async def test_a_message_of_too_many_parts_is_refused_with_the_limit(comm_pair: CommPair) -> None:
    async with comm_pair(config={"distributed.comm.backhaul.frames-limit": 100}) as (a, _):
        with pytest.raises(ValueError, match="100"):
            await a.write([to_serialize(np.ones(1)) for _ in range(200)])
        assert a.closed()
    # The error must not hold the buffers in a cycle, at which CPython 3.11 would crash.
    gc.collect()


def test_comms_work_in_many_loops_and_threads_of_one_process() -> None:
    async def converse() -> str:
        async def echo(comm: Any) -> None:
            await comm.write(await comm.read())

        async with listen("backhaul://127.0.0.1", echo) as listener:
            comm = await connect(listener.contact_address)
            await comm.write("hello")
            answer: str = await comm.read()
            await comm.close()
            return answer

    answers: list[str] = []

    def run() -> None:
        answers.extend(asyncio.run(converse()) for _ in range(5))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == ["hello"] * 20


#: In a process that does nothing else: what an earlier test still closes would count.
