"""The end of endpoints, listeners and contexts."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import backhaul.ucp as ucp
from backhaul.ucp.exceptions import (
    UCXBaseException,
    UCXCanceled,
    UCXCloseError,
    UCXConnectionReset,
    UCXError,
)
from tests.ucp.conftest import until

if TYPE_CHECKING:
    from tests.ucp.conftest import Connected, Start


@pytest.mark.parametrize("side", ["here", "there"])
@pytest.mark.asyncio
async def test_a_close_cancels_receives_on_both_sides(
    transport: str, side: str, connected: Connected
) -> None:
    async with connected() as (a, b):
        receives = [asyncio.create_task(ep.recv(bytearray(1))) for ep in (a, b)]
        await asyncio.sleep(0)
        await (a if side == "here" else b).close()
        for receive in receives:
            with pytest.raises(UCXCanceled, match=r"\[Recv #000\] ep: 0x.*tag"):
                await receive
        await until(lambda: a.closed() and b.closed())
        for ep in (a, b):
            with pytest.raises(UCXCloseError):
                await ep.send(b"x")
            with pytest.raises(UCXCloseError):
                await ep.recv(bytearray(1))


@pytest.mark.parametrize("nbytes", [1, 100_000])
@pytest.mark.asyncio
async def test_an_endpoint_closes_when_all_that_its_peer_sent_is_received(
    transport: str, nbytes: int, connected: Connected
) -> None:
    async with connected() as (a, b):
        buffer = bytearray(nbytes)
        receive = asyncio.create_task(b.recv(buffer))
        for i in range(2):
            await a.send(bytes([i]) * nbytes)
            await receive
            receive = asyncio.create_task(b.recv(buffer))
            await asyncio.sleep(0)
        receive.cancel()
        await asyncio.gather(receive, return_exceptions=True)
        await a.send(b"a")
        await a.send(b"b", tag="last")
        await a.close()
        await until(lambda: b._connection.native.closed())
        one = bytearray(1)
        assert not b.closed()
        await b.recv(one, tag="last")
        assert not b.closed()
        await b.recv(one)
        assert b.closed()


@pytest.mark.asyncio
async def test_closing_again_does_nothing(connected: Connected) -> None:
    async with connected() as (a, b):
        await asyncio.gather(a.close(), a.close(), b.close())
        await a.close()
        a.abort()
        b.abort()
        assert a.closed()
        assert b.closed()
        assert a._ep is None
        assert a._ctx is None


@pytest.mark.asyncio
async def test_an_abort_keeps_what_was_sent(transport: str, connected: Connected) -> None:
    async with connected() as (a, b):
        receive = asyncio.create_task(b.recv(buffer := bytearray(1 << 20)))
        await asyncio.sleep(0)
        await a.send(b"x" * (1 << 20))
        await a.send(b"late")
        a.abort()
        await receive
        assert buffer == b"x" * (1 << 20)
        # Unlike after a close it is closed at once, and gives what it has all the same.
        await until(b.closed)
        await b.recv(late := bytearray(4))
        assert late == b"late"
        with pytest.raises(UCXConnectionReset, match="reset by remote peer"):
            await b.recv(late)
        with pytest.raises(UCXConnectionReset, match="reset by remote peer"):
            await b.send(late)


@pytest.mark.asyncio
async def test_an_endpoint_closes_after_a_number_of_messages(connected: Connected) -> None:
    async with connected() as (a, b):
        for _ in range(4):
            await a.send(b"x")
        buffer = bytearray(1)
        await b.recv(buffer)
        with pytest.raises(UCXError, match=r"`n` cannot be less than current recv_count: 0 .* 1 "):
            b.close_after_n_recv(0, count_from_ep_creation=True)
        b.close_after_n_recv(2)
        with pytest.raises(UCXError, match="has already been set to: 3"):
            b.close_after_n_recv(1)
        await b.recv(buffer)
        assert not b.closed()
        await b.recv(buffer)
        assert b.closed()
    async with connected() as (a, _):
        a.close_after_n_recv(0)
        assert a.closed()


@pytest.mark.parametrize("how", ["peer closes", "closes", "is dropped", "context ends"])
@pytest.mark.asyncio
async def test_the_close_callback_is_called_once(how: str) -> None:
    calls: list[str] = []
    peers: list[ucp.Endpoint] = []
    listener = ucp.create_listener(peers.append)
    ep = await ucp.create_endpoint("127.0.0.1", listener.port)
    await until(lambda: peers)
    ep.set_close_callback(lambda: calls.append("called"))
    if how == "peer closes":
        await peers[0].close()
        await until(lambda: calls)
    elif how == "closes":
        await ep.close()
    elif how == "context ends":
        ucp.core._get_ctx().close()
    del ep
    gc.collect()
    await asyncio.sleep(0.01)
    assert calls == ["called"]
    listener.close()
    peers[0].abort()


@pytest.mark.asyncio
async def test_what_nobody_has_closes() -> None:
    peers: list[ucp.Endpoint] = []
    listener = ucp.create_listener(peers.append)
    port = listener.port
    ep = await ucp.create_endpoint("127.0.0.1", port)
    await until(lambda: peers)
    gone: list[weakref.ReferenceType[Any]] = [weakref.ref(ep), weakref.ref(listener)]
    del ep, listener
    gc.collect()
    assert [thing() for thing in gone] == [None, None]
    await until(peers[0].closed)
    with pytest.raises(ucp.exceptions.UCXUnreachable):
        await ucp.create_endpoint("127.0.0.1", port)
    peers.clear()
    ucp.reset()


@pytest.mark.asyncio
async def test_a_listener_that_its_callback_knows_is_dropped_with_it() -> None:
    def make() -> weakref.ReferenceType[ucp.Listener]:
        def callback(_: ucp.Endpoint) -> None:
            listener.close()

        listener = ucp.create_listener(callback)
        return weakref.ref(listener)

    listener = make()
    gc.collect()
    assert listener() is None
    ucp.reset()


@pytest.mark.asyncio
async def test_a_reset_names_what_is_open(connected: Connected) -> None:
    async with connected() as (a, b):
        with pytest.raises(UCXError, match="not all Endpoints") as caught:
            ucp.reset()
        assert f"{a.uid:#x}" in str(caught.value)
        assert ucp.core._ctx is None
        # They go on; what is new has another context.
        await a.send(b"x")
        await b.recv(bytearray(1))
        async with connected() as (c, _):
            assert c.get_ucp_worker() != a.get_ucp_worker()
    ucp.reset()
    listener = ucp.create_listener(print)
    with pytest.raises(UCXError, match=rf"Listener 0\.0\.0\.0:{listener.port}"):
        ucp.reset()
    listener.close()


@pytest.mark.asyncio
async def test_a_listener_stops(connected: Connected) -> None:
    listener = ucp.create_listener(print)
    assert (listener.ip, listener.closed()) == ("0.0.0.0", False)
    with pytest.raises(UCXError, match=str(listener.port)):
        ucp.create_listener(print, listener.port)
    listener.close()
    assert listener.closed()
    listener.close()


def test_a_port_may_be_any_integer() -> None:
    for port in (np.int64(0), False):
        ucp.create_listener(print, port).close()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((print, -1), ValueError),
        ((print, 1 << 16), ValueError),
        ((print, "80"), TypeError),
        ((None, 0), TypeError),
    ],
)
def test_arguments_of_a_listener_are_checked(
    arguments: tuple[object, ...], error: type[Exception]
) -> None:
    with pytest.raises(error, match="got"):
        ucp.create_listener(*arguments)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_a_handler_that_fails_ends_its_endpoint_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    async def fail(ep: ucp.Endpoint) -> None:
        await ep.recv(bytearray(1))
        raise ValueError("the handler's own")

    listener = ucp.create_listener(fail)
    for _ in range(2):
        ep = await ucp.create_endpoint("127.0.0.1", listener.port)
        await ep.send(b"x")
        gc.collect()
        with pytest.raises(UCXBaseException):
            await ep.recv(bytearray(1))
        ep.abort()
    listener.close()


PEER = """
import asyncio, sys
import backhaul.ucp as ucp

