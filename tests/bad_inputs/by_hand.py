"""A peer that speaks the wire by hand, from ``docs/design/wire-format.md`` alone."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import struct
from types import TracebackType

__all__ = ["Peer", "fields", "frame", "hello", "select"]

VERSION = 3
#: Labels from which each key is derived, beside the secret
LABELS = {
    "connector": b"backhaul secret 1: connector hello",
    "acceptor": b"backhaul secret 1: acceptor hello",
    "select": b"backhaul secret 1: select",
    "answer": b"backhaul secret 1: answer",
}


def fields(**changes: bytes | None) -> list[tuple[int, bytes]]:
    """List the fields of a Hello: type and value.

    Parameters
    ----------
    **changes : bytes or None
        Values of fields by ``f`` and their type, such as ``f10``; None leaves the field out.
    """
    plain: dict[int, bytes] = {
        1: b"\1" * 16,
        2: b"\2" * 8,
        3: b"\3" * 16,
        4: os.urandom(16),
        5: struct.pack("<I", 1),
        6: struct.pack("<I", 1),
        7: b"\3",
        8: b"",
        9: struct.pack("<Q", 4 << 20),
        10: struct.pack("<Q", 1024),
        11: struct.pack("<Q", 1 << 40),
        12: struct.pack("<I", 1024),
        13: b"",
        14: struct.pack("<Q", 256 << 10),
    }
    given = {int(name[1:]): value for name, value in changes.items()}
    return [(kind, value) for kind, value in {**plain, **given}.items() if value is not None]


def hello(
    values: list[tuple[int, bytes]], *, version: int = VERSION, length: int | None = None
) -> bytes:
    """Write a Hello with these fields."""
    body = b"".join(struct.pack("<HH", kind, len(value)) + value for kind, value in values)
    rest = b"backhaul" + struct.pack("<HH", version, 0) + body
    return struct.pack("<Q", len(rest) if length is None else length) + rest


def proof(secret: bytes, label: str, said: bytes) -> bytes:
    """Prove a secret over all that was said."""
    key = hmac.digest(secret, LABELS[label], hashlib.sha256)
    return hmac.digest(key, said, hashlib.sha256)


def proved_hello(secret: bytes, before: bytes = b"", label: str = "connector") -> bytes:
    """Write a Hello that ends with its proof; ``before`` is what was said before it."""
    words = hello([*fields(), (16, bytes(32))])
    return words[:-32] + proof(secret, label, before + words[:-32])


def select(lane: int, reason: bytes = b"", *, length: int | None = None, kind: int = 0x51) -> bytes:
    """Write a selection, or with another kind an answer."""
    return struct.pack("<BBH", kind, lane, len(reason) if length is None else length) + reason


def frame(
    kind: int,
    *,
    flags: int = 0,
    carrier: int = 0,
    reserved: int = 0,
    segments: int = 0,
    message: int = 0,
    tag: int = 0,
    payload: int = 0,
) -> bytes:
    """Write the header of a frame."""
    return struct.pack("<BBBBIQQQ", kind, flags, carrier, reserved, segments, message, tag, payload)


class Peer:
    """A socket to a listener at ``host:port``, with what it takes to shake hands."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=60)

    def say(self, words: bytes) -> None:
        """Send; that the other side has hung up is no error."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(words)

    def hear(self, nbytes: int) -> bytes:
        """Read so many bytes."""
        heard = b""
        while len(heard) < nbytes:
            piece = self.socket.recv(nbytes - len(heard))
            if not piece:
                raise EOFError(f"the other side hung up after {heard!r}")
            heard += piece
        return heard

    def hear_out(self) -> bytes:
        """Read until the other side hangs up."""
        heard = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := self.socket.recv(4096):
                heard += piece
        return heard

    def hear_hello(self) -> bytes:
        """Read the Hello of the other side."""
        length = self.hear(8)
        return length + self.hear(struct.unpack("<Q", length)[0])

    def hear_choice(self, proof_bytes: int = 0) -> bytes:
        """Read a selection or answer, with its proof."""
        head = self.hear(4)
        return head + self.hear(struct.unpack("<BBH", head)[2] + proof_bytes)

    def shake_hands(self) -> None:
        """Become a peer on the tcp lane."""
        self.say(hello(fields()))
        self.hear_hello()
        self.say(select(3))
        self.hear_choice()

    def shake_hands_with(self, secret: bytes) -> None:
        """Become a peer on the tcp lane by a secret, which the other side proves as well."""
        said = proved_hello(secret)
        self.say(said)
        theirs = self.hear_hello()
        assert theirs[-32:] == proof(secret, "acceptor", said + theirs[:-32])
        said += theirs
        words = select(3, b"by hand")
        words += proof(secret, "select", said + words)
        self.say(words)
        said += words
        answer = self.hear_choice(proof_bytes=32)
        assert answer[-32:] == proof(secret, "answer", said + answer[:-32])

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
