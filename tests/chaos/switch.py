"""A network in user space: carries packets between TUN devices, late, slowly, or not at all.

What ``tc netem`` does where the kernel has it, and more of it at will: each pair of hosts has a
delay, a share of packets that are lost, a rate, and can be cut. A program of its own, as what
drives it may be busy or stopped::

    python tests/chaos/switch.py SEED NAME=ADDRESS …

It makes a TUN device for each name, says ``ready``, and moves packets by their IPv4 destination
(RFC 791, section 3.1). Each line that it reads is a link as JSON, all of it, ``{"hosts": [a, b],
"delay_s": 0.0, "loss": 0.0, "bytes_per_s": null, "is_cut": false}``; it answers with ``ok`` once
that holds. It ends with its input.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import sys
import time
from dataclasses import dataclass
from itertools import count
from typing import Any

# linux/if_tun.h: the request that names a device, and flags: packets of IP, nothing in front.
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000

#: More than the largest MTU that a device can be given
PACKET_BYTES_MAX = 1 << 16
#: Bytes that wait for a link that is too slow; more are dropped, as routers do
QUEUE_BYTES_MAX = 4 << 20
#: Packets of one device before the others have their turn
BURST = 64


@dataclass
class Link:
    """One direction between two hosts."""

    delay_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float | None = None
    is_cut: bool = False
    #: When what was taken so far has left, by its rate
    free_at: float = 0.0

    def admit(self, nbytes: int, now: float, rng: random.Random) -> float | None:
        """Say when a packet arrives; None if it never does."""
        if self.is_cut or (self.loss and rng.random() < self.loss):
            return None
        begins_at = max(now, self.free_at)
        if self.bytes_per_s:
            if (begins_at - now) * self.bytes_per_s > QUEUE_BYTES_MAX:
                return None
            begins_at += nbytes / self.bytes_per_s
        # Also where a rate was taken away: packets do not overtake each other.
        self.free_at = begins_at
        return begins_at + self.delay_s


class Switch:
    """The devices, the links between them, and the packets that are on their way."""

    def __init__(self, devices: dict[str, str], rng: random.Random) -> None:
        self._descriptors = {name: open_tun(name) for name in devices}
        self._names = {descriptor: name for name, descriptor in self._descriptors.items()}
        self._by_address = {socket.inet_aton(address): name for name, address in devices.items()}
        self._links = {(a, b): Link() for a in devices for b in devices if a != b}
        self._rng = rng
        self._order = count()
        #: When, in order of arrival, where to, what
        self._under_way: list[tuple[float, int, int, bytes]] = []

    def run(self) -> None:
        """Carry packets until the input ends."""
        poll = select.poll()
        poll.register(sys.stdin, select.POLLIN)
        for descriptor in self._names:
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll(self._deliver()):
                if descriptor in self._names:
                    self._take(descriptor)
                elif line := sys.stdin.readline():
                    self._change(json.loads(line))
                else:
                    return

    def _take(self, descriptor: int) -> None:
        sender = self._names[descriptor]
        for _ in range(BURST):
            try:
                packet = os.read(descriptor, PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            receiver = self._by_address.get(packet[16:20]) if packet[0] >> 4 == 4 else None
            if receiver is None or receiver == sender:
                continue
            now = time.monotonic()
            arrives_at = self._links[sender, receiver].admit(len(packet), now, self._rng)
            if arrives_at is not None:
                entry = (arrives_at, next(self._order), self._descriptors[receiver], packet)
                heapq.heappush(self._under_way, entry)

    def _deliver(self) -> int | None:
        """Hand over what has arrived; milliseconds until the next does."""
        while self._under_way:
            left_s = self._under_way[0][0] - time.monotonic()
            if left_s > 0:
                return max(1, int(left_s * 1000))
            _, _, descriptor, packet = heapq.heappop(self._under_way)
            try:
                os.write(descriptor, packet)
            except OSError:
                # The device is down, or full: the packet is lost, which TCP is used to.
                continue
        return None

    def _change(self, link: dict[str, Any]) -> None:
        a, b = link.pop("hosts")
        for pair in ((a, b), (b, a)):
            self._links[pair] = Link(**link, free_at=self._links[pair].free_at)
        if link["is_cut"]:
            # A cable that is unplugged loses what is in it. Here that is all there is.
            self._under_way.clear()
        sys.stdout.write("ok\n")
        sys.stdout.flush()


def open_tun(name: str) -> int:
    """Make a TUN device, and give the descriptor from which its packets are read."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


def main() -> None:
    """Make the devices and run."""
    seed, *devices = sys.argv[1:]
    switch = Switch(dict(one.split("=") for one in devices), random.Random(int(seed)))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    switch.run()


if __name__ == "__main__":
    main()
