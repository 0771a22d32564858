"""Ledger of transfers on the scheduler, by sender and receiver: bounded, and without Dask.

A worker reports running totals (see `backhaul.dask.observe.counters`), so the ledger replaces what
it knows of a link and never averages: a bandwidth is bytes over seconds, of the same messages.
Processes are named by the addresses of the workers in them. The traffic of a worker that left stays
until the room is needed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from backhaul.dask.observe.counters import OTHERS, Counts, Report, Sizes, add_sizes, timed_bytes_min

__all__ = ["LENT_SHARE", "Ledger", "Link", "Row", "moved_bytes_per_s"]

#: Time over which `Link.recent_bytes_per_s` averages, in seconds.
RECENT_S = 10.0
#: Messages are lent if this share of their timed bytes is: the rest are headers.
LENT_SHARE = 0.99

_LinkKey: TypeAlias = tuple[str, str, str]


@dataclass(eq=False, slots=True)
class Link:
    """Data that one process has received from another over one lane."""

    #: Tokens of the processes
    receiver: str
    sender: str
    #: The lane
    lane: str
    #: Name of the sender if no worker is in it
    sender_name: str
    #: When something was first, and last, heard to have come, in seconds since the epoch
    first_s: float
    last_s: float
    #: The counts by class of sizes
    sizes: Sizes = field(default_factory=dict)
    _recent_bytes: float = 0.0

    def update(self, sizes: Sizes, now_s: float) -> None:
        """Replace what is known."""
        came = _total(sizes)
        before = _total(self.sizes)
        if came.messages != before.messages:
            self._recent_bytes *= math.exp((self.last_s - now_s) / RECENT_S)
            self._recent_bytes += max(0, came.nbytes - before.nbytes)
            self.last_s = now_s
        self.sizes = sizes

    def recent_bytes_per_s(self, now_s: float) -> float:
        """Tell what came lately, in bytes per second of the wall clock; newer counts for more."""
        return self._recent_bytes * math.exp((self.last_s - now_s) / RECENT_S) / RECENT_S


@dataclass(frozen=True, slots=True)
class Row:
    """Data over one link in messages of one class of sizes."""

    #: Addresses of workers or of the scheduler. A process with several workers has that of one of
    #: them and how many more there are; one with none has its process id and host
    receiver: str
    sender: str
    #: The lane
    lane: str
    #: The class of sizes, by its smallest message, in bytes
    bytes_min: int
    #: The counts
    counts: Counts
    #: When something was first, and last, heard to have come over the link, in seconds since the
    #: epoch
    first_s: float
    last_s: float
    #: Both are part of the cluster now
    present: bool


@dataclass(eq=False, slots=True)
class _Process:
    #: Addresses of its workers, or of the scheduler, that are there; in order.
    addresses: dict[str, None] = field(default_factory=dict)
    last_address: str = ""
    #: By lane; always right, whatever links are listed apart.
    totals: dict[str, Sizes] = field(default_factory=dict)
    first_s: float = 0.0
    last_s: float = 0.0

    @property
    def name(self) -> str:
        if not self.addresses:
            return self.last_address
        first, *others = self.addresses
        return f"{first} +{len(others)}" if others else first


class Ledger:
    """All links that are known.

    Parameters
    ----------
    links_max : int
        Most links. When there are more, those of processes that left are forgotten, oldest first;
        if there are none, new links are not listed apart.
    left_max : int
        Most processes that left and are known still.
    """

    def __init__(self, *, links_max: int, left_max: int = 1024) -> None:
        self.links_max = links_max
        self.left_max = left_max
        self._links: dict[_LinkKey, Link] = {}
        self._processes: dict[str, _Process] = {}
        #: Process of each address that is there.
        self._by_address: dict[str, str] = {}
        #: Processes that left, in that order.
        self._left: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._links)

    def handle_report(self, address: str, report: Report, now_s: float) -> dict[str, Counts]:
        """Note the totals that a worker or the scheduler reports, as `Reporter` makes them.

        The time is in seconds since the epoch. Returns messages since the last report of the
        process, by lane; none for its first report, because the process may have received them long
        ago.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is no report. The part before the fault is recorded.
        """
        receiver = str(report["process"])
        is_first = receiver not in self._processes
        process = self._enter(address, receiver, now_s)
        totals = {str(lane): _read_sizes(sizes) for lane, sizes in report["totals"]}
        gained: dict[str, Counts] = {}
        if totals != process.totals:
            if not is_first:
                gained = {
                    lane: _total(sizes).less(_total(process.totals.get(lane, {})))
                    for lane, sizes in totals.items()
                }
            process.totals = totals
            process.last_s = now_s
        for sender, pid, host, lane, listed in report["flows"]:
            key = (receiver, str(sender), str(lane))
            sizes = _read_sizes(listed)
            link = self._links.get(key)
            if link is None:
                if not sizes or not self._has_room():
                    continue
                name = f"process {int(pid)} on {host}"
                link = self._links[key] = Link(*key, name, first_s=now_s, last_s=now_s)
            link.update(sizes, now_s)
        return gained

    def leave(self, address: str) -> None:
        """Take note that a worker is gone."""
        token = self._by_address.pop(address, None)
        if token is None:
            return
        process = self._processes[token]
        process.addresses.pop(address, None)
        if not process.addresses:
            self._left[token] = None
            while len(self._left) > self.left_max:
                self._forget(next(iter(self._left)))

    def leave_all_but(self, addresses: Collection[str]) -> None:
        """Take note that all others are gone."""
        for address in [address for address in self._by_address if address not in addresses]:
            self.leave(address)

    @property
    def present(self) -> int:
        """How many addresses are there."""
        return len(self._by_address)

    def name_of(self, address: str) -> str:
        """Tell what the process of a worker is called, as in `Row`."""
        token = self._by_address.get(address)
        return address if token is None else self._processes[token].name

    def process_name(self, token: str) -> str:
        """Return the name of a process, as in `Row`; ``""`` if no worker or client is in it."""
        process = self._processes.get(token)
        return "" if process is None else process.name

    def links(self) -> Iterator[tuple[str, str, Link]]:
        """Give all links between processes that are there, with the names of both.

        Yields
        ------
        receiver, sender : str
            Names, as in `Row`.
        link : Link
            Over each lane that was used.
        """
        for link in self._links.values():
            if self._is_here(link.receiver) and self._is_here(link.sender):
                yield self._processes[link.receiver].name, self._processes[link.sender].name, link

    def rows(self) -> Iterator[Row]:
        """Give everything that is known, by link and class of sizes.

        Rows without a sender of their own have the sender `OTHERS`, so that the rows of a receiver
        add up to what it received.
        """
        listed: dict[tuple[str, str], Sizes] = {}
        for link in self._links.values():
            add_sizes(listed.setdefault((link.receiver, link.lane), {}), link.sizes)
            sender = self._processes.get(link.sender)
            yield from _rows(
                self._processes[link.receiver].name,
                sender.name if sender else link.sender_name,
                link.lane,
                link.sizes,
                link.first_s,
                link.last_s,
                self._is_here(link.receiver) and self._is_here(link.sender),
            )
        for token, process in self._processes.items():
            for lane, sizes in process.totals.items():
                rest = _less(sizes, listed.get((token, lane), {}))
                yield from _rows(
                    process.name, OTHERS, lane, rest, process.first_s, process.last_s, False
                )

    def _enter(self, address: str, token: str, now_s: float) -> _Process:
        if self._by_address.get(address, token) != token:
            # Another process has taken the address of one that left unseen.
            self.leave(address)
        process = self._processes.get(token)
        if process is None:
            process = self._processes[token] = _Process(first_s=now_s, last_s=now_s)
        self._left.pop(token, None)
        self._by_address[address] = token
        process.addresses[address] = None
        process.last_address = address
        return process

    def _is_here(self, token: str) -> bool:
        process = self._processes.get(token)
        return process is not None and bool(process.addresses)

    def _forget(self, token: str) -> None:
        """Drop a process that left, with what it received."""
        del self._left[token]
        del self._processes[token]
        for key in [key for key in self._links if key[0] == token]:
            del self._links[key]

    def _has_room(self) -> bool:
        """Make room for one more link if need be; tells whether there is."""
        if len(self._links) < self.links_max:
            return True
        old = [
            (link.last_s, key)
            for key, link in self._links.items()
            if not (self._is_here(link.receiver) and self._is_here(link.sender))
        ]
        # Several together, as each search goes over all links.
        for _, key in sorted(old)[: max(1, self.links_max // 16)]:
            del self._links[key]
        return len(self._links) < self.links_max


def moved_bytes_per_s(sizes: Sizes) -> float:
    """Return the rate of the bytes that moved while the link was busy, in bytes per second.

    Infinite if all timed messages were lent, and not a number if none was timed.
    """
    timed = _total({least: counts for least, counts in sizes.items() if least >= timed_bytes_min})
    if timed.nbytes and timed.lent_bytes >= LENT_SHARE * timed.nbytes:
        return math.inf
    return (timed.nbytes - timed.lent_bytes) / timed.seconds if timed.seconds > 0 else math.nan


def _rows(
    receiver: str,
    sender: str,
    lane: str,
    sizes: Sizes,
    first_s: float,
    last_s: float,
    present: bool,
) -> Iterator[Row]:
    for bytes_min, counts in sizes.items():
        yield Row(receiver, sender, lane, bytes_min, counts, first_s, last_s, present)


def _total(sizes: Sizes) -> Counts:
    total = Counts(0, 0, 0, 0.0)
    for counts in sizes.values():
        total = total.plus(counts)
    return total


def _less(sizes: Sizes, listed: Sizes) -> Sizes:
    """Take away what is listed apart; never less than nothing, as reports come one by one."""
    rest = {}
    for bytes_min, counts in sizes.items():
        known = listed.get(bytes_min, Counts(0, 0, 0, 0.0))
        if counts.messages > known.messages:
            rest[bytes_min] = counts.less(known)
    return rest


def _read_sizes(listed: list[list[float]]) -> Sizes:
    return {
        int(bytes_min): Counts(int(messages), int(nbytes), int(lent_bytes), float(seconds))
        for bytes_min, messages, nbytes, lent_bytes, seconds in listed
    }
