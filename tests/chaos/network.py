"""Hosts that are network namespaces, and links between them that lose, delay and break."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.dask.hosts import Hosts, ip

__all__ = ["Network", "why_no_network"]

_SWITCH = Path(__file__).with_name("switch.py")

#: Most bytes of one packet. Large, as each of them is carried by a program.
_MTU_BYTES = 9000


def why_no_network() -> str | None:
    """Say why there can be no network of this kind here; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "the network of the chaos runs needs /dev/net/tun"
    if not any(os.access(f"{folder}/ip", os.X_OK) for folder in os.get_exec_path()):
        return "network namespaces need the ip of iproute2"
    return None


class Network(Hosts):
    """Network namespaces, joined by a program that carries their packets.

    Parameters
    ----------
    addresses : dict of str to str
        The address of each host, all of one network of 256 addresses.
    seed : int
        Decides which packets are lost.
    """

    def __init__(self, addresses: dict[str, str], seed: int) -> None:
        super().__init__(addresses)
        self._seed = seed
        self._switch_program: subprocess.Popen[str] | None = None

    def make(self) -> None:
        """Make them all, each with an address, and the links between them whole."""
        devices = {host: f"bh{os.getpid()}t{place}" for place, host in enumerate(self.addresses)}
        named = [f"{devices[host]}={address}" for host, address in self.addresses.items()]
        self._devices = devices
        self._switch_program = subprocess.Popen(
            [sys.executable, str(_SWITCH), str(self._seed), *named],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._expect("ready")
        for host, address in self.addresses.items():
            space, device = self.namespace(host), devices[host]
            self._add(space)
            ip("link", "set", device, "netns", space)
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "address", "add", f"{address}/24", "dev", device)
            ip("-n", space, "link", "set", device, "mtu", str(_MTU_BYTES), "up")

    def set_link(
        self,
        a: str,
        b: str,
        *,
        delay_s: float = 0.0,
        loss: float = 0.0,
        bytes_per_s: float | None = None,
        is_cut: bool = False,
    ) -> None:
        """Set the properties of a link from now on, both ways.

        Parameters
        ----------
        a, b : str
            The hosts that it joins.
        delay_s : float
            Delay of each packet, in seconds.
        loss : float
            Share of packets that do not arrive.
        bytes_per_s : float, optional
            Limit in each direction, in bytes per second.
        is_cut : bool
            Nothing arrives, without an error.
        """
        link: dict[str, Any] = {
            "hosts": [self._devices[a], self._devices[b]],
            **{"delay_s": delay_s, "loss": loss, "bytes_per_s": bytes_per_s, "is_cut": is_cut},
        }
        program = self._program
        assert program.stdin is not None
        program.stdin.write(json.dumps(link) + "\n")
        program.stdin.flush()
        self._expect("ok")

    def close(self) -> None:
        """Remove what was made."""
        if self._switch_program is not None:
            assert self._switch_program.stdin is not None
            self._switch_program.stdin.close()
            self._switch_program.wait(30)
        super().close()

    @property
    def _program(self) -> subprocess.Popen[str]:
        assert self._switch_program is not None, "make() comes first"
        return self._switch_program

    def _expect(self, word: str) -> None:
        assert self._program.stdout is not None
        answer = self._program.stdout.readline()
        if answer.strip() != word:
            raise RuntimeError(f"the switch said {answer!r}, not {word!r}")
