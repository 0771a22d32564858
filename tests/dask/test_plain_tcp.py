"""Dask's own ``tcp://`` at the other end: named on our side, short and closed on Dask's."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from distributed.comm import CommClosedError, connect, listen
from distributed.utils_test import gen_test

import backhaul

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually


async def echo(comm: Any) -> None:
    """Send one message back."""
    await comm.write(await comm.read())


async def answers(address: str) -> None:
    """Send one message through a listener that echoes."""
    comm = await connect(address)
    await comm.write("hello")
    assert await comm.read() == "hello"
    await comm.close()


@pytest.mark.parametrize("deserialize", [True, False])
@gen_test()
async def test_calling_dasks_own_tcp_says_so_and_leaves_its_listener_whole(
    deserialize: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Dask reads our greeting as a short message, fails on it at once and closes."""
    async with listen("tcp://127.0.0.1:0", echo, deserialize=deserialize) as listener:
        tcp = listener.contact_address
        with (
            caplog.at_level(logging.INFO),
            pytest.raises(CommClosedError, match=r"speaks dask's tcp:// protocol, not backhaul"),
        ):
            await connect(tcp.replace("tcp", "backhaul"), timeout=300)
        await answers(tcp)
    assert "allocate" not in caplog.text


@gen_test()
async def test_the_greeting_is_a_short_message_to_dask(caplog: pytest.LogCaptureFixture) -> None:
    """Dask's listener closes the connection after the greeting, without waiting for more."""
    greeting = await hear_greeting()
    async with listen("tcp://127.0.0.1:0", echo) as listener:
        host, port = listener.contact_address.removeprefix("tcp://").split(":")
        with caplog.at_level(logging.INFO):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(greeting)
            # Its own handshake, and then the end.
            await reader.read()
            writer.close()
        await answers(listener.contact_address)
    assert "total struct size too long" in caplog.text
    assert "allocate" not in caplog.text


async def hear_greeting() -> bytes:
    """Return the greeting of `backhaul`, as a listener receives it."""
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        prefix = await reader.readexactly(8)
        rest = await reader.readexactly(int.from_bytes(prefix, "little"))
        heard.set_result(prefix + rest)
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        with pytest.raises(backhaul.BackhaulError):
            await backhaul.connect(f"{host}:{port}")
        return await heard


@gen_test()
async def test_being_called_by_dasks_own_tcp_is_silent_and_recorded(eventually: Eventually) -> None:
    """Dask gets the end of the connection, and the listener says who called."""
    async with backhaul.listen("127.0.0.1:0") as listener:
        accept = asyncio.ensure_future(listener.accept())
        with pytest.raises(CommClosedError):
            await connect(f"tcp://{listener.address}", timeout=300)
        await eventually(lambda: listener.statistics()["rejected"] == 1)
        assert "speaks dask's tcp://" in listener.statistics()["last_rejection"]
        endpoint = await backhaul.connect(listener.address)
        accepted = await accept
        await endpoint.close()
        await accepted.close()
