"""Every class of `backhaul.errors`: how it comes about and what it says."""

from __future__ import annotations

import contextlib
import errno
import inspect
import logging
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import backhaul
from backhaul import Context, Request, errors

if TYPE_CHECKING:
    from tests.native.conftest import Connected, Start


@pytest.fixture
def context() -> Iterator[Context]:
    with Context() as context:
        yield context


@contextlib.contextmanager
def listening_socket(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """Listen with a socket of our own; every connection is served in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as connections:

        def accept_all() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connections.enter_context(connection)
                    serve(connection)

        thread = threading.Thread(target=accept_all)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"lanes": ["carrier pigeon"]},
            'unknown lane "carrier pigeon": expected inproc, shm, ucx, tcp or tls',
        ),
        ({"ring_bytes": 5000}, "ring_bytes must be a power of two, got 5000"),
        ({"ring_bytes": 16}, "ring_bytes must be between 4096 and 1073741824, got 16"),
        ({"backlog": 0}, "backlog must be between 1 and 65536, got 0"),
        ({"credit_messages": 1}, "credit_messages must be between 4 and .*, got 1"),
        ({"segments_max": 0}, "segments_max must be between 1 and 1048576, got 0"),
        (
            {"segments_max": 2**32},
            r"segments_max must be between 0 and 2\*\*32 - 1, got 4294967296",
        ),
        ({"message_bytes_max": 0}, "message_bytes_max must be between 1 and .*, got 0"),
        ({"eager_bytes_max": 10, "credit_bytes": 5}, "eager_bytes_max must be .* 0 and 5, got 10"),
        ({"sends_max": -1}, r"sends_max must be between 0 and 2\*\*64 - 1, got -1"),
        ({"pool_cached_bytes_max": 2**64}, "pool_cached_bytes_max must be .*, got 184467440737095"),
        ({"spin_us": -1.0}, "spin_us must be a number of microseconds, 0 or more, got -1.0"),
        ({"linger_s": float("nan")}, "linger_s must be a number of seconds, 0 or more, got nan"),
        (
            {"handshake_timeout_s": float("inf")},
            "handshake_timeout_s must be a number of seconds, 0 or more, got inf",
        ),
        (
            {"keep_alive_interval_s": -0.5},
            "keep_alive_interval_s must be a number of seconds, 0 or more, got -0.5",
        ),
        ({"keep_alive_timeout_s": 1e300}, r"keep_alive_timeout_s must be .* got 1e\+300"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message) as caught:
        Context(**settings)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "settings", [{"sends_max": "many"}, {"sends_max": 1.5}, {"lanes": "shm"}, {"colour": 1}]
)
def test_a_setting_of_another_type_is_refused(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(TypeError, match=name):
        Context(**settings)


def test_an_unknown_lane_is_refused_before_connecting(context: Context) -> None:
    with pytest.raises(errors.ConfigError, match='unknown lane "rdma": expected inproc, shm, '):
        context.connect("127.0.0.1:1", lanes=["rdma"])


ADDRESSES = [
    ("", "it has no port"),
    ("host", "it has no port"),
    ("127.0.0.1", "it has no port"),
    ("host:", "its port is no number from 0 to 65535"),
    ("host:http", "its port is no number from 0 to 65535"),
    ("host:65536", "its port is no number from 0 to 65535"),
    ("host:-1", "its port is no number from 0 to 65535"),
    ("tcp://host:1", "it has a scheme"),
    ("::1:80", "its host is neither a name nor an IP address"),
    ("[::1:80", "its host is neither a name nor an IP address"),
    ("two words:80", "its host is neither a name nor an IP address"),
]


@pytest.mark.parametrize(("address", "detail"), ADDRESSES)
@pytest.mark.parametrize("scheme", ["", "backhaul://"])
def test_what_is_no_address_is_refused(
    address: str, detail: str, scheme: str, context: Context
) -> None:
    message = f'"{address}" is no address: {detail}; write host:port or [ipv6]:port'
    for refused in (
        lambda: backhaul.listen(scheme + address, context=context),
        lambda: backhaul.connect(scheme + address, context=context).wait(60),
    ):
        with pytest.raises(errors.AddressError) as caught:
            refused()
        assert str(caught.value) == message
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("address", [("127.0.0.1", 80), 80, None, b"127.0.0.1:80"])
def test_an_address_is_a_text(address: Any) -> None:
    for refused in (backhaul.listen, backhaul.connect):
        with pytest.raises(TypeError, match="address must be a str such as 'host:port', got "):
            refused(address)


def test_a_host_without_address_is_refused(context: Context) -> None:
    # RFC 6761 keeps .invalid free of hosts.
    request = context.connect("nobody.invalid:80")
    with pytest.raises(errors.AddressError, match=r'"nobody.invalid:80" is no address: .*[Nn]ame'):
        request.wait(60)
    with pytest.raises(errors.AddressError, match=r"nobody.invalid:80"):
        context.listen("nobody.invalid:80")


def test_a_port_in_use_is_refused(context: Context) -> None:
    with (
        context.listen("127.0.0.1:0") as listener,
        pytest.raises(errors.ListenError, match=f"cannot listen on {listener.address}") as caught,
    ):
        context.listen(listener.address)
    assert caught.value.errno == errno.EADDRINUSE
    assert isinstance(caught.value, OSError)


def test_an_address_of_another_host_is_not_listened_on(context: Context) -> None:
    # RFC 5737 keeps 192.0.2.0/24 for documentation.
    with pytest.raises(errors.ListenError, match=r"cannot listen on 192.0.2.1:0") as caught:
        context.listen("192.0.2.1:0")
    assert caught.value.errno == errno.EADDRNOTAVAIL


def test_a_refused_connection_has_its_errno(context: Context) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(errors.ConnectFailed, match=f"cannot connect to {address}") as caught:
            context.connect(address).wait(60)
    assert caught.value.errno == errno.ECONNREFUSED
    assert isinstance(caught.value, ConnectionError)


def test_a_host_by_name_is_connected_to(context: Context) -> None:
    with context.listen("localhost:0") as listener:
        port = listener.address.rpartition(":")[2]
        connecting = context.connect(f"localhost:{port}")
        listener.accept().wait(60)
        assert connecting.wait(60).peer_address == listener.address


@pytest.mark.parametrize("address", [":0", "[::1]:0", "[::]:0", "0.0.0.0:0"])
def test_addresses_of_every_form_are_listened_on(address: str, context: Context) -> None:
    try:
        listener = context.listen(address)
    except errors.ListenError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        pytest.skip("this host has no IPv6")
    port = listener.address.rpartition(":")[2]
    assert int(port) > 0
    connecting = context.connect(f"[::1]:{port}" if "[" in address else f"127.0.0.1:{port}")
    with listener.accept().wait(60), connecting.wait(60):
        pass
    listener.close()


#: How a connection begins: how many bytes follow, and the magic; then comes the version.
GREETING = (12).to_bytes(8, "little") + b"backhaul"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4,
            'does not speak backhaul: it began with "HTTP/1.1 400',
        ),
        (GREETING + b"\xff\x7f" + bytes(100), "the peer speaks version 32767, supported is 3"),
        (b"\xff\xff" + GREETING[2:] + b"\3\0\0\0", "body of 65523 bytes, limit 4096"),
        # A length of a message, and the number of its frames.
        (b"\x3a" + bytes(7) + b"\1" + bytes(7), "speaks dask's tcp:// protocol, not backhaul://"),
    ],
)
def test_a_peer_that_speaks_something_else_is_refused(
    answer: bytes, message: str, context: Context
) -> None:
    with listening_socket(lambda connection: connection.sendall(answer)) as address:
        request = context.connect(address)
        with pytest.raises(errors.HandshakeFailed) as caught:
            request.wait(60)
    assert f"handshake with {address} failed: " in str(caught.value)
    assert message in str(caught.value)


def test_a_peer_that_hangs_up_was_not_reached(context: Context) -> None:
    with listening_socket(lambda connection: connection.close()) as address:
        request = context.connect(address)
        with pytest.raises(errors.ConnectionFailed, match=address):
            request.wait(60)


def test_a_peer_that_says_nothing_times_out() -> None:
    with (
        Context(handshake_timeout_s=0.05) as context,
        listening_socket(lambda connection: None) as address,
    ):
        request = context.connect(address)
        with pytest.raises(errors.TimedOut, match=f"{address} failed: .*not finished") as got:
            request.wait(60)
    assert isinstance(got.value, TimeoutError)


@pytest.mark.parametrize("how", ["cancel", "close the context"])
def test_a_cancelled_connect_says_so(how: str) -> None:
    with Context() as context, listening_socket(lambda connection: None) as address:
        request = context.connect(address)
        if how == "cancel":
            assert request.cancel()
        else:
            context.close()
        with pytest.raises(errors.Cancelled, match=f"connecting to {address} was cancelled"):
            request.wait(60)


def test_a_closed_context_starts_nothing() -> None:
    context = Context()
    context.close()
    with pytest.raises(errors.ListenError, match="the context is closed"):
        context.listen("127.0.0.1:0")
    with pytest.raises(errors.ConnectFailed, match="the context is closed"):
        context.connect("127.0.0.1:1").wait(60)


def test_a_closed_listener_accepts_nobody(context: Context) -> None:
    listener = context.listen("127.0.0.1:0")
    waiting = listener.accept()
    cancelled = listener.accept()
    cancelled.cancel()
    with pytest.raises(errors.Cancelled, match="accept was cancelled"):
        cancelled.wait(60)
    listener.close()
    for request in (waiting, listener.accept()):
        with pytest.raises(errors.EndpointClosed, match="listener was closed"):
            request.wait(60)
    with pytest.raises(errors.ConnectFailed):
        context.connect(listener.address).wait(60)


def test_too_large_a_message_is_refused_on_either_side(lane: str, connected: Connected) -> None:
    with connected(lane, message_bytes_max=100, segments_max=3) as (a, b):
        for send in (a.send(bytes(101)), a.send_frames([bytes(60), bytes(41)])):
            with pytest.raises(errors.MessageTooLarge, match="message of 101 bytes, limit 100"):
                send.wait(60)
        with pytest.raises(errors.MessageTooLarge, match="message of 4 segments, limit 3") as got:
            a.send_frames([b""] * 4).wait(60)
        assert isinstance(got.value, ValueError)
        a.send_frames([bytes(50), b"", bytes(50)])
        assert b.recv_frames().wait(60) == [bytes(50), b"", bytes(50)]


def test_the_limit_of_the_peer_counts(lane: str) -> None:
    with Context(lanes=[lane]) as large, Context(lanes=[lane], message_bytes_max=10) as small:
        with small.listen("127.0.0.1:0") as listener:
            connecting = large.connect(listener.address)
            b = listener.accept().wait(60)
        a = connecting.wait(60)
        with pytest.raises(errors.MessageTooLarge, match="message of 11 bytes, limit 10"):
            a.send(bytes(11)).wait(60)
        # So does its own.
        with pytest.raises(errors.MessageTooLarge, match="message of 11 bytes, limit 10"):
            b.send(bytes(11)).wait(60)


def test_a_full_queue_is_refused_until_there_is_room(lane: str, connected: Connected) -> None:
    message = bytes(1 << 20)
    with connected(lane, sends_max=3, credit_messages=4) as (a, b):
        sends = [a.send(message, tag=1) for _ in range(4 + 3 + 5)]
        refused = sum(send.done() for send in sends)
        assert 0 < refused < len(sends)
        for send in sends[len(sends) - refused :]:
            with pytest.raises(errors.QueueFull) as full:
                send.result()
            assert str(full.value) == "3 sends are queued, which is the limit"
            assert isinstance(full.value, BlockingIOError)
        buffer = bytearray(len(message))
        for _ in range(len(sends) - refused):
            b.recv(buffer, tag=1).wait(60)
        a.send(b"again", tag=2)
        assert b.recv(buffer, tag=2).wait(60).nbytes == 5


def test_a_refusal_that_nobody_looks_at_is_logged(
    connected: Connected, caplog: pytest.LogCaptureFixture
) -> None:
    few = {"sends_max": 1, "credit_messages": 4}
    with caplog.at_level(logging.WARNING, "backhaul"), connected("shm", **few) as (a, b):
        for _ in range(20):
            a.send(b"x", tag=1)
        b.recv(bytearray(1)).cancel()
        a.abort()
        a.send(b"")
    logged = {record.getMessage() for record in caplog.records}
    assert logged == {
        "a send was refused: 1 sends are queued, which is the limit, "
        "and its request was dropped unread"
    }


def test_tags_out_of_range_are_refused(connected: Connected) -> None:
    with connected("shm") as (a, b):
        for number in (-1, 2**64):
            for refused in (
                lambda number=number: a.send(b"", tag=number),
                lambda number=number: b.recv(bytearray(), tag=number),
                lambda number=number: b.recv(bytearray(), mask=number),
            ):
                with pytest.raises(ValueError, match=rf"from 0 to 2\*\*64 - 1, got {number}"):
                    refused()
        with pytest.raises(TypeError, match="tag"):
            a.send(b"", tag="7")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            a.send(b"", 7)  # type: ignore[call-arg]


def test_timeouts_that_are_none_are_refused(connected: Connected) -> None:
    with connected("shm") as (_, b):
        request = b.recv_frames()
        with pytest.raises(
            ValueError, match="timeout must be a number of seconds or None, got nan"
        ):
            request.wait(float("nan"))
        with pytest.raises(TypeError, match="timeout"):
            request.wait("soon")  # type: ignore[arg-type]


def test_no_memory_for_a_message_fails_its_receive_alone(far_lane: str, start: Start) -> None:
    program = start(
        """
        import resource
        import sys
        import backhaul
        listener = backhaul.Context(lanes=[sys.argv[1]]).listen("127.0.0.1:0")
        print(listener.address, flush=True)
        endpoint = listener.accept().wait(300)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
        try:
            endpoint.recv_frames().wait(300)
        except backhaul.OutOfMemory as error:
            assert isinstance(error, MemoryError)
            print(error, flush=True)
        print(bytes(endpoint.recv_frames().wait(300)[0]), flush=True)
        """,
        far_lane,
    )
    nbytes = 256 << 20
    with Context(lanes=[far_lane]) as context:
        endpoint = context.connect(program.line()).wait(60)
        endpoint.send_frames([bytes(nbytes)])
        assert program.line() == f"no memory for a message of {nbytes} bytes"
        endpoint.send_frames([b"next"])
        assert program.end() == (0, "b'next'\n", "")


def test_both_sides_of_a_close_know_whose_it_was(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b):
        theirs: list[Request[Any]] = [b.recv_frames(), b.recv(bytearray(1), mask=0)]
        peer = b.peer_address
        closing = a.close()
        ours: list[Request[Any]] = [a.send(b""), a.recv_frames(), a.send_frames([])]
        closing.wait(60)
        ours += [a.send(b""), a.recv(bytearray(1))]
        for request in theirs:
            with pytest.raises(errors.EndpointClosed, match=f"peer {peer} closed the connection"):
                request.wait(60)
        for request in ours:
            with pytest.raises(errors.EndpointClosed, match="closed"):
                request.wait(60)
        assert a.closed()
        assert b.closed()
        a.close().wait(60)
        b.close().wait(60)


def test_an_abort_ends_both_sides_at_once(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b):
        theirs, ours = b.recv_frames(), a.recv_frames()
        a.abort()
        a.abort()
        with pytest.raises(errors.EndpointClosed, match="endpoint was closed here"):
            ours.wait(60)
        with pytest.raises(errors.PeerGone, match=f"peer {b.peer_address} is gone"):
            theirs.wait(60)


def test_errors_are_one_tree_and_fit_pythons() -> None:
    classes = {name: getattr(errors, name) for name in errors.__all__}
    found = {
        name: cls
        for name, cls in vars(errors).items()
        if inspect.isclass(cls) and issubclass(cls, Exception)
    }
    assert classes == found
    for name, cls in classes.items():
        assert issubclass(cls, errors.BackhaulError)
        assert getattr(backhaul, name) is cls
        assert name in backhaul.__all__
        again = pickle.loads(pickle.dumps(cls("what happened")))
        assert type(again) is cls
        assert str(again) == "what happened"


def test_the_numbers_of_system_errors_survive_pickling(context: Context) -> None:
    with context.listen("127.0.0.1:0") as listener, pytest.raises(errors.ListenError) as caught:
        context.listen(listener.address)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.errno == errno.EADDRINUSE
    assert str(again) == str(caught.value)
