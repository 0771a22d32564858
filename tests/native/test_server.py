"""`listen` with a handler, and listeners as iterators and context managers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
import pytest_asyncio

import backhaul
from backhaul import Context, Endpoint, EndpointClosed, PeerGone, Server

pytestmark = [pytest.mark.asyncio]


async def echo(endpoint: Endpoint) -> None:
    while True:
        await endpoint.send_frames(await endpoint.recv_frames())


@pytest_asyncio.fixture
async def reports() -> AsyncIterator[list[dict[str, Any]]]:
    """Collect what reaches the exception handler of the loop."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    yield reported


async def test_a_server_handles_many_peers_at_once(
    lane: str, reports: list[dict[str, Any]]
) -> None:
    async def talk(i: int) -> None:
        async with await backhaul.connect(server.address, lanes=[lane]) as endpoint:
            assert endpoint.lane == lane
            for count in range(10):
                message = [bytes([i, count]), bytes(i * 1000)]
                await endpoint.send_frames(message)
                assert await endpoint.recv_frames() == message

    async with backhaul.listen("127.0.0.1:0", echo) as server:
        assert isinstance(server, Server)
        await asyncio.gather(*map(talk, range(50)))
        assert server.statistics()["accepted"] == 50
        assert not server.closed()
    assert server.closed()
    # A peer that closes is how an echo ends, and nothing to report.
    assert reports == []


async def test_the_endpoint_is_closed_when_the_handler_returns() -> None:
    async def greet(endpoint: Endpoint) -> None:
        endpoint.send_frames([b"hello", bytes(3 << 20)])

    async with backhaul.listen("127.0.0.1:0", greet) as server:
        endpoint = await backhaul.connect(server.address)
        assert await endpoint.recv_frames() == [b"hello", bytes(3 << 20)]
        with pytest.raises(EndpointClosed):
            await endpoint.recv_frames()


async def test_a_handler_that_fails_is_reported_and_others_go_on(
    reports: list[dict[str, Any]],
) -> None:
    async def divide(endpoint: Endpoint) -> None:
        (frame,) = await endpoint.recv_frames()
        await endpoint.send_frames([bytes([100 // frame[0]])])

    async with backhaul.listen("127.0.0.1:0", divide) as server:
        bad = await backhaul.connect(server.address)
        good = await backhaul.connect(server.address)
        await bad.send_frames([b"\0"])
        with pytest.raises(PeerGone):
            await bad.recv_frames()
        await good.send_frames([b"\5"])
        assert await good.recv_frames() == [b"\x14"]
    (report,) = reports
    assert isinstance(report["exception"], ZeroDivisionError)
    assert report["message"].startswith(f"the handler of <backhaul.Server {server.address}, ")
    assert report["message"].endswith(f" failed for peer {bad.local_address}")


async def test_a_handler_that_is_no_coroutine_is_reported(reports: list[dict[str, Any]]) -> None:
    def handler(endpoint: Endpoint) -> Awaitable[object]:
        return None  # type: ignore[return-value]

    async with backhaul.listen("127.0.0.1:0", handler) as server:
        endpoint = await backhaul.connect(server.address)
        with pytest.raises(PeerGone):
            await endpoint.recv_frames()
    assert [type(report["exception"]) for report in reports] == [TypeError]


async def test_closing_a_server_cancels_its_handlers() -> None:
    cancelled = []
    started = asyncio.Queue[None]()

    async def handler(endpoint: Endpoint) -> None:
        started.put_nowait(None)
        try:
            await endpoint.recv_frames()
        except asyncio.CancelledError:
            cancelled.append(endpoint)
            raise

    server = backhaul.listen("127.0.0.1:0", handler)
    endpoints = [await backhaul.connect(server.address) for _ in range(3)]
    for _ in range(3):
        await started.get()
    waiting = asyncio.ensure_future(server.wait_closed())
    await asyncio.sleep(0)
    assert not waiting.done()
    await asyncio.gather(server.close(), server.close())
    await waiting
    assert len(cancelled) == 3
    for endpoint in endpoints:
        with pytest.raises((PeerGone, EndpointClosed)):
            await endpoint.recv_frames()
    await server.close()


async def test_a_handler_may_close_its_server() -> None:
    async def handler(endpoint: Endpoint) -> None:
        await server.close()
        await endpoint.send_frames([b"closed"])

    server = backhaul.listen("127.0.0.1:0", handler)
    endpoint = await backhaul.connect(server.address)
    assert await endpoint.recv_frames() == [b"closed"]
    await server.wait_closed()
    assert repr(server) == f"<backhaul.Server {server.address}, 0 peers, closed>"


async def test_waiting_for_a_server_does_not_end_it() -> None:
    async with backhaul.listen("127.0.0.1:0", echo) as server:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 0.001)
        async with await backhaul.connect(server.address) as endpoint:
            await endpoint.send_frames([b"still there"])
            assert await endpoint.recv_frames() == [b"still there"]


async def test_a_closed_context_ends_the_server(reports: list[dict[str, Any]]) -> None:
    context = Context()
    server = backhaul.listen("127.0.0.1:0", echo, context=context)
    endpoint = await backhaul.connect(server.address)
    await endpoint.send_frames([b"x"])
    assert await endpoint.recv_frames() == [b"x"]
    context.close()
    await server.wait_closed()
    assert reports == []


async def test_a_server_needs_a_loop() -> None:
    def listen() -> None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            backhaul.listen("127.0.0.1:0", echo)

    await asyncio.to_thread(listen)


async def test_a_listener_is_iterated_over_until_it_is_closed() -> None:
    greeted: list[Endpoint] = []

    async def greet_all() -> None:
        async for endpoint in listener:
            await endpoint.send_frames([b"hello"])
            greeted.append(endpoint)

    with backhaul.listen() as listener:
        greeting = asyncio.ensure_future(greet_all())
        for _ in range(3):
            endpoint = await backhaul.connect(listener.address)
            assert await endpoint.recv_frames() == [b"hello"]
    await greeting
    assert len(greeted) == 3


async def test_cancelling_the_iteration_leaves_the_listener_open() -> None:
    async with backhaul.listen() as listener:
        waiting = asyncio.ensure_future(anext(listener))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        connecting = backhaul.connect(listener.address)
        await anext(listener)
        await connecting
    assert listener.closed()
    with pytest.raises(StopAsyncIteration):
        await anext(listener)
