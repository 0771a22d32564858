"""A secret that peers share, users who share memory, and the warning where there is neither."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

import pytest

from backhaul import (
    AuthenticationFailed,
    ConfigError,
    ConnectionFailed,
    Context,
    HandshakeFailed,
)

if TYPE_CHECKING:
    from tests.native.conftest import Eventually, Start

SECRET = b"sixteen bytes, or more of them"


def test_peers_with_one_secret_meet(lane: str) -> None:
    with Context(lanes=[lane], secret=SECRET) as context, context.listen("127.0.0.1:0") as listener:
        assert listener.info() == {
            "address": listener.address,
            "trust": "secret",
            "warning": None,
        }
        near = context.connect(listener.address).wait(60)
        far = listener.accept().wait(60)
        assert near.info()["trust"] == far.info()["trust"] == "secret"
        assert near.info()["lane"] == lane
        near.send(b"hello", tag=1).wait(60)
        buffer = bytearray(5)
        far.recv(buffer, tag=1).wait(60)
        assert buffer == b"hello"


def test_a_peer_without_the_secret_is_refused_and_warned_of(
    caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    with (
        Context(secret=SECRET) as context,
        context.listen("127.0.0.1:0") as listener,
        Context() as without,
        Context(secret=SECRET[::-1]) as another,
    ):
        with pytest.raises(HandshakeFailed, match="this side has none"):
            without.connect(listener.address).wait(60)
        with pytest.raises(HandshakeFailed, match="the two may differ"):
            another.connect(listener.address).wait(60)
        eventually(lambda: listener.statistics()["rejected"] == 2)
        assert "does not prove the secret" in listener.statistics()["last_rejection"]
        # One warning in ten seconds, with the peer.
        eventually(lambda: "a connection was rejected" in caplog.text)
        assert caplog.text.count("a connection was rejected") == 1
        assert "peer=127.0.0.1:" in caplog.text
        context.connect(listener.address).wait(60)


def test_a_listener_without_the_secret_is_refused() -> None:
    with (
        Context() as context,
        context.listen("127.0.0.1:0") as listener,
        Context(secret=SECRET) as near,
    ):
        with pytest.raises(AuthenticationFailed, match="the peer proves no secret") as caught:
            near.connect(listener.address).wait(60)
        assert isinstance(caught.value, ConnectionFailed)


@pytest.mark.parametrize("secret", [b"", b"too short", b"x" * 1025])
def test_a_secret_of_another_size_is_refused_and_not_shown(secret: bytes) -> None:
    with pytest.raises(
        ConfigError, match=f"has {len(secret)} bytes; it takes 16 to 1024"
    ) as caught:
        Context(secret=secret)
    assert "x" * 20 not in str(caught.value)
    assert "too short" not in str(caught.value)


def test_a_secret_that_is_no_bytes_is_refused_and_not_shown() -> None:
    with pytest.raises(TypeError, match="must be bytes, got an object of type str") as caught:
        Context(secret="sixteen letters, or more")  # type: ignore[arg-type]
    assert "sixteen" not in str(caught.value)


def test_nothing_shows_the_secret() -> None:
    with Context(secret=SECRET) as context, context.listen("127.0.0.1:0") as listener:
        endpoint = context.connect(listener.address).wait(60)
        shown = [repr(it) for it in (context, listener, endpoint, endpoint.info(), listener.info())]
        assert "sixteen" not in " ".join(shown)


def test_a_stranger_hears_nothing_but_the_end() -> None:
    with Context(secret=SECRET) as context, context.listen("127.0.0.1:0") as listener:
        host, port = listener.address.rsplit(":", 1)
        # A Hello of this version without fields, and one of another version.
        for words in (
            b"\x0c\0\0\0\0\0\0\0backhaul\x03\0\0\0",
            b"\x0c\0\0\0\0\0\0\0backhaul\x09\0\0\0",
            b"GET / HTTP/1.1\r\n\r\n",
        ):
            with socket.create_connection((host, int(port)), timeout=60) as stranger:
                stranger.sendall(words)
                assert stranger.recv(100) == b""


def test_a_listener_that_others_reach_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    caplog.set_level(logging.WARNING)
    with Context() as context:
        with context.listen("127.0.0.1:0") as listener:
            assert listener.info()["trust"] == "anyone"
            assert listener.info()["warning"] is None
        with context.listen(":0") as listener, context.listen(":0"):
            warning = listener.info()["warning"]
            assert warning.startswith(
                f"{listener.address} is open to every process that reaches it"
            )
            eventually(lambda: warning in caplog.text)
        assert caplog.text.count("is open to every process") == 1
        assert "127.0.0.1" not in caplog.text
    with Context(secret=SECRET) as context, context.listen(":0") as listener:
        assert listener.info()["warning"] is None
    assert caplog.text.count("is open to every process") == 1


#: Becomes another user, connects, and prints how its messages travel.
ANOTHER_USER = """
    import importlib.util
    import os
    import sys

    import backhaul
    import backhaul._ucx

    # Later imports may lie where only root reads.
    backhaul._ucx.library_folders()
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    allowed = [int(uid) for uid in sys.argv[2:]]
    with backhaul.Context(shared_memory_uids=allowed) as context:
        endpoint = context.connect(sys.argv[1]).wait(60)
        frame = bytes(range(256)) * 2000
        endpoint.send_frames([frame]).wait(60)
        assert endpoint.recv_frames().wait(60) == [frame]
        info = endpoint.info()
        print(info["lane"], info["reason"], sep=": ", flush=True)
        sys.stdin.readline()
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@needs_root
@pytest.mark.parametrize(
    ("ours", "theirs", "lane", "reason"),
    [
        ([], [], "tcp", "shm: the peer is user 0, not 65534"),
        ([65534], [], "tcp", "shm: the peer is user 0, not 65534"),
        # It offers, and we hang up: before it has handed its memory over, or when it selects shm.
        ([], [0], "tcp", "shm"),
        ([1, 65534], [0], "shm", "same host, user 0 is allowed, proved on a Unix socket"),
    ],
)
def test_memory_is_shared_with_another_user_only_if_both_allow_it(
    ours: list[int], theirs: list[int], lane: str, reason: str, start: Start
) -> None:
    with (
        Context(lanes=["shm", "tcp"], shared_memory_uids=ours, handshake_timeout_s=60) as context,
        context.listen("127.0.0.1:0") as listener,
    ):
        other = start(ANOTHER_USER, listener.address, *map(str, theirs))
        endpoint = listener.accept().wait(60)
        endpoint.send_frames(endpoint.recv_frames().wait(60)).wait(60)
        line = other.line()
        assert line.startswith(f"{lane}: "), line
        assert reason in line
        assert endpoint.info()["peer_uid"] == 65534
        assert endpoint.info()["lane"] == lane


@needs_root
def test_another_user_without_the_secret_gets_nowhere(start: Start, eventually: Eventually) -> None:
    with Context(secret=SECRET) as context, context.listen("127.0.0.1:0") as listener:
        other = start(ANOTHER_USER, listener.address)
        status, _, errors = other.end()
        assert status == 1
        assert "HandshakeFailed" in errors
        eventually(lambda: listener.statistics()["rejected"] == 1)
        assert listener.statistics()["accepted"] == 0


@pytest.mark.parametrize("uid", [-1, 2**32, "root"])
def test_a_user_that_cannot_be_is_refused(uid: object) -> None:
    with pytest.raises((ConfigError, TypeError), match=f"shared_memory_uids.*{uid}"):
        Context(shared_memory_uids=[uid])  # type: ignore[list-item]
