"""Other programs at a listener, and peers that break the protocol: the harm, and the log."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from backhaul import Context, Endpoint, errors

if TYPE_CHECKING:
    from tests.native.conftest import Eventually


#: How a connection begins: how many bytes follow, and the magic; then comes the version.
GREETING = (12).to_bytes(8, "little") + b"backhaul"


@pytest.fixture
def context() -> Iterator[Context]:
    with Context() as context:
        yield context


class Relay:
    """Passes bytes between a connector and a listener, and can slip in some of its own."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._server = socket.create_server(("127.0.0.1", 0))
        self._target = (host, int(port))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._run)]
        self._threads[0].start()

    def _run(self) -> None:
        client, _ = self._server.accept()
        self._ends = [client, socket.create_connection(self._target)]
        for source, target in (self._ends, reversed(self._ends)):
            thread = threading.Thread(target=self._pass, args=(source, target))
            self._threads.append(thread)
            thread.start()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def slip_in(self, data: bytes) -> None:
        """Send bytes to the listener's side as if they came from the connector."""
        self._ends[1].sendall(data)

    def close(self) -> None:
        for end in (self._server, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def relayed() -> Iterator[tuple[Endpoint, Endpoint, Relay]]:
    with Context(lanes=["tcp"]) as context, context.listen("127.0.0.1:0") as listener:
        relay = Relay(listener.address)
        connecting = context.connect(relay.address)
        b = listener.accept().wait(60)
        try:
            yield connecting.wait(60), b, relay
        finally:
            relay.close()


@pytest.mark.parametrize(
    ("garbage", "message"),
    [
        (b"\xff" * 32, "unknown frame kind 255"),
        (b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n", "unknown frame kind 71"),
        (b"\1\0\0\0\1\0\0\0" + bytes(16) + b"\xff" * 8, "limit"),
    ],
)
def test_a_peer_that_breaks_the_protocol_ends_that_endpoint(
    garbage: bytes,
    message: str,
    relayed: tuple[Endpoint, Endpoint, Relay],
    caplog: pytest.LogCaptureFixture,
) -> None:
    a, b, relay = relayed
    a.send_frames([b"before"])
    assert b.recv_frames().wait(60) == [b"before"]
    pending = [b.recv_frames(), b.send(bytes(1 << 20))]
    relay.slip_in(garbage)
    with caplog.at_level(logging.WARNING, "backhaul"):
        for request in pending:
            with pytest.raises(errors.ProtocolViolation, match=message) as got:
                request.wait(60)
            assert f"peer {b.peer_address} broke the protocol: " in str(got.value)
        assert b.closed()
        with pytest.raises(errors.ConnectionFailed):
            a.recv_frames().wait(60)
    logged = [record.getMessage() for record in caplog.records if record.name == "backhaul"]
    assert len(logged) == 1
    assert b.peer_address in logged[0]
    assert message in logged[0]


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\0",
        b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),
        b"\xff" * 100_000,
        GREETING,
        b"\xff\xff" + GREETING[2:] + b"\3\0\0\0",
        GREETING + b"\1\0\0\0",
        GREETING + b"\3\0\0\0",
    ],
)
def test_strangers_are_logged_once_and_harm_nobody(
    garbage: bytes,
    context: Context,
    caplog: pytest.LogCaptureFixture,
    eventually: Eventually,
) -> None:
    with caplog.at_level(logging.WARNING, "backhaul"), context.listen("127.0.0.1:0") as listener:
        host, _, port = listener.address.rpartition(":")
        with socket.create_connection((host, int(port))) as stranger:
            address = "{}:{}".format(*stranger.getsockname())
            with contextlib.suppress(OSError):
                stranger.sendall(garbage)
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(4096):
                    pass
        eventually(lambda: listener.statistics()["rejected"] == 1)
        statistics = listener.statistics()
        assert statistics["last_rejection"].startswith(f"{address}: ")
        assert statistics["handshakes"] == statistics["accepted"] == statistics["waiting"] == 0
        # The listener goes on.
        connecting = context.connect(listener.address)
        listener.accept().wait(60)
        connecting.wait(60)
        statistics = listener.statistics()
        assert (statistics["accepted"], statistics["rejected"]) == (1, 1)
    logged = [record for record in caplog.records if record.name == "backhaul"]
    assert [record.levelname for record in logged] == ["WARNING"]
    assert address in logged[0].getMessage()


def test_a_stranger_that_says_nothing_is_sent_away(
    caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    with (
        caplog.at_level(logging.WARNING, "backhaul"),
        Context(handshake_timeout_s=0.05) as context,
        context.listen("127.0.0.1:0") as listener,
    ):
        host, _, port = listener.address.rpartition(":")
        with socket.create_connection((host, int(port))) as stranger:
            while stranger.recv(4096):
                pass
        eventually(lambda: listener.statistics()["rejected"] == 1)
    assert "handshake not finished after" in caplog.text


def test_a_thousand_strangers_leave_a_bounded_log(
    context: Context, caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    with caplog.at_level(logging.WARNING, "backhaul"), context.listen("127.0.0.1:0") as listener:
        host, _, port = listener.address.rpartition(":")
        for _ in range(1000):
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(b"nonsense")
        eventually(lambda: listener.statistics()["rejected"] == 1000)
        listener.statistics()
    assert 0 < len(caplog.records) <= 1025


def test_logging_that_fails_breaks_nothing(context: Context, eventually: Eventually) -> None:
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ZeroDivisionError

    handler = Failing()
    logger = logging.getLogger("backhaul")
    logger.addHandler(handler)
    try:
        with context.listen("127.0.0.1:0") as listener:
            host, _, port = listener.address.rpartition(":")
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(b"nonsense")
            eventually(lambda: listener.statistics()["rejected"] == 1)
            listener.statistics()
    finally:
        logger.removeHandler(handler)
