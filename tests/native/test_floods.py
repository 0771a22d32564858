"""A peer that takes nothing: what is sent waits at its sender, and neither side grows.

With ``-s`` it prints what was sent and held. ``BACKHAUL_FLOODS=1`` adds a message of 2**20 frames.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backhaul import Context, Endpoint, QueueFull, Request, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.native.conftest import Start

#: Accepts a peer and takes nothing until a line comes; then all, and prints how many there were.
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

#: Above the windows of credit, 4 MiB and 4096 messages, and the 64 MiB of untagged long messages
#: that are fetched ahead; far below what is offered
GROWTH_BYTES_MAX = 96 << 20


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
        # 1,000,000 messages without a receive, of 1 KiB, and of 1,024 empty segments
        ("tcp", "tags", lambda near, number: near.send(bytes(1024), tag=number)),
        ("shm", "frames", lambda near, number: near.send_frames([b""] * 1024)),
        ("tcp", "frames", lambda near, number: near.send_frames([bytes(1 << 20)])),
    ],
    ids=["unexpected tags", "empty segments", "long messages"],
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
        print(f"{count} sent; receiver and sender hold {before} -> {after} bytes")  # noqa: T201
        assert count <= 4096
        assert after[0] - before[0] < GROWTH_BYTES_MAX
        assert after[1] - before[1] < GROWTH_BYTES_MAX
        # Nothing was lost, and what waited goes on.
        sink.tell(f"{kind} {count + 1}")
        waiting.wait(60)
        assert sink.line() == f"took {count + 1}"


@pytest.mark.slow
def test_a_slow_reader_does_not_grow_a_fast_writer(far_lane: str, start: Start) -> None:
    sink = start(SINK, far_lane)
    with Context(lanes=[far_lane], sends_max=64) as context:
        near = context.connect(sink.line()).wait(60)
        frames = [bytes(100_000)]
        requests = []
        refused: Exception | None = None
        # No code waits for any of them to be over.
        while refused is None:
            request = near.send_frames(frames)
            try:
                # Far longer than one takes that is not kept waiting.
                request.wait(0.002)
            except QueueFull as error:
                refused = error
                break
            except TimedOut:
                pass
            requests.append(request)
            assert len(requests) < 10_000, "all of them were taken"
        assert str(refused) == "64 sends are queued, which is the limit"
        # Messages that credit lets start, and those that wait for it: all of it the writer's own
        # memory.
        assert len(requests) <= 4096 + 64
        assert near.queued_bytes() <= len(requests) * 100_000
        sink.tell(f"frames {len(requests)}")
        for request in requests:
            request.wait(60)
        assert sink.line() == f"took {len(requests)}"


#: Takes one message, and prints what memory it had at its peak before and after, and the CPU time.
TAKER = """
    import sys
    import time

    import backhaul

    def peak_mib():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmHWM"))

    with (
        backhaul.Context(lanes=["tcp"], segments_max=1 << 20) as context,
        context.listen("127.0.0.1:0") as listener,
    ):
        print(listener.address, flush=True)
        endpoint = listener.accept().wait(60)
        sys.stdin.readline()
        before, started_s = peak_mib(), time.process_time()
        frames = endpoint.recv_frames().wait(60)
        spent_s = time.process_time() - started_s
        print(len(frames), before, peak_mib(), round(spent_s, 1), flush=True)
"""


@pytest.mark.skipif("BACKHAUL_FLOODS" not in os.environ, reason="BACKHAUL_FLOODS is not set")
def test_a_message_of_a_million_frames_is_taken(start: Start) -> None:
    taker = start(TAKER)
    with Context(lanes=["tcp"], segments_max=1 << 20) as context:
        near = context.connect(taker.line()).wait(60)
        near.send_frames([b""] * (1 << 20)).wait(60)
        taker.tell()
        frames, before_mib, after_mib, spent_s = taker.line().split()
        print(f"{frames} frames: peak {before_mib} -> {after_mib} MiB, {spent_s} s")  # noqa: T201
        assert int(frames) == 1 << 20
        assert int(after_mib) < 1024
