"""A peer that takes nothing: what is sent waits at its sender, and neither side grows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backhaul import Context, Endpoint, QueueFull, Request, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.native.conftest import Start

pytestmark = pytest.mark.timeout(120)

#: Accepts a peer and takes nothing until it is told to; then all, and prints how many there were.
SINK = """
    import sys

    import backhaul

    with (
        backhaul.Context(lanes=[sys.argv[1]]) as context,
        context.listen("127.0.0.1:0") as listener,
    ):
        print(listener.address, flush=True)
        endpoint = listener.accept().wait(60)
        for line in sys.stdin:
            kind, count = line.split()
            for number in range(int(count)):
                if kind == "frames":
                    endpoint.recv_frames().wait(60)
                else:
                    endpoint.recv(bytearray(1024), tag=number).wait(60)
            print("took", count, flush=True)
"""

#: Far above the windows of credit, 4 MiB and 4096 messages; far below what is offered
GROWTH_BYTES_MAX = 64 << 20


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def flood(send: Callable[[int], Request[None]]) -> tuple[int, Request[None]]:
    """Send until something waits; gives how many were sent before that, and what waits."""
    for number in range(1_000_000):
        request = send(number)
        try:
            request.wait(1.0)
        except TimedOut:
            return number, request
    raise AssertionError("nothing ever waited")


@pytest.mark.parametrize(
    ("lane", "kind", "offered"),
    [
        # 1,000,000 messages that nobody asks for, of 1 KiB, and of 1,024 empty segments
        ("tcp", "tags", lambda near, number: near.send(bytes(1024), tag=number)),
        ("shm", "frames", lambda near, number: near.send_frames([b""] * 1024)),
    ],
    ids=["unexpected tags", "empty segments"],
)
def test_what_nobody_receives_waits_at_its_sender(
    lane: str, kind: str, offered: Callable[[Endpoint, int], Request[None]], start: Start
) -> None:
    sink = start(SINK, lane)
    with Context(lanes=[lane]) as context:
        near = context.connect(sink.line()).wait(60)
        before = resident_bytes(sink.process.pid), resident_bytes(os.getpid())
        count, waiting = flood(lambda number: offered(near, number))
        after = resident_bytes(sink.process.pid), resident_bytes(os.getpid())
        assert count <= 4096
        assert after[0] - before[0] < GROWTH_BYTES_MAX
        assert after[1] - before[1] < GROWTH_BYTES_MAX
        # Nothing was lost, and what waited goes on.
        sink.tell(f"{kind} {count + 1}")
        waiting.wait(60)
        assert sink.line() == f"took {count + 1}"


def test_a_slow_reader_does_not_grow_a_fast_writer(far_lane: str, start: Start) -> None:
    sink = start(SINK, far_lane)
    with Context(lanes=[far_lane], sends_max=64) as context:
        near = context.connect(sink.line()).wait(60)
        frames = [bytes(100_000)]
        requests = []
        refused: Exception | None = None
        # Nobody waits for any of them.
        while refused is None:
            requests.append(near.send_frames(frames))
            if len(requests) > 10_000:
                raise AssertionError("all of them were taken")
            if requests[-1].done():
                try:
                    requests[-1].result()
                except QueueFull as error:
                    refused = error
                    requests.pop()
        assert str(refused) == "64 sends are queued, which is the limit"
        # What credit lets start, and what waits for it: all of it the writer's own memory.
        assert len(requests) <= 4096 + 64
        assert near.queued_bytes() <= len(requests) * 100_000
        sink.tell(f"frames {len(requests)}")
        for request in requests:
            request.wait(60)
        assert sink.line() == f"took {len(requests)}"
