"""How long a message takes: two endpoints of one program send eight bytes to and fro.

    python examples/ping_pong.py

The lane within one process is ``inproc``; between processes it would be ``shm`` or ``tcp``
(``two_processes.py``). `backhaul bench p2p` measures this between processes, and properly.
"""

from __future__ import annotations

import asyncio
import time

import backhaul

ROUNDS = 1000


async def main() -> None:
    # Port 0 picks a free one; ``address`` has its number for the peer.
    async with backhaul.listen("127.0.0.1:0") as listener:
        connecting = backhaul.connect(listener.address)
        far = await listener.accept()
        near = await connecting

        message = bytearray(8)
        begin = time.perf_counter()
        for _ in range(ROUNDS):
            await near.send(message)
            await far.recv(message)
            await far.send(message)
            await near.recv(message)
        seconds = time.perf_counter() - begin

        print(f"lane {near.lane}: {seconds / ROUNDS / 2 * 1e6:.1f} µs one way")
        await near.close()


if __name__ == "__main__":
    asyncio.run(main())
