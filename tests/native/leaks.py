"""Leftovers of messages, connections and contexts, counted in a process of its own.

A program: ``python leaks.py messages shm 100``. It ends with a traceback if anything is left. In
the process of all tests, what an earlier test still closes would count.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator

import psutil

from backhaul import Context, Endpoint

#: Long enough to wait for the peer's receive
LARGE = 1 << 20
DEADLINE_S = 300.0

process = psutil.Process()


def of_messages(lane: str, size: str) -> None:
    """Exchange many messages, and hold no more than before."""
    nbytes = int(size)
    message = bytearray(nbytes)
    count = 10_000 if nbytes == 100 else 1000

    def exchange(count: int) -> None:
        buffer = bytearray(nbytes)
        for _ in range(count // 2):
            send = a.send_frames([message, b"end"])
            b.recv_frames().wait(DEADLINE_S)
            send.wait(DEADLINE_S)
            receive = b.recv(buffer, tag=1)
            a.send(message, tag=1).wait(DEADLINE_S)
            receive.wait(DEADLINE_S)

    with connected(lane) as (a, b):
        exchange(count // 10)
        gc.collect()
        tracemalloc.start()
        exchange(100)
        gc.collect()
        objects, descriptors = len(gc.get_objects()), process.num_fds()
        traced, resident = tracemalloc.get_traced_memory()[0], process.memory_info().rss
        exchange(count)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - traced < 100_000
        assert process.memory_info().rss - resident < 16 << 20
        assert len(gc.get_objects()) - objects < 100
        assert process.num_fds() == descriptors


def of_awaited_messages(lane: str) -> None:
    """Do the same in an event loop."""

    async def exchange(count: int) -> None:
        for _ in range(count):
            receive = asyncio.ensure_future(b.recv_frames())
            await asyncio.sleep(0)
            await a.send_frames([b"x" * 5000])
            await receive

    async def count_twice() -> None:
        await exchange(100)
        gc.collect()
        objects, descriptors = len(gc.get_objects()), process.num_fds()
        await exchange(1000)
        gc.collect()
        assert len(gc.get_objects()) - objects < 100
        assert process.num_fds() == descriptors

    with connected(lane) as (a, b):
        asyncio.run(count_twice())


def of_connections(lane: str) -> None:
    """Connect and end in every way."""

    def connect_all(count: int) -> None:
        for i in range(count):
            connecting = context.connect(listener.address)
            b = listener.accept().wait(DEADLINE_S)
            a = connecting.wait(DEADLINE_S)
            a.send(bytes(LARGE if i % 2 else 10))
            if i % 3 == 0:
                a.close().wait(DEADLINE_S)
            elif i % 3 == 1:
                b.abort()

    # Some close with a message that no receive takes, hence the short time to linger.
    with Context(lanes=[lane], linger_s=0.01) as context, context.listen("127.0.0.1:0") as listener:
        listening = process.num_fds()
        connect_all(10)
        gc.collect()
        eventually(lambda: process.num_fds() <= listening)
        resident = process.memory_info().rss
        connect_all(100)
        gc.collect()
        eventually(lambda: process.num_fds() <= listening)
        assert process.memory_info().rss - resident < 64 << 20


def of_contexts() -> None:
    """Make contexts, close some and drop others."""
    descriptors, threads = process.num_fds(), process.num_threads()
    for i in range(50):
        context = Context()
        listener = context.listen("127.0.0.1:0")
        endpoint = context.connect(listener.address).wait(DEADLINE_S)
        if i % 2:
            context.close()
        del context, listener, endpoint
    eventually(lambda: process.num_fds() <= descriptors)
    eventually(lambda: process.num_threads() <= threads)


@contextlib.contextmanager
def connected(lane: str) -> Iterator[tuple[Endpoint, Endpoint]]:
    """Connect two endpoints of this process."""
    with Context(lanes=[lane]) as context:
        with context.listen("127.0.0.1:0") as listener:
            connecting = context.connect(listener.address)
            b = listener.accept().wait(DEADLINE_S)
            a = connecting.wait(DEADLINE_S)
        assert a.lane == b.lane == lane
        yield a, b


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at, "it never came to hold"
        time.sleep(0.001)


if __name__ == "__main__":
    globals()[f"of_{sys.argv[1]}"](*sys.argv[2:])
