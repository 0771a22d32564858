"""Counters of exchanges: blocks in memory and in files, output partitions, and chunks of arrays.

A worker counts for the process, which ``/metrics`` shows, and for each of the last exchanges, which
its heartbeats report to the scheduler: running totals, so that a report that is lost or repeated
changes nothing.

Threads: any. Locks: `ExchangeCounters._lock` guards the counts.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Final

__all__ = ["ExchangeAccount", "ExchangeCounters", "ExchangeCounts", "exchange_counters"]

#: Exchanges that a worker reports, and that the scheduler keeps: the last ones
EXCHANGES_MAX: Final = 16


@dataclass
class ExchangeCounts:
    """Counts of one exchange, or of all."""

    #: Blocks in shared memory
    blocks: int = 0
    block_bytes: int = 0
    #: Blocks in files
    file_blocks: int = 0
    file_bytes: int = 0
    #: Output partitions that were made, and their rows
    outputs: int = 0
    output_rows: int = 0
    #: Rows of the largest output partition
    output_rows_max: int = 0
    #: Chunks of arrays that were assembled
    chunks: int = 0
    chunk_bytes: int = 0
    #: Blocks, in memory or in files, and parts of chunks that came from other hosts
    received: int = 0
    received_bytes: int = 0

    def add_block(self, nbytes: int, *, in_file: bool) -> None:
        """Count a block."""
        if in_file:
            self.file_blocks += 1
            self.file_bytes += nbytes
        else:
            self.blocks += 1
            self.block_bytes += nbytes

    def add_output(self, rows: int) -> None:
        """Count an output partition."""
        self.outputs += 1
        self.output_rows += rows
        self.output_rows_max = max(self.output_rows_max, rows)

    def add_chunk(self, nbytes: int) -> None:
        """Count an assembled chunk."""
        self.chunks += 1
        self.chunk_bytes += nbytes

    def add_received(self, nbytes: int) -> None:
        """Count a block that came from another host."""
        self.received += 1
        self.received_bytes += nbytes

    def values(self) -> list[int]:
        """List the counts in the order of the fields."""
        return [getattr(self, name) for name in _NAMES]

    def plus(self, other: ExchangeCounts) -> ExchangeCounts:
        """Add the counts of another worker."""
        sums = map(operator.add, self.values(), other.values())
        largest = max(self.output_rows_max, other.output_rows_max)
        return replace(ExchangeCounts(*sums), output_rows_max=largest)

    @property
    def skew(self) -> float:
        """Rows of the largest output partition over those of the mean one; 1 without rows."""
        return self.output_rows_max * self.outputs / self.output_rows if self.output_rows else 1.0


_NAMES: Final = tuple(field.name for field in fields(ExchangeCounts))


class ExchangeCounters:
    """Counts of a worker's process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = ExchangeCounts()
        self._by_name: OrderedDict[str, ExchangeCounts] = OrderedDict()

    def note_block(self, token: str, nbytes: int, *, in_file: bool) -> None:
        """Count a block of an exchange; a side of a merge follows after a hyphen in its token."""
        with self._lock:
            for counts in (self._total, self._of(token)):
                counts.add_block(nbytes, in_file=in_file)

    def note_output(self, token: str, rows: int) -> None:
        """Count an output partition of an exchange; `token` is that of `note_block`."""
        with self._lock:
            for counts in (self._total, self._of(token)):
                counts.add_output(rows)

    def note_received(self, token: str, nbytes: int) -> None:
        """Count a block that came from another host; `token` is that of `note_block`."""
        with self._lock:
            for counts in (self._total, self._of(token)):
                counts.add_received(nbytes)

    def note_parts(self, nbytes: int) -> None:
        """Count parts of an input chunk that came from another host."""
        with self._lock:
            self._total.add_received(nbytes)

    def note_chunk(self, nbytes: int) -> None:
        """Count an assembled chunk."""
        with self._lock:
            self._total.add_chunk(nbytes)

    def total(self) -> ExchangeCounts:
        """Return the counts of all exchanges."""
        with self._lock:
            return replace(self._total)

    def report(self) -> list[list[Any]]:
        """List name and counts of the last exchanges, as plain values."""
        with self._lock:
            return [[name, *counts.values()] for name, counts in self._by_name.items()]

    def _of(self, token: str) -> ExchangeCounts:
        name, hyphen, _ = token.partition("-")
        name = f"{'merge' if hyphen else 'shuffle'} {name}"
        counts = self._by_name.get(name)
        if counts is None:
            counts = self._by_name[name] = ExchangeCounts()
        self._by_name.move_to_end(name)
        while len(self._by_name) > EXCHANGES_MAX:
            self._by_name.popitem(last=False)
        return counts


class ExchangeAccount:
    """Counts of a cluster's exchanges, on the scheduler."""

    def __init__(self) -> None:
        self._by_name: OrderedDict[str, dict[str, ExchangeCounts]] = OrderedDict()

    def note(self, worker: str, report: Iterable[Iterable[Any]]) -> None:
        """Keep the report of a worker, as `ExchangeCounters.report` makes it."""
        for name, *values in report:
            counts = ExchangeCounts(*map(int, values))
            of_workers = self._by_name.setdefault(str(name), {})
            if of_workers.get(worker) != counts:
                of_workers[worker] = counts
                self._by_name.move_to_end(name)
        while len(self._by_name) > EXCHANGES_MAX:
            self._by_name.popitem(last=False)

    def by_name(self) -> dict[str, ExchangeCounts]:
        """Add up the counts of each exchange over its workers, the last exchange first."""
        return {
            name: functools.reduce(ExchangeCounts.plus, of_workers.values())
            for name, of_workers in reversed(self._by_name.items())
        }


#: Counts of this process
exchange_counters: Final = ExchangeCounters()
