"""Receives that time out leave their message for the next, with a peer in another process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from backhaul import Context

if TYPE_CHECKING:
    from tests.native.conftest import Start

#: Messages of each test.
COUNT = 400
#: Sizes of the messages in turn, in bytes: short, long, and longer than a lane holds.
SIZES = (8, 200_000, 70_000, 3 << 20)
#: Longest of :data:`SIZES`, in bytes.
BYTES_MAX = 3 << 20

#: Connects over a lane and sends numbered messages, as frames or by tag, each once the last is out.
SENDER = """
    import sys

    import backhaul

    address, lane, kind, count, *sizes = sys.argv[1:]
    with backhaul.Context(lanes=[lane]) as context:
        endpoint = context.connect(address).wait(60)
        for i in range(int(count)):
            message = i.to_bytes(8, "little") + bytes(int(sizes[i % len(sizes)]) - 8)
            if kind == "frames":
                endpoint.send_frames([message]).wait(60)
            else:
                endpoint.send(message, tag=1).wait(60)
        sys.stdin.readline()
"""


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["frames", "into a buffer"])
async def test_a_receive_that_times_out_loses_no_message(
    far_lane: str, kind: str, start: Start
) -> None:
    buffer = bytearray(BYTES_MAX)
    with Context(lanes=[far_lane]) as context, context.listen("127.0.0.1:0") as listener:
        start(SENDER, listener.address, far_lane, kind, COUNT, *SIZES)
        endpoint = await listener.accept()

        async def receive() -> tuple[int, int]:
            if kind == "frames":
                (frame,) = await endpoint.recv_frames()
                return int.from_bytes(frame[:8], "little"), len(frame)
            nbytes, _ = await endpoint.recv(buffer, tag=1)
            return int.from_bytes(buffer[:8], "little"), nbytes

        timeouts = 0
        for i in range(COUNT):
            timeout, got = 0.0, None
            while got is None:
                try:
                    got = await asyncio.wait_for(receive(), timeout)
                except TimeoutError:
                    timeouts += 1
                    # A message may need longer than the first of them.
                    timeout += 20e-6
            assert got == (i, SIZES[i % len(SIZES)])
        assert timeouts > COUNT


@pytest.mark.parametrize("kind", ["frames", "into a buffer"])
def test_a_request_that_is_waited_for_in_vain_and_dropped_loses_no_message(
    far_lane: str, kind: str, start: Start
) -> None:
    buffer = bytearray(BYTES_MAX)
    with Context(lanes=[far_lane]) as context, context.listen("127.0.0.1:0") as listener:
        start(SENDER, listener.address, far_lane, kind, COUNT, *SIZES)
        endpoint = listener.accept().wait(60)

        def receive(timeout: float) -> tuple[int, int]:
            if kind == "frames":
                (frame,) = endpoint.recv_frames().wait(timeout)
                return int.from_bytes(frame[:8], "little"), len(frame)
            nbytes, _ = endpoint.recv(buffer, tag=1).wait(timeout)
            return int.from_bytes(buffer[:8], "little"), nbytes

        for i in range(COUNT):
            timeout, got = 0.0, None
            while got is None:
                try:
                    got = receive(timeout)
                except TimeoutError:
                    timeout += 20e-6
            assert got == (i, SIZES[i % len(SIZES)])


@pytest.mark.asyncio
async def test_tasks_that_are_cancelled_lose_no_message(far_lane: str, start: Start) -> None:
    with Context(lanes=[far_lane]) as context, context.listen("127.0.0.1:0") as listener:
        start(SENDER, listener.address, far_lane, "frames", COUNT, *SIZES)
        endpoint = await listener.accept()

        async def receive() -> bytes:
            (frame,) = await endpoint.recv_frames()
            return bytes(frame)

        for i in range(COUNT):
            for turns in range(3):
                task = asyncio.create_task(receive())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                # It may be over before the cancel comes; then the message is taken.
                (outcome,) = await asyncio.gather(task, return_exceptions=True)
                if isinstance(outcome, bytes):
                    break
                assert isinstance(outcome, asyncio.CancelledError)
            else:
                outcome = await receive()
            assert isinstance(outcome, bytes)
            assert (int.from_bytes(outcome[:8], "little"), len(outcome)) == (
                i,
                SIZES[i % len(SIZES)],
            )
