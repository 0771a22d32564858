"""Estimates of a scheduler's links, from the receivers that measured them.

The table is in Rust (`backhaul._native.Links`), where placement asks it. Here it is fed with what
heartbeats bring, and told who has left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Any

from dask.utils import parse_bytes

import dask
from backhaul._native import Links
from backhaul.dask.observe.counters import Report, timed_bytes_min

__all__ = ["LinkAccount"]

#: Each so many heartbeats the table is checked for workers that have left: some workers may be
#: without Backhaul.
_LOOKS = 256

logger = logging.getLogger(__name__)

#: Bytes per second, and seconds beside that, to expect before anything was measured: what
#: `crates/topology/src/distance/figures.rs` has, with its sources, for memory of one NUMA node, for
#: the latency of a network without RDMA, and for devices of two sockets.
_SAME_HOST = (12.8e9, 0.107e-6)
_NETWORK_LATENCY_S = 14.0e-6
_DEVICE = (6e9, 1.134e-6)


class LinkAccount:
    """Feeds the table of links of one scheduler.

    At most `links_max` pairs of processes have rows of their own.
    """

    def __init__(self, links_max: int) -> None:
        # What Dask assumes of any link, until more is known.
        assumed = parse_bytes(dask.config.get("distributed.scheduler.bandwidth"))
        self.links = Links(
            same_host=_SAME_HOST,
            other_host=(float(assumed), _NETWORK_LATENCY_S),
            device=_DEVICE,
            links_max=links_max,
        )
        #: Workers of whose invalid reports the log has a line; as many as there were at most.
        self._warned: set[str] = set()
        self._looks = 0

    def handle_report(
        self, address: str, host: str, report: Report, *, now_s: float | None = None
    ) -> None:
        """Take note of what a worker says; nonsense is left out, and said once of each worker.

        The report is that of `backhaul.dask.observe.counters.Reporter`; one of another release may
        lack the links. `now_s` is of a clock that does not jump; by default now.
        """
        listed = report.get("links", [])
        try:
            speed = report.get("nic_bytes_per_s")
            process = str(report["process"])
            self.links.add_worker(address, process, host, None if speed is None else float(speed))
            self.links.open_report(process, time.monotonic() if now_s is None else now_s)
            for (sender, _pid, sender_host, lane, sizes), estimates in zip(
                report["flows"], listed, strict=False
            ):
                traffic = _traffic(sizes)
                self.links.report(process, sender, sender_host, lane, *traffic, estimates)
        except (KeyError, TypeError, ValueError) as error:
            if address not in self._warned:
                self._warned.add(address)
                logger.warning(
                    "Left out what worker %s says of its links: %s",
                    address,
                    error.args[0] if error.args else error,
                )

    def keep(self, addresses: Collection[str], *, thoroughly: bool = False) -> None:
        """Forget the workers that are not among some addresses.

        Looks `thoroughly` also if there are no more workers of Backhaul than of all, or it is not
        the turn of that.
        """
        self._looks += 1
        is_due = self._looks % _LOOKS == 0
        if len(self.links) <= len(addresses) and not thoroughly and not is_due:
            return
        for address in self.links.workers():
            if address not in addresses:
                self.links.remove_worker(address)
        self._warned.intersection_update(addresses)

    def answer(
        self, sender: str, receiver: str, nbytes: int
    ) -> tuple[float, float, float, int, str] | None:
        """Predict a message, as `Links.answer`; None if one of the workers has not reported."""
        try:
            return self.links.answer(sender, receiver, nbytes)
        except KeyError:
            return None

    def rows(self) -> list[tuple[Any, ...]]:
        """List what was measured, as `Links.rows`."""
        return self.links.rows()


def _traffic(sizes: list[list[float]]) -> tuple[int, float]:
    """Add up the bytes that moved in messages that are timed, and their seconds."""
    moved_bytes, busy_s = 0.0, 0.0
    for bytes_min, _messages, nbytes, lent_bytes, seconds in sizes:
        if bytes_min >= timed_bytes_min:
            moved_bytes += nbytes - lent_bytes
            busy_s += seconds
    return int(moved_bytes), busy_s
