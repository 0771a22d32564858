"""Tags: a receiver chooses which message it wants next, as in MPI.

    python examples/tags.py

A tag is a number of 64 bits. Here its lower half says what a message is and its upper half who it
is from, so that a mask can leave either open.
"""

from __future__ import annotations

import asyncio

import backhaul

NUMBER, TEXT = 1, 2
KIND = 0xFFFF_FFFF  # the bits that count when the kind alone is asked for


def tag_of(rank: int, kind: int) -> int:
    return rank << 32 | kind


async def main() -> None:
    with backhaul.listen("127.0.0.1:0") as listener:
        connecting = backhaul.connect(listener.address)
        far, near = await listener.accept(), await connecting

        await near.send(b"one", tag=tag_of(1, TEXT))
        await near.send(b"\x07", tag=tag_of(1, NUMBER))
        await near.send(b"two", tag=tag_of(2, TEXT))

        into = bytearray(16)
        # By both halves: the last message that was sent, though others wait before it.
        got = await far.recv(into, tag=tag_of(2, TEXT))
        assert into[: got.nbytes] == b"two"

        # By the kind alone, from any sender: the tag says who it was.
        got = await far.recv(into, tag=NUMBER, mask=KIND)
        assert (into[0], got.tag >> 32) == (7, 1)

        # A mask of 0 takes anything; `probe` looks without taking.
        while (waiting := far.probe(mask=0)) is None:
            await asyncio.sleep(0)
        got = await far.recv(into, mask=0)
        assert got == waiting
        print("two, then 7, then", bytes(into[: got.nbytes]).decode())

        await near.close()


if __name__ == "__main__":
    asyncio.run(main())
