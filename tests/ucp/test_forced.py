"""Forced tags: receives across endpoints, and contexts that are reached by their address."""

from __future__ import annotations

import asyncio
import pickle
import random
import socket
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import backhaul.ucp as ucp
from backhaul.ucp._address import Place, UCXAddress
from backhaul.ucp.exceptions import UCXCanceled, UCXError, UCXMsgTruncated, UCXUnreachable
from tests.ucp.conftest import until

if TYPE_CHECKING:
    from tests.ucp.conftest import Connected, Start

#: The address of a context that never was
NOWHERE = bytes(UCXAddress.of_place(Place(bytes(16), 1, ("127.0.0.1:1",))))
SIZES = [0, 1, 8192, 8193, 100_000, 3 << 20]


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("posted", ["receive first", "send first"])
@pytest.mark.asyncio
async def test_a_context_receives_from_any_endpoint(
    transport: str, nbytes: int, posted: str, connected: Connected
) -> None:
    message, buffer = random.Random(nbytes).randbytes(nbytes), bytearray(nbytes)
    async with connected() as (a, _):
        if posted == "receive first":
            receive = asyncio.create_task(ucp.recv(buffer, tag=5))
            await asyncio.sleep(0)
            send = asyncio.create_task(a.send(message, tag=5, force_tag=True))
        else:
            send = asyncio.create_task(a.send(message, tag=5, force_tag=True))
            await asyncio.sleep(0)
            receive = asyncio.create_task(ucp.recv(buffer, tag=5))
        await asyncio.gather(send, receive)
    assert buffer == message


@pytest.mark.asyncio
async def test_messages_of_a_peer_come_in_order_whatever_their_size(connected: Connected) -> None:
    sizes = [5, 20_000, 0, 9000, 1, 300_000, 8192]
    async with connected() as (a, b):
        sending = asyncio.gather(*(a.send(bytes(n), 1, True) for n in sizes))
        for n in sizes:
            await b.recv(bytearray(n), 1, True)
        await sending


@pytest.mark.asyncio
async def test_receives_are_served_in_the_order_in_which_they_were_posted(
    connected: Connected,
) -> None:
    async with connected() as (a, b):
        buffers = [bytearray(1) for _ in range(20)]
        receives = [asyncio.create_task(ucp.recv(buffer, tag=1)) for buffer in buffers]
        await asyncio.sleep(0)
        for i in range(20):
            await (a if i % 2 else b).send(bytes([i]), 1, True)
        await asyncio.gather(*receives)
        # Those of each peer are in order; peers are not ordered among each other.
        values = [buffer[0] for buffer in buffers]
        for first in (0, 1):
            assert [value for value in values if value % 2 == first] == [*range(first, 20, 2)]


@pytest.mark.asyncio
async def test_tags_that_are_forced_and_those_of_an_endpoint_do_not_meet(
    connected: Connected,
) -> None:
    async with connected() as (a, b):
        await a.send(b"endpoint", tag=1)
        await a.send(b"forced", tag=1, force_tag=True)
        forced, own = bytearray(6), bytearray(8)
        await ucp.recv(forced, tag=1)
        await b.recv(own, tag=1)
        assert [bytes(forced), bytes(own)] == [b"forced", b"endpoint"]


@pytest.mark.parametrize("nbytes", [10, 50_000])
@pytest.mark.asyncio
async def test_sizes_that_differ_raise_as_for_an_endpoint(
    nbytes: int, connected: Connected
) -> None:
    async with connected() as (a, _):
        sending = asyncio.gather(*(a.send(bytes(nbytes), 1, True) for _ in range(3)))
        with pytest.raises(UCXMsgTruncated, match=rf"{nbytes} \(got\) != {nbytes + 1} "):
            await ucp.recv(bytearray(nbytes + 1), tag=1)
        with pytest.raises(UCXError, match=f"Message truncated: {nbytes} bytes"):
            await ucp.recv(bytearray(nbytes - 1), tag=1)
        await ucp.recv(bytearray(nbytes), tag=1)
        await sending