async def main():
    ep = await ucp.create_endpoint("127.0.0.1", int(sys.argv[1]))
    await ep.send(b"here")
    await ep.recv(bytearray(1))

asyncio.run(main())
"""


@pytest.mark.parametrize("error_handling", [True, False])
@pytest.mark.parametrize("tls", ["posix", "tcp"])
@pytest.mark.asyncio
async def test_a_peer_that_is_killed(
    start: Start, tls: str, error_handling: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ucp.init({"TLS": tls})
    peers: list[ucp.Endpoint] = []
    listener = ucp.create_listener(peers.append, endpoint_error_handling=error_handling)
    program = start(PEER, str(listener.port), UCX_TLS=tls)
    await until(lambda: peers)
    (ep,) = peers
    await ep.recv(bytearray(4))
    waiting = [
        asyncio.create_task(operation)
        for operation in (ep.recv(bytearray(1)), ep.am_recv(), ep.recv(bytearray(1), 1, True))
    ]
    await asyncio.sleep(0)
    program.process.kill()
    for task in waiting:
        with pytest.raises(UCXCanceled):
            await task
    assert ep.is_alive() is not error_handling
    assert ep.closed() is error_handling
    with pytest.raises(UCXConnectionReset if error_handling else UCXError):
        await ep.send(b"x")
    await ep.close()
    assert ep.closed()
    # Without error handling the close is tried, and told to have failed, as in UCX-Py.
    assert ("UCXError('<[Send shutdown]" in caplog.text) is not error_handling
    listener.close()


LAST_WORDS = """
import asyncio, sys
import backhaul.ucp as ucp

async def main():
    ep = await ucp.create_endpoint("127.0.0.1", int(sys.argv[1]))
    await ep.send(b"1" * 50_000)
    await ep.am_send(b"2" * 5_000)
    await ep.send(b"3" * 50_000, tag=3, force_tag=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("tls", ["posix", "tcp"])
@pytest.mark.asyncio
async def test_a_process_that_ends_leaves_what_it_has_sent(start: Start, tls: str) -> None:
    peers: list[ucp.Endpoint] = []
    listener = ucp.create_listener(peers.append)
    program = start(LAST_WORDS, str(listener.port), UCX_TLS=tls)
    await until(lambda: peers)
    await peers[0].recv(buffer := bytearray(50_000))
    assert await peers[0].am_recv() == b"2" * 5000
    await ucp.recv(buffer, tag=3)
    assert buffer == b"3" * 50_000
    program.end()
    peers[0].abort()
    listener.close()
