"""Bad input of programs: addresses, options, buffers, operations out of place."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import backhaul
from backhaul import Arena, Context, Endpoint
from tests.bad_inputs.cases import DEADLINE_S, Case, Place

__all__ = ["ADDRESSES", "OPERATIONS", "OPTIONS"]


def _listens(address: Any) -> Callable[[Place], object]:
    return lambda _: backhaul.listen(address)


def _connects(address: Any, **options: Any) -> Callable[[Place], object]:
    return lambda _: backhaul.connect(address, **options).wait(DEADLINE_S)


def _taken(_: Place) -> object:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        return backhaul.listen(f"127.0.0.1:{other.getsockname()[1]}")


def _refused(_: Place) -> object:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return backhaul.connect(f"127.0.0.1:{unused.getsockname()[1]}").wait(DEADLINE_S)


def _says_at_once(words: bytes) -> Callable[[Place], object]:
    """Connect to a server of another kind, which says something or hangs up."""

    def give(_: Place) -> object:
        with socket.create_server(("127.0.0.1", 0)) as server:
            request = backhaul.connect(f"127.0.0.1:{server.getsockname()[1]}")
            taken, _address = server.accept()
            with taken:
                # The bytes that came are read, or its end would be a reset.
                taken.recv(4096)
                taken.sendall(words)
                taken.shutdown(socket.SHUT_WR)
                return request.wait(DEADLINE_S)

    return give


def _says_nothing(_: Place) -> object:
    with socket.create_server(("127.0.0.1", 0)) as server, Context(handshake_timeout_s=0.1) as near:
        return near.connect(f"127.0.0.1:{server.getsockname()[1]}").wait(DEADLINE_S)


ADDRESSES = [
    Case("`listen('')`", _listens("")),
    Case("`listen('here')`", _listens("here")),
    Case("`listen('127.0.0.1')`", _listens("127.0.0.1")),
    Case("`listen('127.0.0.1:port')`", _listens("127.0.0.1:port")),
    Case("`listen('127.0.0.1:70000')`", _listens("127.0.0.1:70000")),
    Case("`listen('127.0.0.1:-1')`", _listens("127.0.0.1:-1")),
    Case("`listen('tcp://127.0.0.1:0')`", _listens("tcp://127.0.0.1:0")),
    Case("`listen('::1:80')`", _listens("::1:80")),
    Case("`listen('[::1:80')`", _listens("[::1:80")),
    Case("`listen('a host:80')`", _listens("a host:80")),
    Case("`listen(8080)`", _listens(8080)),
    Case("`listen` on an address of another machine", _listens("203.0.113.1:0")),
    Case("`listen` on a port that is taken", _taken),
    Case("`connect('')`", _connects("")),
    Case("`connect('127.0.0.1')`", _connects("127.0.0.1")),
    Case("`connect(b'127.0.0.1:80')`", _connects(b"127.0.0.1:80")),
    Case("`connect` over a lane that is none", _connects("127.0.0.1:1", lanes=["pigeon"])),
    Case("`connect` over 6 lanes", _connects("127.0.0.1:1", lanes=["tcp"] * 6)),
    Case("`connect` to a port where no process listens", _refused),
    Case("`connect` to a server of SSH", _says_at_once(b"SSH-2.0-OpenSSH_9.9\r\n")),
    Case("`connect` to a server that hangs up", _says_at_once(b"")),
    Case("`connect` to a server that says nothing", _says_nothing),
]


def _option(name: str, value: Any) -> Case:
    is_secret = name == "secret" and isinstance(value, bytes)
    shown = f"{len(value)} bytes" if is_secret else repr(value)
    return Case(f"`Context({name}={shown})`", lambda _: Context(**{name: value}))


OPTIONS = [
    _option("lanes", ["pigeon"]),
    _option("lanes", ["tcp"] * 6),
    _option("lanes", 7),
    _option("carriers", ["coach"]),
    _option("carriers", ["lease"] * 6),
    _option("ring_bytes", 5000),
    _option("ring_bytes", 64),
    _option("ring_bytes", 1 << 31),
    _option("ring_bytes", -1),
    _option("ring_bytes", "1MiB"),
    _option("backlog", 0),
    _option("backlog", 1 << 40),
    _option("segments_max", 0),
    _option("segments_max", 1 << 21),
    _option("credit_messages", 3),
    _option("message_bytes_max", 0),
    _option("message_bytes_max", 1 << 63),
    _option("eager_bytes_max", 1 << 40),
    _option("sends_max", -1),
    _option("spin_us", -1.0),
    _option("spin_us", float("nan")),
    _option("handshake_timeout_s", -1.0),
    _option("handshake_timeout_s", float("inf")),
    _option("handshake_timeout_s", 1e12),
    _option("linger_s", 1e12),
    _option("keep_alive_interval_s", float("nan")),
    _option("keep_alive_timeout_s", -5.0),
    _option("secret", b"short"),
    _option("secret", b"x" * 1025),
    _option("secret", "text of sixteen letters"),
    _option("shared_memory_uids", [-1]),
    _option("shared_memory_uids", [1 << 32]),
    Case("`Context(arena='64MiB')`", lambda _: Context(arena="64MiB")),  # type: ignore[arg-type]
    Case("`Arena(bytes_max=-1)`", lambda _: Arena(bytes_max=-1)),
]


@contextmanager
def _pair(**options: Any) -> Iterator[tuple[Endpoint, Endpoint]]:
    with Context(lanes=["tcp"], **options) as context, context.listen("127.0.0.1:0") as listener:
        near = context.connect(listener.address).wait(DEADLINE_S)
        yield near, listener.accept().wait(DEADLINE_S)


def _does(act: Callable[[Endpoint, Endpoint], object], **options: Any) -> Callable[[Place], object]:
    def give(_: Place) -> object:
        with _pair(**options) as (near, far):
            return act(near, far)

    return give


def _receives_too_little(near: Endpoint, far: Endpoint) -> object:
    receive = far.recv(bytearray(3))
    near.send(b"four").wait(DEADLINE_S)
    return receive.wait(DEADLINE_S)


def _closes_first(near: Endpoint, far: Endpoint) -> object:
    near.close().wait(DEADLINE_S)
    return near.send(b"late").wait(DEADLINE_S)


def _hears_of_a_close(near: Endpoint, far: Endpoint) -> object:
    near.close().wait(DEADLINE_S)
    return far.recv_frames().wait(DEADLINE_S)


def _hears_of_an_end(near: Endpoint, far: Endpoint) -> object:
    near.abort()
    return far.recv_frames().wait(DEADLINE_S)


def _asks_too_early(near: Endpoint, far: Endpoint) -> object:
    return far.recv_frames().result()


def _waits_in_vain(near: Endpoint, far: Endpoint) -> object:
    return far.recv_frames().wait(0.01)


def _waits_for_less_than_nothing(near: Endpoint, far: Endpoint) -> object:
    return far.recv_frames().wait(-1)


def _gives_up(near: Endpoint, far: Endpoint) -> object:
    request = far.recv_frames()
    request.cancel()
    return request.wait(DEADLINE_S)


def _sends_too_many(near: Endpoint, far: Endpoint) -> object:
    # No peer receives, so the third waits for credit, and the fourth has no place.
    for _ in range(100):
        request = near.send(bytes(10_000))
        if request.done():
            request.result()
    raise AssertionError("all of them were taken")


def _uses_a_closed_context(_: Place) -> object:
    with Context() as context:
        pass
    return context.listen("127.0.0.1:0")


def _connects_with_a_closed_context(_: Place) -> object:
    with Context() as context:
        pass
    return context.connect("127.0.0.1:1").wait(DEADLINE_S)


def _accepts_from_a_closed_listener(_: Place) -> object:
    with Context() as context:
        listener = context.listen("127.0.0.1:0")
        listener.close()
        return listener.accept().wait(DEADLINE_S)


def _awaits_in_a_loop_that_is_over(near: Endpoint, far: Endpoint) -> object:
    async def wait() -> object:
        return await asyncio.wait_for(far.recv_frames(), 0.01)

    return asyncio.run(wait())


OPERATIONS = [
    Case("`send(7)`", _does(lambda near, far: near.send(7))),
    Case("`send('text')`", _does(lambda near, far: near.send("text"))),
    Case("`send` of every second byte", _does(lambda a, b: a.send(memoryview(b"abcd")[::2]))),
    Case("`send` of an array of objects", _does(lambda a, b: a.send(np.array([None, {}])))),
    Case("`send(..., tag=-1)`", _does(lambda near, far: near.send(b"", tag=-1))),
    Case("`send(..., tag=2**64)`", _does(lambda near, far: near.send(b"", tag=1 << 64))),
    Case("`send(..., tag='a')`", _does(lambda a, b: a.send(b"", tag="a"))),  # type: ignore[arg-type]
    Case(
        "`send` of more than `message_bytes_max`",
        _does(lambda near, far: near.send(bytes(1001)).wait(DEADLINE_S), message_bytes_max=1000),
    ),
    Case(
        "`send` where `sends_max` are queued",
        _does(_sends_too_many, credit_messages=4, sends_max=1),
    ),
    Case("`send` after `close`", _does(_closes_first)),
    Case("`send_frames(b'one buffer')`", _does(lambda near, far: near.send_frames(b"one buffer"))),
    Case("`send_frames([7])`", _does(lambda near, far: near.send_frames([7]))),
    Case(
        "`send_frames` of more than `segments_max`",
        _does(lambda a, b: a.send_frames([b""] * 11).wait(DEADLINE_S), segments_max=10),
    ),
    Case("`recv` into bytes", _does(lambda near, far: far.recv(b"read-only"))),
    Case("`recv` into nothing", _does(lambda near, far: far.recv(None))),
    Case("`recv(..., mask=-1)`", _does(lambda near, far: far.recv(bytearray(1), mask=-1))),
    Case("`recv` of 4 bytes into 3", _does(_receives_too_little)),
    Case("`recv_frames` from a peer that has closed", _does(_hears_of_a_close)),
    Case("`recv_frames` from a peer that has aborted", _does(_hears_of_an_end)),
    Case("`result()` before there is one", _does(_asks_too_early)),
    Case("`wait(0.01)` for what does not come", _does(_waits_in_vain)),
    Case("`wait(-1)`", _does(_waits_for_less_than_nothing)),
    Case("`wait` for what was cancelled", _does(_gives_up)),
    Case("`asyncio.wait_for` that runs out", _does(_awaits_in_a_loop_that_is_over)),
    Case("`listen` with a closed context", _uses_a_closed_context),
    Case("`connect` with a closed context", _connects_with_a_closed_context),
    Case("`accept` of a closed listener", _accepts_from_a_closed_listener),
]