@pytest.mark.parametrize("nbytes", [3, 100_000])
@pytest.mark.asyncio
async def test_a_receive_that_is_cancelled_takes_nothing(nbytes: int, connected: Connected) -> None:
    async with connected() as (a, b):
        given_up = [asyncio.create_task(ucp.recv(bytearray(nbytes), tag=1)) for _ in range(3)]
        await asyncio.sleep(0)
        last = bytearray(nbytes)
        receive = asyncio.create_task(b.recv(last, tag=1, force_tag=True))
        await asyncio.sleep(0)
        for task in given_up:
            task.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)
        await asyncio.gather(a.send(b"x" * nbytes, 1, True), receive)
        assert last == b"x" * nbytes


@pytest.mark.asyncio
async def test_a_message_handed_to_a_receive_that_is_cancelled_goes_to_the_next(
    connected: Connected,
) -> None:
    async with connected() as (a, _):
        first, second = bytearray(3), bytearray(3)
        context = ucp.core._get_ctx()
        tasks = [asyncio.create_task(ucp.recv(buffer, tag=1)) for buffer in (first, second)]
        await asyncio.sleep(0)
        await a.send(b"abc", 1, True)
        # Handed over, and before the task that it was handed to has run, cancelled.
        while context.matcher.is_awaited(1) and len(context.matcher._waiting[1]) == 2:
            context.progress()
        tasks[0].cancel()
        await tasks[1]
        assert tasks[0].cancelled()
        assert (first, second) == (bytearray(3), bytearray(b"abc"))


@pytest.mark.asyncio
async def test_the_end_of_an_endpoint_cancels_what_waits_for_it_and_nothing_else(
    transport: str, connected: Connected
) -> None:
    async with connected() as (a, b), connected() as (c, _):
        of_context = asyncio.create_task(ucp.recv(bytearray(1), tag=1))
        of_b = asyncio.create_task(b.recv(bytearray(1), tag=2, force_tag=True))
        of_a = asyncio.create_task(a.recv(bytearray(1), tag=3, force_tag=True))
        await asyncio.sleep(0)
        a.abort()
        for task in (of_a, of_b):
            with pytest.raises(UCXCanceled):
                await task
        await c.send(b"1", 1, True)
        assert await of_context


@pytest.mark.asyncio
async def test_a_message_that_has_come_outlives_its_endpoint(connected: Connected) -> None:
    async with connected() as (a, b):
        await a.send(b"forced", 1, True)
        await a.am_send(b"active")
        await until(b.am_probe)
        await b.close()
        await a.close()
    await ucp.recv(buffer := bytearray(6), tag=1)
    assert buffer == b"forced"
    assert not ucp.core._get_ctx().matcher._arrived


@pytest.mark.asyncio
async def test_a_reset_cancels_what_waits(connected: Connected) -> None:
    waiting = asyncio.create_task(ucp.recv(bytearray(1), tag=1))
    await asyncio.sleep(0)
    ucp.reset()
    with pytest.raises(UCXCanceled, match="reset"):
        await waiting


WORKER = """
import asyncio, sys
import backhaul.ucp as ucp

async def main():
    print(bytes(ucp.get_worker_address()).hex(), flush=True)
    size = bytearray(8)
    await ucp.recv(size, tag=0)
    address = bytearray(int.from_bytes(size, "little"))
    await ucp.recv(address, tag=0)
    ep = await ucp.create_endpoint_from_worker_address(ucp.get_ucx_address_from_buffer(address))
    for nbytes in map(int, sys.argv[1:]):
        message = bytearray(nbytes)
        await ucp.recv(message, tag=7)
        await ep.send(message, tag=2**64 - 1, force_tag=True)
    await ep.am_send(await ep.am_recv())

asyncio.run(main())
"""


