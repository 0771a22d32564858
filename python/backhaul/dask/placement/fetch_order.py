"""From which worker a worker fetches first: the nearest one of those that have a result.

Dask prefers workers of the same host, and among them any. Where links differ it matters which one:
between GPUs of one host, or behind NICs of different speed. A scheduler that places by links tells
its workers the measured links to them (`link_messages`); a worker without such a message fetches
as Dask does.
"""

from __future__ import annotations

import heapq
import logging
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from distributed import Worker
from distributed.comm import get_address_host

from backhaul.dask.compat.instance_patches import LINK_NEWS
from backhaul.dask.compat.names import HeapSet, WorkerStateMachine
from backhaul.dask.compat.operations import LINKS

__all__ = [
    "LINK_CLASS_MAX",
    "ToldLinks",
    "forget_links",
    "hears_of_links",
    "install",
    "knows_links",
    "nearest_first",
    "set_links",
]

logger = logging.getLogger(__name__)

#: The fastest class of links, of 2**40 bytes per second: what is lent does not move
LINK_CLASS_MAX = 40

#: Says of the address of a peer how long a byte takes from there, in seconds
SecondsPerByte: TypeAlias = Callable[[str], float]

_Peers: TypeAlias = Iterator[tuple[str, HeapSet[Any]]]

#: Links of each worker of this process, by its address
_links: dict[str, SecondsPerByte] = {}


def set_links(address: str, seconds_per_byte: SecondsPerByte) -> None:
    """Make a worker of this process fetch from where data comes fastest.

    Parameters
    ----------
    address : str
        Of the worker.
    seconds_per_byte : callable
        Says of the address of a peer how long a byte takes from there.
    """
    _links[address] = seconds_per_byte


def forget_links(address: str) -> None:
    """Make a worker fetch as Dask does again."""
    _links.pop(address, None)


def knows_links(address: str) -> bool:
    """Tell whether a worker of this process fetches from where data comes fastest."""
    return address in _links


def install(worker: Worker) -> None:
    """Make a worker use the scheduler's reports of links; again costs nothing."""
    if LINKS not in worker.stream_handlers:
        (slot,) = LINK_NEWS.slots
        LINK_NEWS.install(worker, {slot: _Listener(worker)})


def hears_of_links(worker: Worker) -> bool:
    """Tell whether a worker listens: one that does not would end at the first such message."""
    return isinstance(worker.stream_handlers.get(LINKS), _Listener)


class ToldLinks:
    """Links to a worker, as the scheduler has reported them.

    Parameters
    ----------
    address : str
        Of the worker.
    hosts, peers : mapping of str to int
        Classes of links, by the host of the sender and by its address: the logarithm to base 2 of
        its bytes per second. Those of one class are not told apart, so that workers that look
        alike share what is asked of them, whatever noise is in the figures.

    Raises
    ------
    ValueError
        If a class is no integer from 0 to `LINK_CLASS_MAX`.
    """

    def __init__(self, address: str, hosts: Mapping[str, int], peers: Mapping[str, int]) -> None:
        for sender, link_class in [*hosts.items(), *peers.items()]:
            if type(link_class) is not int or not 0 <= link_class <= LINK_CLASS_MAX:
                raise ValueError(
                    f"the link from {sender} has class {link_class!r}, which is no integer "
                    f"from 0 to {LINK_CLASS_MAX}"
                )
        self._host = get_address_host(address)
        self._hosts = dict(hosts)
        self._peers = dict(peers)
        others = [link_class for host, link_class in hosts.items() if host != self._host]
        #: Of a host that nothing is known of: as the others are
        self._usual = statistics.median_low(others) if others else 0

    def __call__(self, sender: str) -> float:
        """Say how long a byte takes from a peer, in seconds."""
        link_class = self._peers.get(sender)
        if link_class is None:
            host = get_address_host(sender)
            # Of its own host before any other one, as Dask has it.
            unknown = LINK_CLASS_MAX if host == self._host else self._usual
            link_class = self._hosts.get(host, unknown)
        return 2.0**-link_class


class _Listener:
    """Hears for one worker; what makes no sense is left out with one line."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._is_warned = False

    def __call__(self, hosts: Any = None, peers: Any = None, **_: Any) -> None:
        address = self._worker.address
        try:
            _links[address] = ToldLinks(address, hosts or {}, peers or {})
        except (AttributeError, TypeError, ValueError) as error:
            if not self._is_warned:
                self._is_warned = True
                logger.warning("Left out what the scheduler says of links: %s", error)


def nearest_first(original: Callable[[WorkerStateMachine], _Peers]) -> Callable[..., _Peers]:
    """Make a `_select_workers_for_gather` that knows how fast links are."""

    def _select_workers_for_gather(self: WorkerStateMachine) -> _Peers:
        seconds_per_byte = _links.get(self.address)
        return original(self) if seconds_per_byte is None else _select(self, seconds_per_byte)

    return _select_workers_for_gather


def _select(state: WorkerStateMachine, seconds_per_byte: SecondsPerByte) -> _Peers:
    """Yield peers, best first, and what can be fetched from each."""
    needed = state.data_needed
    taken = state.in_flight_workers.keys() | state.busy_workers
    for address in [address for address, tasks in needed.items() if not tasks]:
        del needed[address]
    heap = [
        _entry(state, address, tasks, seconds_per_byte(address))
        for address, tasks in needed.items()
        if address not in taken
    ]
    heapq.heapify(heap)
    while heap:
        _, per_byte, count, _, address = heapq.heappop(heap)
        tasks = needed[address]
        if tasks and -count != len(tasks):
            # Some were taken from another peer meanwhile, perhaps the most urgent one.
            heapq.heappush(heap, _entry(state, address, tasks, per_byte))
            continue
        if tasks:
            yield address, tasks
        if not tasks:
            del needed[address]


def _entry(
    state: WorkerStateMachine, address: str, tasks: HeapSet[Any], per_byte: float
) -> tuple[Any, float, int, float, str]:
    """Order by priority, then by link, then by how much is available there, then at random."""
    return tasks.peek().priority, per_byte, -len(tasks), state.rng.random(), address
