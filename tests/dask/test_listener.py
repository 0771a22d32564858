"""Listeners and connectors: binding, advertised addresses, and peers that are no Backhaul."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from typing import TYPE_CHECKING, Any

import pytest
from distributed.comm import CommClosedError, connect, listen, parse_address
from distributed.comm.core import FatalCommClosedError
from distributed.comm.registry import get_backend
from distributed.utils import get_ip
from distributed.utils_test import gen_test

import dask
from backhaul.dask import BackhaulBackend, BackhaulListener

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


async def echo(comm: Any) -> None:
    await comm.write(await comm.read())
    await comm.close()


async def converse(address: str, **arguments: Any) -> None:
    comm = await connect(address, **arguments)
    assert comm.peer_address == address
    await comm.write("hello")
    assert await comm.read() == "hello"
    await comm.close()


def test_dask_finds_the_backend_by_its_scheme() -> None:
    assert type(get_backend("backhaul")) is BackhaulBackend


@pytest.mark.parametrize(
    ("given", "bound_host", "contact_host"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1:0", "127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("", "0.0.0.0", get_ip()),
        (":0", "0.0.0.0", get_ip()),
        ("0.0.0.0", "0.0.0.0", get_ip()),
        pytest.param("[::1]", "[::1]", "[::1]", marks=needs_ipv6),
        pytest.param("[::1]:0", "[::1]", "[::1]", marks=needs_ipv6),
    ],
)
@gen_test()
async def test_each_form_of_an_address_can_be_listened_at(
    given: str, bound_host: str, contact_host: str
) -> None:
    # Unknown arguments are for other backends.
    async with listen(f"backhaul://{given}", echo, xxx="bar") as listener:
        host, _, port = listener.listen_address.rpartition(":")
        assert host == f"backhaul://{bound_host}"
        assert int(port) > 0
        assert listener.contact_address == f"backhaul://{contact_host}:{port}"
        await asyncio.gather(*(converse(listener.contact_address, xxx="foo") for _ in range(10)))


@needs_ipv6
@gen_test()
async def test_the_ipv6_wildcard_advertises_an_ipv6_address() -> None:
    async with listen("backhaul://[::]", echo) as listener:
        assert listener.listen_address.startswith("backhaul://[::]:")
        _, contact = parse_address(listener.contact_address)
        assert contact.startswith("[")
        assert not contact.startswith("[::]")
        port = contact.rpartition(":")[2]
        await converse(f"backhaul://[::1]:{port}")


@needs_ipv6
@gen_test()
async def test_listening_everywhere_includes_ipv6() -> None:
    async with listen("backhaul://", echo) as listener:
        port = listener.listen_address.rpartition(":")[2]
        await converse(f"backhaul://127.0.0.1:{port}")
        await converse(f"backhaul://[::1]:{port}")


@gen_test()
async def test_a_host_name_reaches_its_listener() -> None:
    async with listen("backhaul://localhost", echo) as listener:
        port = listener.listen_address.rpartition(":")[2]
        await converse(f"backhaul://localhost:{port}")


@gen_test()
async def test_a_listener_is_not_to_be_reached_over_other_interfaces() -> None:
    async with listen("backhaul://127.0.0.1", echo) as listener:
        port = listener.listen_address.rpartition(":")[2]
        with pytest.raises(OSError, match="Timed out trying to connect"):
            await connect(f"backhaul://127.0.0.2:{port}", timeout=0.2)


@gen_test()
async def test_the_advertised_address_can_be_configured() -> None:
    with dask.config.set({"distributed.comm.backhaul.contact-host": "localhost"}):
        async with listen("backhaul://", echo) as listener:
            assert listener.contact_address.startswith("backhaul://localhost:")
            await converse(listener.contact_address)
    with dask.config.set({"distributed.comm.backhaul.contact-interface": "lo"}):
        async with listen("backhaul://", echo) as listener:
            assert listener.contact_address.startswith("backhaul://127.0.0.1:")
    async with listen("backhaul://", echo, default_host="127.0.0.1") as listener:
        assert listener.contact_address.startswith("backhaul://127.0.0.1:")


@gen_test()
async def test_a_busy_port_is_an_os_error_that_dask_knows() -> None:
    async with listen("backhaul://127.0.0.1", echo) as listener:
        with pytest.raises(OSError, match=r"127\.0\.0\.1") as caught:
            await listen(listener.listen_address, echo)
        assert caught.value.errno == errno.EADDRINUSE
    # Free again at once.
    async with listen(listener.listen_address, echo):
        pass


@gen_test()
async def test_a_hundred_listeners_have_a_hundred_addresses() -> None:
    listeners = [await listen("backhaul://", echo) for _ in range(100)]
    assert len({listener.contact_address for listener in listeners}) == 100
    for listener in listeners:
        listener.stop()


@gen_test()
async def test_an_address_is_not_known_before_the_start() -> None:
    listener = BackhaulListener("127.0.0.1", echo)
    with pytest.raises(ValueError, match="non-started BackhaulListener"):
        _ = listener.listen_address
    with pytest.raises(ValueError, match="non-started BackhaulListener"):
        _ = listener.contact_address
    listener.stop()


@gen_test()
async def test_a_connection_to_a_closed_port_is_an_os_error() -> None:
    with socket.socket() as reserved:
        # Bound and not listening: nothing else takes the port meanwhile.
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with pytest.raises(OSError, match="Timed out trying to connect"):
            await connect(f"backhaul://127.0.0.1:{port}", timeout=0.2)


@pytest.mark.parametrize("address", ["backhaul://127.0.0.1", "backhaul://::1:80", "backhaul://x:y"])
@gen_test()
async def test_a_malformed_address_fails_at_once(address: str) -> None:
    with pytest.raises(ValueError, match="address"):
        await connect(address, timeout=300)


@gen_test()
async def test_a_peer_that_speaks_another_protocol_fails_at_once() -> None:
    async with listen("tcp://127.0.0.1", echo) as listener:
        address = listener.contact_address.replace("tcp", "backhaul")
        with pytest.raises(FatalCommClosedError, match=r"cannot speak Backhaul with .*127.0.0.1"):
            await connect(address, timeout=300)


@gen_test()
async def test_peers_without_the_protocol_do_not_disturb_a_listener(eventually: Eventually) -> None:
    handled: list[str] = []

    async def note(comm: Any) -> None:
        handled.append(comm.peer_address)
        await echo(comm)

    async with listen("backhaul://127.0.0.1", note) as listener:
        host, port = listener.get_host_port()
        for greeting in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(1000), b"backhaul" + b"\xff" * 8):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(greeting)
            if greeting:
                # In any case its own protocol ends.
                await reader.read(-1)
            writer.close()
        # And one that never says anything while others are served.
        _, silent = await asyncio.open_connection(host, port)
        await converse(listener.contact_address)
        silent.close()
    assert len(handled) == 1


@gen_test()
async def test_a_peer_that_leaves_in_dasks_handshake_reaches_no_handler(
    eventually: Eventually,
) -> None:
    handled: list[Any] = []
    async with listen("backhaul://127.0.0.1", handled.append) as listener:
        _, loc = parse_address(listener.contact_address)
        comm = await get_backend("backhaul").get_connector().connect(loc)
        await comm.close()
        await converse_with_nobody(listener.contact_address)
        # The connecting side may have its comm before the handler has the other one.
        await eventually(lambda: handled)
    assert len(handled) == 1
    handled[0].abort()


async def converse_with_nobody(address: str) -> None:
    """Complete one handshake, so that earlier ones have been dealt with."""
    comm = await connect(address)
    await comm.close()


@gen_test()
async def test_a_handler_may_be_a_plain_function() -> None:
    handled: asyncio.Queue[Any] = asyncio.Queue()
    async with listen("backhaul://127.0.0.1", handled.put_nowait) as listener:
        comm = await connect(listener.contact_address)
        other = await handled.get()
        await comm.close()
        await other.close()


@gen_test()
async def test_a_comm_that_was_handed_over_survives_its_listener() -> None:
    handled: asyncio.Queue[Any] = asyncio.Queue()
    listener = await listen("backhaul://127.0.0.1", handled.put)
    comm = await connect(listener.contact_address)
    other = await handled.get()
    listener.stop()
    listener.stop()
    await comm.write("still")
    assert await other.read() == "still"
    await comm.close()
    await other.close()


@gen_test()
async def test_a_stopped_listener_aborts_comms_in_their_handshake(eventually: Eventually) -> None:
    listener = await listen("backhaul://127.0.0.1", echo)
    _, loc = parse_address(listener.contact_address)
    # Never answers the handshake of Dask.
    comm = await get_backend("backhaul").get_connector().connect(loc)
    assert (await comm.read())["backhaul"]["lane"] == comm.lane
    listener.stop()
    listener.abort_handshaking_comms()
    await eventually(comm.closed)
    comm.abort()


@gen_test()
async def test_a_peer_accepted_while_the_listener_stops_is_not_left_hanging(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener = await listen("backhaul://127.0.0.1", echo)
    handle = listener._handle

    async def stop_first(endpoint: Any) -> None:
        listener.stop()
        await handle(endpoint)

    monkeypatch.setattr(listener, "_handle", stop_first)
    with pytest.raises(CommClosedError):
        await connect(listener.contact_address)


@gen_test()
async def test_a_cancelled_connect_leaves_nothing_open(eventually: Eventually) -> None:
    handled: list[Any] = []
    async with listen("backhaul://127.0.0.1", handled.append) as listener:
        for turns in range(20):
            attempt = asyncio.create_task(connect(listener.contact_address))
            for _ in range(turns):
                await asyncio.sleep(0)
            attempt.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await attempt).abort()
        await converse_with_nobody(listener.contact_address)
        await eventually(lambda: all(comm.closed() for comm in handled))


@gen_test()
async def test_encryption_without_certificates_is_refused() -> None:
    arguments: dict[str, Any] = {"require_encryption": True}
    with pytest.raises(RuntimeError, match=r"'backhaul://127.0.0.1.*name no certificates"):
        await listen("backhaul://127.0.0.1", echo, **arguments)
    async with listen("backhaul://127.0.0.1", echo) as listener:
        with pytest.raises(RuntimeError, match=r"'backhaul://127.0.0.1.*name no certificates"):
            await connect(listener.contact_address, timeout=300, **arguments)
