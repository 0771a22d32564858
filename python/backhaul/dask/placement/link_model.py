"""Measured links for placement: how fast they are between hosts.

Placement sees a link as the NICs of two hosts and what one flow between them gets. The table of
links answers for two workers; here it is asked about one pair of workers for each pair of hosts,
now and then, as heartbeats bring news.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from backhaul.dask.observe.link_estimates import LinkAccount

__all__ = ["HOSTS_MAX", "LearnedLinks"]

#: Between more hosts, links are taken as they usually are: each pair is asked about
HOSTS_MAX = 128

#: Size for which links are compared: a chunk, in bytes
_NBYTES = 16 << 20

#: Between two looks, in seconds
_PAUSE_S = 1.0

#: Faster than this is not told apart, in bytes per second: results that are lent do not move at all
_FASTEST = 1e12

#: A host, and bytes per second
_Nic = tuple[int, float]

#: Hosts of sender and receiver, bytes per second, latency in seconds
_Flow = tuple[int, int, float, float]

#: Answers that rest on messages
_MEASURED = frozenset({"process pair", "host pair", "class"})


class LearnedLinks:
    """Asks a table of links about hosts.

    `take` gets bandwidths of NICs by number of the host, and of flows with their latencies:
    `backhaul._native.Placement.set_hosts`.
    """

    def __init__(
        self,
        account: LinkAccount,
        take: Callable[[Sequence[_Nic], Sequence[_Flow]], None],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._account = account
        self._take = take
        self._clock = clock
        self._next_s = -math.inf
        self._told: Any = None

    def refresh(self, hosts: Mapping[str, int], workers: Mapping[str, Sequence[str]]) -> bool:
        """Tell placement what has been learned since the last time, at most once a second.

        The hosts have numbers, and the addresses of their workers. Tells whether there was
        something new.
        """
        now_s = self._clock()
        if now_s < self._next_s or len(workers) > HOSTS_MAX:
            return False
        self._next_s = now_s + _PAUSE_S
        nics: dict[int, float] = {}
        flows = []
        for sender, own in workers.items():
            for receiver, others in workers.items():
                pair = (own[0], others[0]) if sender != receiver else tuple(own[:2])
                if len(pair) < 2 or (known := self._measured(*pair)) is None:
                    continue
                here, there = hosts[sender], hosts[receiver]
                bytes_per_s, latency_s = known
                flows.append((here, there, bytes_per_s, latency_s))
                if sender != receiver:
                    # Of several flows the fastest shows best what the NIC can do.
                    nics[here] = max(bytes_per_s, nics.get(here, 0.0))
                    nics[there] = max(bytes_per_s, nics.get(there, 0.0))
        found = (sorted(nics.items()), flows)
        if not flows or found == self._told:
            return False
        self._take(*found)
        self._told = found
        return True

    def _measured(self, sender: str, receiver: str) -> tuple[float, float] | None:
        """Say how many bytes a second a link moves, and its latency; None if that is not known."""
        answer = self._account.answer(sender, receiver, _NBYTES)
        if answer is None:
            return None
        _seconds, bytes_per_s, latency_s, _samples, origin = answer
        return (min(bytes_per_s, _FASTEST), latency_s) if origin in _MEASURED else None
