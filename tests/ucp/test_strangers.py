"""Peers that speak the fabric's protocol, and not ours above it."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

import pytest

import backhaul
import backhaul.ucp as ucp
from backhaul.ucp.exceptions import UCXCanceled
from tests.ucp.conftest import until

if TYPE_CHECKING:
    from tests.ucp.conftest import Connected

pytestmark = [pytest.mark.asyncio]

HEAD = struct.Struct("<BQQQ")


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"x"],
        [HEAD.pack(0, 0, 1, 0)],
        [HEAD.pack(0, 0, 1, 0), b"short"],
        [HEAD.pack(0, 9, 1, 0), bytes(16)],
        [HEAD.pack(0, 0, 2, 0), bytes(16)],
        [HEAD.pack(3, 0, 0, 1), b"x"],
        [HEAD.pack(0, 1, 1, 0), bytes(32)],
    ],
    ids=range(9),
)
async def test_who_does_not_greet_as_we_do_gets_no_endpoint(
    frames: list[bytes], connected: Connected
) -> None:
    peers: list[ucp.Endpoint] = []
    listener = ucp.create_listener(peers.append)
    stranger = await backhaul.connect(f"127.0.0.1:{listener.port}")
    await stranger.send_frames(frames)
    await until(stranger.closed)
    assert not peers
    ep = await ucp.create_endpoint("127.0.0.1", listener.port)
    await until(lambda: peers)
    ep.abort()
    peers.pop().abort()
    listener.close()


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"x"],
        [HEAD.pack(99, 0, 0, 0)],
        [HEAD.pack(0, 0, 1, 0), bytes(16)],
        [HEAD.pack(3, 0, 0, 5), b"four"],
        [HEAD.pack(4, 0, 0, 2**63), b""],
    ],
    ids=range(6),
)
async def test_nonsense_ends_the_connection(frames: list[bytes]) -> None:
    peers: list[ucp.Endpoint] = []
    listener = ucp.create_listener(peers.append)
    stranger = await backhaul.connect(f"127.0.0.1:{listener.port}")
    await stranger.send_frames([HEAD.pack(0, 0, 1, 0), bytes(16)])
    await until(lambda: peers)
    waiting = asyncio.create_task(peers[0].am_recv())
    await asyncio.sleep(0)
    await stranger.send_frames(frames)
    with pytest.raises(UCXCanceled):
        await waiting
    assert peers[0].closed()
    peers.pop().abort()
    listener.close()


async def test_a_payload_that_was_announced_and_does_not_come_waits_no_longer_than_its_peer() -> (
    None
):
    peers: list[ucp.Endpoint] = []
    listener = ucp.create_listener(peers.append)
    stranger = await backhaul.connect(f"127.0.0.1:{listener.port}")
    await stranger.send_frames([HEAD.pack(0, 0, 1, 0), bytes(16)])
    await until(lambda: peers)
    await stranger.send_frames([HEAD.pack(4, 6, 1, 100)])
    receive = asyncio.create_task(ucp.recv(bytearray(100), tag=6))
    await asyncio.sleep(0.01)
    stranger.abort()
    with pytest.raises(UCXCanceled):
        await receive
    peers.pop().abort()
    listener.close()