@pytest.mark.parametrize("tls", ["posix", "tcp"])
def test_processes_that_know_addresses_alone_talk(start: Start, tls: str) -> None:
    program = start(WORKER, *map(str, SIZES), UCX_TLS=tls)
    ucp.init({"TLS": tls})

    async def main() -> None:
        theirs = ucp.get_ucx_address_from_buffer(bytes.fromhex(program.read()))
        ep = await ucp.create_endpoint_from_worker_address(theirs)
        mine = ucp.get_worker_address()
        await ep.send(np.array(mine.length, np.int64), tag=0, force_tag=True)
        await ep.send(mine, tag=0, force_tag=True)
        for nbytes in SIZES:
            message, buffer = random.Random(nbytes).randbytes(nbytes), bytearray(nbytes)
            await ep.send(message, tag=7, force_tag=True)
            await ep.recv(buffer, tag=2**64 - 1, force_tag=True)
            assert buffer == message
        # Active messages find the endpoint that leads back.
        await ep.am_send(b"active" * 10_000)
        assert await ep.am_recv() == b"active" * 10_000
        await ep.close()

    asyncio.run(main())
    program.end()


@pytest.mark.asyncio
async def test_the_peer_of_a_worker_endpoint_gets_none(connected: Connected) -> None:
    peers: list[ucp.Endpoint] = []
    listener = ucp.create_listener(peers.append)
    ep = await ucp.create_endpoint_from_worker_address(ucp.get_worker_address())
    await ep.send(b"1", 1, True)
    await ucp.recv(bytearray(1), tag=1)
    assert not peers
    for operation in (ep.send(b"x"), ep.recv(bytearray(1), tag="t")):
        with pytest.raises(UCXError, match="force_tag"):
            await operation
    await ep.close()
    listener.close()


@pytest.mark.asyncio
async def test_addresses_are_bytes_that_can_be_passed_on() -> None:
    address = ucp.get_worker_address()
    again = pickle.loads(pickle.dumps(address))
    assert again == address == ucp.get_ucx_address_from_buffer(bytearray(address))
    assert (again.length, type(again), hash(again)) == (len(address), UCXAddress, hash(address))
    assert address.place().context == ucp.core._get_ctx().id


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"x" * 3,
        b"x" * 200,
        bytes(32),
        NOWHERE[:-1],
        NOWHERE + b"\xff",
        memoryview(bytes(80))[::2],
        np.empty((0, 3)),
    ],
)
@pytest.mark.asyncio
async def test_bytes_that_are_no_address_are_refused(blob: Any) -> None:
    with pytest.raises(UCXError, match="no address"):
        ucp.get_ucx_address_from_buffer(blob)
    with pytest.raises(UCXError, match="no address"):
        await ucp.create_endpoint_from_worker_address(blob)


@pytest.mark.asyncio
async def test_a_context_that_is_gone_is_unreachable() -> None:
    address = ucp.get_worker_address()
    ucp.reset()
    with pytest.raises(UCXUnreachable, match="Destination is unreachable") as caught:
        await ucp.create_endpoint_from_worker_address(address)
    assert isinstance(caught.value, UCXError)


@pytest.mark.asyncio
async def test_another_process_at_the_port_of_one_that_is_gone_is_not_taken_for_it(
    start: Start,
) -> None:
    program = start(WORKER)
    place = ucp.get_ucx_address_from_buffer(bytes.fromhex(program.read())).place()
    stranger = UCXAddress.of_place(place._replace(pid=place.pid + 1))
    with pytest.raises(UCXUnreachable, match=f"{place.pid} and not {place.pid + 1}"):
        await ucp.create_endpoint_from_worker_address(stranger)
    # The right process, but not the context: its peer ends the connection.
    former = UCXAddress.of_place(place._replace(context=bytes(16)))
    ep = await ucp.create_endpoint_from_worker_address(former)
    with pytest.raises(UCXCanceled):
        await ep.recv(bytearray(1), 1, True)
    assert ep.closed()


@pytest.mark.asyncio
async def test_a_port_where_nobody_listens_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(UCXUnreachable, match=str(taken.getsockname()[1])):
            await ucp.create_endpoint("127.0.0.1", taken.getsockname()[1])


@pytest.mark.asyncio
async def test_a_probe_sees_what_has_come(connected: Connected) -> None:
    async with connected() as (a, _):
        worker = ucp.core._get_ctx().worker
        assert not worker.tag_probe(9)
        await a.send(struct.pack("q", 1), 9, True)
        await until(lambda: worker.tag_probe(9))
        await ucp.recv(bytearray(8), tag=9)
        assert not worker.tag_probe(9)
