"""Hosts that are network namespaces, joined by a bridge."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import subprocess
from multiprocessing.process import BaseProcess
from typing import Final

import pytest
from distributed import Worker

from backhaul.dask.compat.names import get_mp_context

__all__ = ["Hosts", "needs_namespaces"]

#: Kind of a namespace, of ``linux/sched.h``
_CLONE_NEWNET: Final = 0x40000000

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

    def start_worker(self, host: str, scheduler: str) -> BaseProcess:
        """Start a worker of one thread on a host, by the method that Dask is configured for."""
        place = f"/run/netns/{self.namespace(host)}", self.addresses[host]
        process: BaseProcess = get_mp_context().Process(
            target=_run_worker, args=(*place, scheduler), daemon=True
        )
        process.start()
        return process

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


def _run_worker(namespace: str, address: str, scheduler: str) -> None:
    """Run a worker in a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(namespace) as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")

    async def run() -> None:
        async with Worker(
            scheduler, host=address, nthreads=1, memory_limit=0, dashboard_address=None
        ) as worker:
            await worker.finished()

    asyncio.run(run())


def ip(*arguments: str) -> None:
    """Run iproute2's ``ip``."""
    subprocess.run(["ip", *arguments], check=True, timeout=300)


def tc(*arguments: str) -> None:
    """Run iproute2's ``tc``."""
    subprocess.run(["tc", *arguments], check=True, timeout=300)
