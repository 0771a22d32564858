"""A server that many clients stream arrays to, and that answers each stream with its sum.

    python examples/streaming_arrays.py

Messages that are lists of frames come in the order in which they were sent, and the receiver
allocates: it need not know sizes before. A sender that is faster than its receiver is held back
by the fabric, so no queue grows without a bound.
"""

from __future__ import annotations

import asyncio

import numpy as np

import backhaul

CLIENTS, ARRAYS, VALUES = 3, 8, 100_000


async def add_up(endpoint: backhaul.Endpoint) -> None:
    """Receive arrays until an empty message ends the stream, and answer with their sum."""
    total = 0.0
    while frames := await endpoint.recv_frames():
        # A frame is a writable memoryview; NumPy looks at it without a copy.
        total += float(np.frombuffer(frames[0]).sum())
    await endpoint.send_obj(total)


async def stream(address: str, value: float) -> float:
    async with await backhaul.connect(address) as endpoint:
        for _ in range(ARRAYS):
            # Done when the array may be changed; a new one is made each time here.
            await endpoint.send_frames([np.full(VALUES, value)])
        await endpoint.send_frames([])
        answer: float = await endpoint.recv_obj()
        return answer


async def main() -> None:
    # With a handler, `listen` gives a server, which calls it for each peer.
    async with backhaul.listen("127.0.0.1:0", add_up) as server:
        answers = await asyncio.gather(*(stream(server.address, float(n)) for n in range(CLIENTS)))
    assert answers == [float(n * ARRAYS * VALUES) for n in range(CLIENTS)]
    print("sums:", *answers)


if __name__ == "__main__":
    asyncio.run(main())
