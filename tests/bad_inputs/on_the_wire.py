"""Bad input from the other end of a socket: before a peer is one, and after."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from backhaul import Context
from tests.bad_inputs.by_hand import Peer, fields, frame, hello, proof, proved_hello, select
from tests.bad_inputs.cases import DEADLINE_S, Case, Place

__all__ = ["FRAMES", "HANDSHAKES"]

SECRET = b"a secret of this cluster"


def _rejected(
    talk: Callable[[Peer], object], *, timeout_s: float = 30.0, secret: bytes | None = None
) -> Callable[[Place], str]:
    """Say something to a listener; what it got is why the listener rejected it."""

    def give(_: Place) -> str:
        with (
            Context(lanes=["tcp"], handshake_timeout_s=timeout_s, secret=secret) as context,
            context.listen("127.0.0.1:0") as listener,
        ):
            with Peer(listener.address) as peer:
                talk(peer)
                heard = peer.hear_out()
            give_up_at = time.monotonic() + DEADLINE_S
            while listener.statistics()["rejected"] == 0:
                assert time.monotonic() < give_up_at, "it was not rejected"
                time.sleep(0.001)
            # The listener goes on.
            near = context.connect(listener.address).wait(DEADLINE_S)
            listener.accept().wait(DEADLINE_S)
            near.abort()
            _, _, reason = listener.statistics()["last_rejection"].partition(": ")
        end = "an end, after our Hello" if heard else "an end"
        return f"{end}; logged: {reason}"

    return give


def _says(words: bytes, *, half: bool = False, **options: object) -> Callable[[Place], str]:
    def talk(peer: Peer) -> None:
        peer.say(words)
        if half:
            peer.socket.shutdown(1)

    return _rejected(talk, **options)  # type: ignore[arg-type]


def _cut(words: bytes) -> bytes:
    """Make a Hello one byte shorter, and have it say so."""
    return struct.pack("<Q", len(words) - 9) + words[8:-1]


def _selects(words: bytes) -> Callable[[Place], str]:
    return _says(hello(fields()) + words)


def _replays(peer: Peer) -> None:
    """Say what an honest peer said on another connection, which this one has heard."""
    with Context(lanes=["tcp"], secret=SECRET) as context, context.listen("127.0.0.1:0") as other:
        with Peer(other.address) as honest:
            words = proved_hello(SECRET)
            honest.say(words)
            theirs = honest.hear_hello()
        choice = select(3)
        recorded = words + choice + proof(SECRET, "select", words + theirs + choice)
    peer.say(recorded)


HANDSHAKES = [
    Case("a browser: `GET / HTTP/1.1`", _says(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")),
    Case("a client of TLS", _says(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40))),
    Case("a peer of Dask's `tcp://`", _says(struct.pack("<QQQ", 58, 1, 42))),
    Case("zeros", _says(bytes(100))),
    Case("a port scanner, which hangs up at once", _says(b"", half=True)),
    Case("7 bytes of a Hello, and the end", _says(hello(fields())[:7], half=True)),
    Case("half a Hello, and the end", _says(hello(fields())[:100], half=True)),
    Case("nothing at all", _says(b"", timeout_s=0.1)),
    Case("half a Hello, and then nothing", _says(hello(fields())[:100], timeout_s=0.1)),
    Case("a Hello, and then nothing", _says(hello(fields()), timeout_s=0.1)),
    Case("a Hello of version 77", _says(hello(fields(), version=77))),
    Case("a Hello that says it has 65,535 bytes", _says(hello(fields(), length=65535))),
    Case("a Hello without fields", _says(hello([]))),
    Case("a Hello without its nonce", _says(hello(fields(f4=None)))),
    Case("a Hello with two pids", _says(hello([*fields(), (5, bytes(4))]))),
    Case("a Hello whose nonce has 3 bytes", _says(hello(fields(f4=b"abc")))),
    Case("a Hello whose last field breaks off", _says(_cut(hello(fields())))),
    Case("a name of a socket that is not UTF-8", _says(hello(fields(f8=b"\xff\xfe")))),
    Case("a name of a socket of 200 bytes", _says(hello(fields(f8=b"x" * 200)))),
    Case("33 lanes", _says(hello(fields(f7=bytes(33))))),
    Case("a Hello that takes no message", _says(hello(fields(f10=bytes(8))))),
    Case("a Hello that takes no piece of a message", _says(hello(fields(f14=bytes(8))))),
    Case("a second Hello in the place of a selection", _selects(hello(fields()))),
    Case("an Answer in the place of a selection", _selects(select(3, kind=0x52))),
    Case("zeros in the place of a selection", _selects(bytes(8))),
    Case("a selection of lane 238", _selects(select(238))),
    Case("a selection of a lane that was not offered", _selects(select(2))),
    Case("a selection whose reason has 65,535 bytes", _selects(select(3, length=65535))),
    Case("a selection whose reason is not UTF-8", _selects(select(3, b"\xff\xfe"))),
    Case("two selections", _selects(select(2) + select(2))),
    Case("no proof, to a listener with a secret", _says(hello(fields()), secret=SECRET)),
    Case(
        "a proof of another secret",
        _says(proved_hello(b"the secret of another"), secret=SECRET),
    ),
    Case("a proof, to a listener without a secret", _says(proved_hello(SECRET))),
    Case("a proof of 31 bytes", _says(hello([*fields(), (16, bytes(31))]), secret=SECRET)),
    Case(
        "a field behind the proof",
        _says(hello([*fields(), (16, bytes(32)), (99, b"")]), secret=SECRET),
    ),
    Case(
        "another version, to a listener with a secret",
        _says(hello(fields(), version=77), secret=SECRET),
    ),
    Case("a Hello and a selection that were recorded", _rejected(_replays, secret=SECRET)),
]


def _breaks(words: bytes, **limits: int) -> Callable[[Place], object]:
    """Say something as a peer; what it got is what its endpoint raises."""

    def give(_: Place) -> object:
        with (
            Context(lanes=["tcp"], **limits) as context,  # type: ignore[arg-type]
            context.listen("127.0.0.1:0") as listener,
            Peer(listener.address) as peer,
        ):
            peer.shake_hands()
            endpoint = listener.accept().wait(DEADLINE_S)
            peer.say(words)
            return endpoint.recv_frames().wait(DEADLINE_S)

    return give


_EAGER, _REQUEST, _ACCEPT, _SKIP, _DATA, _CREDIT, _PING, _PONG, _CLOSE, _CARRIED = range(1, 11)


def _breaks_off(_: Place) -> object:
    with (
        Context(lanes=["tcp"]) as context,
        context.listen("127.0.0.1:0") as listener,
        Peer(listener.address) as peer,
    ):
        peer.shake_hands()
        endpoint = listener.accept().wait(DEADLINE_S)
        peer.say(frame(_EAGER)[:9])
        peer.close()
        return endpoint.recv_frames().wait(DEADLINE_S)


FRAMES = [
    Case("a frame of kind 99", _breaks(frame(99))),
    Case("a frame of kind 0: zeros", _breaks(bytes(32))),
    Case("text instead of frames", _breaks(b"what is this? " * 10)),
    Case("an unknown flag", _breaks(frame(_EAGER, flags=0x80))),
    Case("a reserved byte that is set", _breaks(frame(_EAGER, reserved=1))),
    Case("a Ping with a payload", _breaks(frame(_PING, payload=5))),
    Case("a Close with a tag", _breaks(frame(_CLOSE, tag=5))),
    Case("an empty Request", _breaks(frame(_REQUEST, segments=1))),
    Case("a Data frame about no message", _breaks(frame(_DATA, message=7, payload=10))),
    Case("an Accept of nothing", _breaks(frame(_ACCEPT, message=3))),
    Case("a Skip of nothing", _breaks(frame(_SKIP, message=3))),
    Case(
        "message 5 where message 0 is next",
        _breaks(frame(_EAGER, message=5, segments=1, payload=1) + b"x"),
    ),
    Case(
        "a message of 2^63 bytes",
        _breaks(frame(_REQUEST, segments=1, payload=1 << 63)),
    ),
    Case(
        "a message over the limit of this side",
        _breaks(frame(_REQUEST, segments=1, payload=1001), message_bytes_max=1000),
    ),
    Case("a message of 2^32 - 1 segments", _breaks(frame(_EAGER, segments=(1 << 32) - 1))),
    Case(
        "segments that do not add up",
        _breaks(frame(_EAGER, segments=2, payload=5) + struct.pack("<QQ", 1, 1)),
    ),
    Case(
        "an eager message over the credit",
        _breaks(
            frame(_EAGER, segments=1, payload=2000),
            credit_bytes=1000,
            eager_bytes_max=1000,
        ),
    ),
    Case(
        "more messages than were granted",
        _breaks(
            b"".join(frame(_EAGER, message=number, tag=1) for number in range(9)),
            credit_messages=8,
        ),
    ),
    Case(
        "memory of kind 9",
        _breaks(
            frame(_REQUEST, flags=2, segments=1, payload=1)
            + struct.pack("<QBBHB3xQ", 1, 9, 0, 0, 0, 0)
        ),
    ),
    Case(
        "payload by a carrier that was not agreed on",
        _breaks(frame(_CARRIED, carrier=1, payload=9)),
    ),
    Case(
        "a frame after Close", _breaks(frame(_CLOSE) + frame(_EAGER, segments=1, payload=1) + b"x")
    ),
    Case("9 bytes of a header, and the end", _breaks_off),
]
