"""Requests with asyncio: `create_task`, `gather`, `wait`, time limits and cancelling.

python examples/requests_and_tasks.py
"""

from __future__ import annotations

import asyncio

import backhaul


async def main() -> None:
    with backhaul.listen("127.0.0.1:0") as listener:
        connecting = backhaul.connect(listener.address)
        far, near = await listener.accept(), await connecting

        # Any number of operations may be under way; a request begins when it is made.
        buffers = [bytearray(4) for _ in range(4)]
        receiving = [far.recv(into, tag=n) for n, into in enumerate(buffers)]
        await asyncio.gather(*(near.send(b"%04d" % n, tag=n) for n in range(4)))
        await asyncio.gather(*receiving)
        assert buffers == [b"0000", b"0001", b"0002", b"0003"]

        # To asyncio a request is a coroutine: it can be a task beside others.
        first = asyncio.create_task(far.recv(bytearray(4), tag=1))
        second = asyncio.create_task(far.recv(bytearray(4), tag=2))
        await near.send(b"here", tag=2)
        done, pending = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        assert (done, pending) == ({second}, {first})
        # A receive that is cancelled gives its buffer back, and takes no message along.
        first.cancel()

        try:
            async with asyncio.timeout(0.01):
                await far.recv(bytearray(4), tag=3)
        except TimeoutError:
            print("nothing under tag 3, as it should be")

        # A request that waits when the peer goes fails with the reason; nothing hangs.
        waiting = far.recv(bytearray(4))
        await near.close()
        try:
            await waiting
        except backhaul.EndpointClosed as error:
            print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    asyncio.run(main())
