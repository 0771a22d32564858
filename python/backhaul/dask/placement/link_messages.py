"""Messages of a scheduler about links, so that workers fetch from the nearest holder.

Receivers measure, and the scheduler puts together what all receivers of a host have seen
(`LinkAccount`). A worker that has just reported gets the result: one figure for each
host, and one for each worker of its own host that it has met. Nothing is sent twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from distributed import Scheduler

from backhaul.dask.compat.operations import LINKS
from backhaul.dask.observe.link_estimates import LinkAccount
from backhaul.dask.placement.fetch_order import LINK_CLASS_MAX

__all__ = ["HOSTS_MAX", "PEERS_MAX", "LinkNews", "link_class"]

#: Of more hosts nothing is said: each is asked about for each worker
HOSTS_MAX = 128
#: Most workers of its own host whose links are sent to a worker
PEERS_MAX = 64

#: Size for which links are compared: a chunk, in bytes
_NBYTES = 16 << 20

#: Between two messages to one worker, in seconds
_PAUSE_S = 1.0

#: Answers that tell one link from another of its kind
_TOLD_APART = frozenset({"process pair", "host pair"})


class LinkNews:
    """Tells the workers of one scheduler.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.
    account : LinkAccount
        The scheduler's table of links.
    clock : callable, optional
        Seconds that never go back.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        account: LinkAccount,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._account = account
        self._clock = clock
        #: By address of the worker: the last message, and when the next may follow
        self._told: dict[str, tuple[Any, float]] = {}

    def tell(self, receiver: str, workers: Mapping[str, Sequence[str]]) -> bool:
        """Tell a worker what is new, at most once a second.

        Parameters
        ----------
        receiver : str
            Its address.
        workers : mapping of str to sequence of str
            Addresses of the workers of each host that has some.

        Returns
        -------
        bool
            Whether there was something.
        """
        before, next_s = self._told.get(receiver, (({}, {}), -math.inf))
        now_s = self._clock()
        if now_s < next_s or len(workers) > HOSTS_MAX:
            return False
        found = self._classes(receiver, workers)
        self._told[receiver] = (found, now_s + _PAUSE_S)
        if found == before:
            return False
        hosts, peers = found
        self._scheduler.worker_send(receiver, {"op": LINKS, "hosts": hosts, "peers": peers})
        return True

    def forget(self, address: str) -> None:
        """Forget a worker that has left."""
        self._told.pop(address, None)

    def _classes(
        self, receiver: str, workers: Mapping[str, Sequence[str]]
    ) -> tuple[dict[str, int], dict[str, int]]:
        hosts: dict[str, int] = {}
        peers: dict[str, int] = {}
        for host, own in workers.items():
            if receiver in own:
                for sender in own[:PEERS_MAX]:
                    if sender != receiver:
                        self._put(peers, sender, sender, receiver)
            else:
                self._put(hosts, host, own[0], receiver)
        return hosts, peers

    def _put(self, classes: dict[str, int], name: str, sender: str, receiver: str) -> None:
        answer = self._account.answer(sender, receiver, _NBYTES)
        if answer is not None and answer[-1] in _TOLD_APART:
            classes[name] = link_class(answer[0] / _NBYTES)


def link_class(seconds_per_byte: float) -> int:
    """Say of which class a link is: the logarithm to base 2 of its bytes per second, rounded.

    Examples
    --------
    >>> link_class(1 / 125e6), link_class(1 / 1.25e9), link_class(0.0)
    (27, 30, 40)
    """
    if seconds_per_byte <= 2.0**-LINK_CLASS_MAX:
        return LINK_CLASS_MAX
    return max(0, round(-math.log2(seconds_per_byte)))
