"""The end of a comm, by either side: closed, killed, cancelled, damaged, dropped."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize
from distributed.utils_test import gen_test

import dask

if TYPE_CHECKING:
    from tests.dask.conftest import CommPair, Eventually, Start

MIB = 2**20


@gen_test()
async def test_closing_sends_queued_messages_first(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, b):
        for i in range(20):
            await a.write({"i": i, "x": to_serialize(np.ones(MIB, "u1"))})

        async def read() -> list[int]:
            return [(await b.read())["i"] for _ in range(20)]

        _, got = await asyncio.gather(a.close(), read())
        assert got == list(range(20))
        with pytest.raises(CommClosedError):
            await b.read()


@gen_test()
async def test_a_closed_comm_refuses_everything(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, b):
        reads = [asyncio.create_task(comm.read()) for comm in (a, b)]
        await asyncio.sleep(0)
        await a.close()
        for read in reads:
            with pytest.raises(CommClosedError):
                await read
        for comm in (a, b):
            assert comm.closed()
            with pytest.raises(CommClosedError):
                await comm.read()
            with pytest.raises(CommClosedError):
                await comm.write({})
        await a.close()
        await b.close()
        a.abort()


@gen_test()
async def test_a_peer_that_closes_is_noticed_without_a_read(
    comm_pair: CommPair, eventually: Eventually
) -> None:
    async with comm_pair() as (a, b):
        await a.close()
        await eventually(b.closed)


@gen_test()
async def test_a_peer_that_aborts_is_noticed_without_a_read(
    comm_pair: CommPair, eventually: Eventually
) -> None:
    async with comm_pair() as (a, b):
        a.abort()
        a.abort()
        assert a.closed()
        await eventually(b.closed)
        with pytest.raises(CommClosedError):
            await b.read()


@gen_test()
async def test_messages_from_before_the_peer_closed_can_be_read(
    comm_pair: CommPair, eventually: Eventually
) -> None:
    async with comm_pair() as (a, b):
        await a.write("last words")
        await a.close()
        await eventually(b.closed)
        assert await b.read() == "last words"
        with pytest.raises(CommClosedError):
            await b.read()


@gen_test()
async def test_a_cancelled_read_stays_cancelled_and_ends_the_comm(
    comm_pair: CommPair, eventually: Eventually
) -> None:
    async with comm_pair() as (a, b):
        read = asyncio.create_task(a.read())
        await asyncio.sleep(0)
        read.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read
        assert a.closed()
        await eventually(b.closed)


@gen_test()
async def test_a_read_that_times_out_ends_the_comm(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, _):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(a.read(), 0.01)
        assert a.closed()


CHILD = """
import asyncio, sys
from distributed.comm import connect

async def main():
    comm = await connect(sys.argv[1])
    await comm.write("first")
    await comm.read()

