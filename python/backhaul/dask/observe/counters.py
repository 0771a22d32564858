"""Counters of the data that this process has received over Backhaul, and reports of them.

The counting is the fabric's (`Context.flows`): each message once, at its receiver, by peer process,
lane and class of sizes. Here the contexts of the process are added up, and a worker's heartbeats
are given what has changed: running totals, so that a heartbeat that is lost or repeated does no
harm, and a bounded number of them, so that a heartbeat stays small however many peers there are.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from backhaul._native import SIZE_CLASSES_BYTES_MIN, process_token
from backhaul.dask.comm.native_context import contexts

__all__ = [
    "OTHERS",
    "SIZE_CLASSES",
    "Counts",
    "Flow",
    "Report",
    "Reporter",
    "Sizes",
    "add_sizes",
    "process_flows",
    "size_class_name",
    "timed_bytes_min",
    "totals_by_lane",
]

#: The sender in whose name stands what is not listed apart
OTHERS = "(others)"
#: Flows that one heartbeat tells because they have changed; most bytes first, the others wait.
CHANGED_MAX = 64
#: Flows that it tells besides, in turn, should an earlier heartbeat have been lost.
REPEATED_MAX = 4

#: Content of a report in a heartbeat, of plain values: see `Reporter`.
Report: TypeAlias = dict[str, Any]


class Counts(NamedTuple):
    """Messages of one class of sizes, since the receiver started."""

    messages: int
    nbytes: int
    lent_bytes: int
    seconds: float

    def plus(self, other: Counts) -> Counts:
        """Add another one."""
        return Counts(
            self.messages + other.messages,
            self.nbytes + other.nbytes,
            self.lent_bytes + other.lent_bytes,
            self.seconds + other.seconds,
        )

    def less(self, other: Counts) -> Counts:
        """Take another one away; nothing falls below zero."""
        return Counts(
            max(0, self.messages - other.messages),
            max(0, self.nbytes - other.nbytes),
            max(0, self.lent_bytes - other.lent_bytes),
            max(0.0, self.seconds - other.seconds),
        )


#: Counts by the size of the smallest message of their class, in bytes.
Sizes: TypeAlias = dict[int, Counts]


@dataclass(frozen=True, slots=True)
class Flow:
    """Data that one process has sent to this one over one lane."""

    #: The sender, as its `process_token` says; None for the sum over processes of a host that are
    #: long gone
    process: str | None
    #: Its process id, in its own namespace
    pid: int
    #: Address of its host
    host: str
    #: ``inproc``, ``shm``, ``ucx`` or ``tcp``
    lane: str
    #: The counts by class of sizes
    sizes: Sizes
    #: How fast it came, as `backhaul._native.Links.report` takes it
    links: bytes = b""
    #: Open connections
    connections: int = 0


#: The least size of messages whose time is taken, as `crates/fabric/src/flow.rs` has it.
timed_bytes_min = 64 << 10


def size_class_name(bytes_min: int) -> str:
    """Name the class that begins at a size.

    Examples
    --------
    >>> [size_class_name(bytes_min) for bytes_min in SIZE_CLASSES_BYTES_MIN]
    ['<4KiB', '4-64KiB', '64KiB-1MiB', '1-16MiB', '16-256MiB', '>=256MiB']
    """
    return SIZE_CLASSES[bytes_min]


def _names(bounds: tuple[int, ...]) -> dict[int, str]:
    def amount(nbytes: int) -> tuple[str, str]:
        return (str(nbytes >> 20), "MiB") if nbytes >= 1 << 20 else (str(nbytes >> 10), "KiB")

    names = {bounds[0]: "<" + "".join(amount(bounds[1]))}
    for low, high in itertools.pairwise(bounds[1:]):
        (start, start_unit), (end, unit) = amount(low), amount(high)
        names[low] = f"{start}{'' if start_unit == unit else start_unit}-{end}{unit}"
    names[bounds[-1]] = ">=" + "".join(amount(bounds[-1]))
    return names


#: Names of the classes of sizes, smallest first, by the size of their smallest message in bytes.
SIZE_CLASSES: dict[int, str] = _names(SIZE_CLASSES_BYTES_MIN)


def process_flows() -> list[Flow]:
    """Read what this process has received, in all contexts, by process and lane."""
    found: dict[tuple[str | None, str, str], Flow] = {}
    for context in contexts():
        for flow in context.flows():
            sizes = {bytes_min: Counts(*counts) for bytes_min, counts in flow["sizes"].items()}
            process, lane, host = flow["process"], flow["lane"], flow["host"]
            # One process may be seen at several addresses of its host.
            key = (process, lane, "" if process else host)
            if key in found:
                known = found[key]
                add_sizes(known.sizes, sizes)
                found[key] = dataclasses.replace(
                    known,
                    # Contexts measure apart; the one that has more to say is believed.
                    links=max(known.links, flow["links"], key=len),
                    connections=known.connections + flow["connections"],
                )
            else:
                found[key] = Flow(
                    process, flow["pid"], host, lane, sizes, flow["links"], flow["connections"]
                )
    return list(found.values())


def add_sizes(total: Sizes, other: Sizes) -> None:
    """Add counts to others, in place."""
    for bytes_min, counts in other.items():
        total[bytes_min] = total[bytes_min].plus(counts) if bytes_min in total else counts


def totals_by_lane(flows: Iterable[Flow]) -> dict[str, Sizes]:
    """Add up flows over all peers, for each lane."""
    totals: dict[str, Sizes] = defaultdict(dict)
    for flow in flows:
        add_sizes(totals[flow.lane], flow.sizes)
    return dict(totals)


@dataclass(eq=False)
class Reporter:
    """Says what a worker's heartbeats are to carry.

    Called, it gives a report: the ``process``, the ``totals`` of each lane, which are always right,
    and those ``flows`` that have changed since they were last reported. A flow is ``[process, pid,
    host, lane, sizes]``, and sizes are a list of ``[bytes_min, messages, nbytes, lent_bytes,
    seconds]``. In ``links`` are the estimates of each of these flows, 13 bytes for each memory and
    class of sizes, as `Flow.links` has them.
    """

    read: Callable[[], list[Flow]] = process_flows
    #: Messages of each flow when it was last reported, in the order in which they are repeated.
    _reported: dict[tuple[str | None, str], int] = field(default_factory=dict)

    def __call__(self, *, changed_max: int | None = CHANGED_MAX) -> Report:
        """Make a report, with at most so many changed flows; it counts as sent."""
        flows = self.read()
        known: dict[tuple[str | None, str], Flow] = {
            (flow.process, flow.lane): flow for flow in flows if flow.process
        }
        reported = self._reported
        for gone in reported.keys() - known.keys():
            del reported[gone]
        changed = [
            key for key, flow in known.items() if _messages(flow.sizes) != reported.get(key, 0)
        ]
        changed.sort(key=lambda key: -_bytes(known[key].sizes))
        chosen = dict.fromkeys(changed[:changed_max])
        repeated = (key for key in reported if key not in chosen)
        chosen |= dict.fromkeys(list(itertools.islice(repeated, REPEATED_MAX)))
        for key in chosen:
            # At the end: the others are repeated first.
            reported.pop(key, None)
            reported[key] = _messages(known[key].sizes)
        return {
            "process": process_token(),
            "totals": [[lane, _listed(sizes)] for lane, sizes in totals_by_lane(flows).items()],
            "flows": [
                [flow.process, flow.pid, flow.host, flow.lane, _listed(flow.sizes)]
                for flow in map(known.__getitem__, chosen)
            ],
            "links": [known[key].links for key in chosen],
        }


def _messages(sizes: Sizes) -> int:
    return sum(counts.messages for counts in sizes.values())


def _bytes(sizes: Sizes) -> int:
    return sum(counts.nbytes for counts in sizes.values())


def _listed(sizes: Sizes) -> list[list[float]]:
    return [[bytes_min, *counts] for bytes_min, counts in sorted(sizes.items())]
