"""Content of the dashboard's page: a matrix of workers, and sums over it; without Bokeh.

Rows are receivers, columns are senders. Workers are in order of host and name, so that each host is
a block on the diagonal. Where there are too many to be listed apart, hosts take their place.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from backhaul.dask.observe.counters import SIZE_CLASSES, Counts, Sizes, add_sizes
from backhaul.dask.observe.ledger import Ledger, moved_bytes_per_s

__all__ = [
    "Cell",
    "HostRow",
    "Matrix",
    "Peer",
    "amount",
    "duration",
    "host_rows",
    "matrix_of",
    "size_rows",
]

#: More workers than this are summed up by host.
WORKERS_MAX = 64
#: More hosts than this are left out, those with the fewest bytes first.
HOSTS_MAX = 128

#: Up to how many seconds, what they are multiplied with, and the unit of that.
_UNITS_OF_TIME = (
    (0.9995e-3, 1e6, "µs"),
    (0.9995, 1e3, "ms"),
    (600, 1, "s"),
    (36_000, 1 / 60, "min"),
    (math.inf, 1 / 3600, "h"),
)
_NOTHING = Counts(0, 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker as the scheduler knows it: the host of its address, and the name it was given."""

    address: str
    host: str
    name: str


@dataclass(slots=True)
class Cell:
    """Data that one receiver got from one sender."""

    #: Numbers of receiver and sender
    row: int
    column: int
    #: By lane, by class of sizes
    lanes: dict[str, Sizes] = field(default_factory=dict)
    #: Recent rate, in bytes per second of the wall clock
    recent_bytes_per_s: float = 0.0
    #: Expectation of the next message, for people; ``""`` if unknown
    expected: str = ""

    @property
    def sizes(self) -> Sizes:
        """Return the counts of all lanes by class of sizes; not to be changed."""
        if len(self.lanes) == 1:
            # As most are; a page of many workers looks at thousands of them.
            return next(iter(self.lanes.values()))
        total: Sizes = {}
        for sizes in self.lanes.values():
            add_sizes(total, sizes)
        return total

    @property
    def counts(self) -> Counts:
        """Return the counts of all lanes, of any size."""
        return _sum(self.sizes)

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Rate of what moved while the link was busy, as `moved_bytes_per_s` returns it."""
        return moved_bytes_per_s(self.sizes)

    @property
    def lane(self) -> str:
        """The lane of most bytes."""
        if len(self.lanes) == 1:
            return next(iter(self.lanes))
        return max(self.lanes, key=lambda lane: _sum(self.lanes[lane]).nbytes)


@dataclass(frozen=True, slots=True)
class Matrix:
    """Matrix to show."""

    #: Name of each row and column
    labels: list[str]
    #: The same at full length
    titles: list[str]
    #: Numbers of the rows with which another host begins
    bounds: list[int]
    #: Those in which anything came
    cells: list[Cell]
    #: Rows and columns are hosts
    by_host: bool
    #: Hosts for which there was no room
    left_out: int
    #: Host of each row and column
    hosts: list[str]
    #: Number of workers of each host
    workers: dict[str, int]

    def lanes(self) -> dict[str, Sizes]:
        """Sum up all cells, by lane."""
        total: dict[str, Sizes] = {}
        for cell in self.cells:
            for lane, sizes in cell.lanes.items():
                add_sizes(total.setdefault(lane, {}), sizes)
        return dict(sorted(total.items()))


def matrix_of(
    ledger: Ledger, peers: Sequence[Peer], now_s: float, *, workers_max: int = WORKERS_MAX
) -> Matrix:
    """Lay out what a ledger knows of the workers that are there, at a time since the epoch.

    More workers than `workers_max` are summed up by host.
    """
    by_name = _by_process(ledger, peers)
    by_host = len(by_name) > workers_max
    group: Callable[[str], str] = (lambda name: by_name[name][0].host) if by_host else str
    found: dict[tuple[str, str], Cell] = {}
    for receiver, sender, link in ledger.links():
        if receiver in by_name and sender in by_name:
            cell = found.setdefault((group(receiver), group(sender)), Cell(-1, -1))
            add_sizes(cell.lanes.setdefault(link.lane, {}), link.sizes)
            cell.recent_bytes_per_s += link.recent_bytes_per_s(now_s)
    left_out = 0
    if by_host:
        titles = sorted({held[0].host for held in by_name.values()}, key=_natural)
        if len(titles) > HOSTS_MAX:
            busiest = sorted(titles, key=lambda host: -_bytes_of(found, host))[:HOSTS_MAX]
            left_out = len(titles) - HOSTS_MAX
            titles = sorted(busiest, key=_natural)
        labels, bounds, hosts = titles, [], titles
    else:
        order = sorted(
            by_name.values(), key=lambda held: (_natural(held[0].host), _natural(held[0].name))
        )
        titles = [ledger.name_of(held[0].address) for held in order]
        labels = [_label(held) for held in order]
        hosts = [held[0].host for held in order]
        bounds = [number for number, (a, b) in enumerate(pairwise(hosts), start=1) if a != b]
    numbers = {title: number for number, title in enumerate(titles)}
    cells = []
    for (receiver, sender), cell in found.items():
        if receiver in numbers and sender in numbers:
            cell.row, cell.column = numbers[receiver], numbers[sender]
            cells.append(cell)
    cells.sort(key=lambda cell: (cell.row, cell.column))
    workers = Counter(peer.host for peer in peers)
    return Matrix(labels, titles, bounds, cells, by_host, left_out, hosts, workers)


@dataclass(slots=True)
class HostRow:
    """Sums over the workers of one host."""

    #: The host
    host: str
    #: Number of its workers
    workers: int
    #: Messages from other hosts, to other hosts, and between workers of the host
    received: Counts = _NOTHING
    sent: Counts = _NOTHING
    within: Counts = _NOTHING
    #: Recent rate of what its workers receive, in bytes per second of the wall clock
    recent_bytes_per_s: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of all messages from or to the host."""
        return self.received.nbytes + self.sent.nbytes + self.within.nbytes


