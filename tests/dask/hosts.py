"""Hosts that are network namespaces, joined by a bridge."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

__all__ = ["Hosts", "needs_namespaces"]

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None,
    reason="network namespaces need root, and the ip and tc of iproute2",
)


class Hosts:
    """Network namespaces that are joined by a bridge in one more.

    Parameters
    ----------
    addresses : dict of str to str
        The address of each host, all of one network of 256 addresses.
    """

    def __init__(self, addresses: dict[str, str]) -> None:
        self.addresses = addresses
        self._prefix = f"bh{os.getpid()}"
        self._switch = f"{self._prefix}-switch"
        self.made: list[str] = []

    def make(self) -> None:
        """Make them all, each with an address."""
        self._add(self._switch)
        ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._switch, "link", "set", "bridge", "up")
        for host, address in self.addresses.items():
            space = self.namespace(host)
            self._add(space)
            ip("-n", space, "link", "set", "lo", "up")
            veth = ["type", "veth", "peer", "name", host, "netns", self._switch]
            ip("link", "add", "eth0", "netns", space, *veth)
            ip("-n", self._switch, "link", "set", host, "master", "bridge", "up")
            ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")

    def join_here(self, address: str) -> None:
        """Give this process's own network namespace an address in the network of the hosts."""
        peer = ["type", "veth", "peer", "name", "here", "netns", self._switch]
        ip("link", "add", self._prefix, *peer)
        ip("-n", self._switch, "link", "set", "here", "master", "bridge", "up")
        ip("address", "add", f"{address}/24", "dev", self._prefix)
        ip("link", "set", self._prefix, "up")

    def slow_down(self, host: str, bytes_per_s: float) -> None:
        """Limit how fast a host sends, until the next call."""
        slow = f"rate {bytes_per_s * 8:.0f}bit burst 64kb latency 400ms"
        tc("-n", self.namespace(host), *f"qdisc replace dev eth0 root tbf {slow}".split())

    def close(self) -> None:
        """Remove what was made."""
        for space in reversed(self.made):
            ip("netns", "del", space)

    def namespace(self, host: str) -> str:
        """Name a host's network namespace."""
        return f"{self._prefix}-{host}"

    def within(self, host: str) -> list[str]:
        """Command to run something on a host with."""
        return ["ip", "netns", "exec", self.namespace(host)]

    def _add(self, space: str) -> None:
        ip("netns", "add", space)
        self.made.append(space)


def ip(*arguments: str) -> None:
    """Run iproute2's ``ip``."""
    subprocess.run(["ip", *arguments], check=True, timeout=300)


def tc(*arguments: str) -> None:
    """Run iproute2's ``tc``."""
    subprocess.run(["tc", *arguments], check=True, timeout=300)