asyncio.run(main())
"""


@gen_test()
async def test_a_peer_that_is_killed_is_noticed_without_a_read(
    lane: str, start: Start, eventually: Eventually
) -> None:
    if lane == "inproc":
        pytest.skip("a process is not killed alone on this lane")
    accepted: asyncio.Queue[Any] = asyncio.Queue()
    with dask.config.set({"distributed.comm.backhaul.lanes": [lane]}):
        async with listen("backhaul://127.0.0.1", accepted.put) as listener:
            lanes = {"DASK_DISTRIBUTED__COMM__BACKHAUL__LANES": lane}
            child = start("-c", CHILD, listener.contact_address, env=lanes)
            comm = await accepted.get()
            assert comm.lane == lane
            assert comm.remote_info["backhaul"]["pid"] == child.process.pid
            assert await comm.read() == "first"
            child.kill()
            await eventually(comm.closed)
            with pytest.raises(CommClosedError):
                await comm.read()


@gen_test()
async def test_any_error_of_the_transport_ends_the_comm_and_comes_through(
    comm_pair: CommPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unforeseen(BaseException):
        pass

    class Broken:
        def __getattr__(self, name: str) -> Any:
            if name in ("send_frames", "recv_frames"):
                raise Unforeseen
            return getattr(endpoint, name)

    for operation in ("read", "write"):
        async with comm_pair() as (a, _):
            endpoint = a._endpoint
            monkeypatch.setattr(a, "_endpoint", Broken())
            with pytest.raises(Unforeseen):
                await (a.read() if operation == "read" else a.write(1))
            assert a.closed()


class Unserializable:
    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


@gen_test()
async def test_a_message_that_cannot_be_serialized_leaves_the_comm_usable(
    comm_pair: CommPair,
) -> None:
    async with comm_pair() as (a, b):
        with pytest.raises(TypeError):
            await a.write({"x": to_serialize(Unserializable())}, on_error="raise")
        await a.write("still here")
        assert await b.read() == "still here"


def _raise_eof() -> None:
    raise EOFError


class Truncated:
    def __reduce__(self) -> Any:
        return _raise_eof, ()


@gen_test()
async def test_a_damaged_message_ends_the_comm(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, b):
        await a.write({"x": to_serialize(Truncated())})
        with pytest.raises(CommClosedError):
            await b.read()
        assert b.closed()


@gen_test()
async def test_a_comm_that_is_dropped_is_closed_and_logged(
    comm_pair: CommPair, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    accepted: asyncio.Queue[Any] = asyncio.Queue()
    async with listen("backhaul://127.0.0.1", accepted.put) as listener:
        a = await connect(listener.contact_address)
        b = await accepted.get()
    address = a.local_address
    with caplog.at_level(logging.WARNING, logger="backhaul.dask.comm.comm"):
        del a
        gc.collect()
    assert f"Closing dangling comm {address}" in caplog.text
    await eventually(b.closed)
    await b.close()


MANY_COMMS = """
import asyncio
import contextlib
import gc
import sys

import numpy as np
import psutil
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize

import dask


async def serve(comm):
    message = await comm.read()
    await comm.write(message)
    if message["end"] == "abort":
        comm.abort()
    else:
        await comm.close()


async def talk(address, number):
    comm = await connect(address)
    end = "abort" if number % 2 else "close"
    with contextlib.suppress(CommClosedError):
        await comm.write({"end": end, "x": to_serialize(np.ones(1000))})
        await comm.read()
    if number % 3:
        await comm.close()
    else:
        comm.abort()


async def eventually(condition):
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.005)


async def come_and_go():
    process = psutil.Process()
    async with listen("backhaul://127.0.0.1", serve) as listener:
        # The first one makes the context and what an event loop needs.
        await talk(listener.contact_address, 0)
        await eventually(lambda: not listener._tasks.difference(listener._accepting))
        gc.collect()
        before = process.num_fds()
        for _ in range(10):
            await asyncio.gather(*(talk(listener.contact_address, n) for n in range(40)))
        await eventually(lambda: not listener._tasks.difference(listener._accepting))

        def nothing_left():
            gc.collect()
            return process.num_fds() <= before

        await eventually(nothing_left)


with dask.config.set({"distributed.comm.backhaul.lanes": sys.argv[1:]}):
    asyncio.run(come_and_go())
print("nothing left")
"""


def test_many_comms_come_and_go_without_leaving_anything(lane: str, start: Start) -> None:
    program = start("-c", MANY_COMMS, lane)
    assert program.wait() == 0, program.output
    assert program.output.endswith("nothing left\n")


EXIT_WITH_AN_OPEN_COMM = """
import asyncio
from distributed.comm import connect, listen

async def main():
    accepted = asyncio.Queue()
    listener = await listen("backhaul://127.0.0.1", accepted.put)
    comm = await connect(listener.contact_address)
    other = await accepted.get()
    reading = asyncio.create_task(other.read())
    await asyncio.sleep(0)
    return comm, other, listener

kept = asyncio.run(main())
print("left open")
"""


def test_a_process_may_exit_with_comms_open(start: Start) -> None:
    program = start("-c", EXIT_WITH_AN_OPEN_COMM)
    assert program.wait() == 0, program.output
    assert "Traceback" not in program.output
    assert program.lines[-1] == "left open\n"


def test_closing_twice_at_exit_needs_no_event_loop() -> None:
    async def make() -> list[Any]:
        accepted: asyncio.Queue[Any] = asyncio.Queue()
        async with listen("backhaul://127.0.0.1", accepted.put) as listener:
            return [await connect(listener.contact_address), await accepted.get()]

    for comm in asyncio.run(make()):
        comm.abort()
        comm.abort()
        assert comm.closed()
    assert sys.exc_info() == (None, None, None)