def host_rows(matrix: Matrix) -> list[HostRow]:
    """Sum up a matrix by host, those of most bytes first."""
    rows = {host: HostRow(host, matrix.workers.get(host, 0)) for host in matrix.hosts}
    for cell in matrix.cells:
        receiver, sender = rows[matrix.hosts[cell.row]], rows[matrix.hosts[cell.column]]
        counts = cell.counts
        if receiver is sender:
            receiver.within = receiver.within.plus(counts)
        else:
            receiver.received = receiver.received.plus(counts)
            sender.sent = sender.sent.plus(counts)
        receiver.recent_bytes_per_s += cell.recent_bytes_per_s
    return sorted(rows.values(), key=lambda row: -row.nbytes)


def amount(number: float, unit: str) -> str:
    """Write a number of bytes, or a rate, in three digits; powers of 1000.

    Examples
    --------
    >>> amount(1234567, "B"), amount(2.5e10, "B/s"), amount(math.nan, "B/s")
    ('1.23 MB', '25.0 GB/s', '–')
    >>> amount(math.inf, "B/s")
    'lent'
    """
    if math.isnan(number):
        return "–"
    if math.isinf(number):
        return "lent"
    for prefix in ("", "k", "M", "G", "T"):
        if number < 999.5 or prefix == "T":
            break
        number /= 1000
    digits = 0 if number >= 99.95 or not prefix else 1 if number >= 9.995 else 2
    return f"{number:.{digits}f} {prefix}{unit}"


def duration(seconds: float) -> str:
    """Write a time in three digits.

    Examples
    --------
    >>> duration(0.000123), duration(0.5), duration(12.34), duration(2370.0)
    ('123 µs', '500 ms', '12.3 s', '39.5 min')
    """
    for limit_s, factor, unit in _UNITS_OF_TIME:
        if seconds < limit_s:
            number = seconds * factor
            digits = 0 if number >= 99.95 else 1 if number >= 9.995 else 2
            return f"{number:.{digits}f} {unit}"
    return "–"


def _by_process(ledger: Ledger, peers: Sequence[Peer]) -> dict[str, list[Peer]]:
    """Group workers by what their process is called: several may be in one."""
    by_name: dict[str, list[Peer]] = {}
    for peer in peers:
        by_name.setdefault(ledger.name_of(peer.address), []).append(peer)
    return by_name


def _label(held: list[Peer]) -> str:
    name = held[0].name
    # Dask's own default for a name is the address.
    label = name if "://" not in name else name.partition("://")[2]
    return f"{label} +{len(held) - 1}" if len(held) > 1 else label


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Sort numbers in texts as numbers, and before letters."""
    parts = (part for part in re.split(r"(\d+)", text) if part)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def _bytes_of(found: dict[tuple[str, str], Cell], host: str) -> int:
    return sum(cell.counts.nbytes for pair, cell in found.items() if host in pair)


def _sum(sizes: Sizes) -> Counts:
    total = _NOTHING
    for counts in sizes.values():
        total = total.plus(counts)
    return total


def size_rows(matrix: Matrix) -> list[tuple[str, str, Counts, float]]:
    """Sum up a matrix by lane and class of sizes.

    A row has lane, name of the class, counts, and the rate as `moved_bytes_per_s` returns it.
    """
    return [
        (lane, SIZE_CLASSES[bytes_min], counts, moved_bytes_per_s({bytes_min: counts}))
        for lane, sizes in matrix.lanes().items()
        for bytes_min, counts in sorted(sizes.items())
    ]
