"""``broadcast``: an array on every worker, how soon and in how many copies.

Copies are counted by memory: all that client, scheduler and workers hold together once every worker
has read all of the array, less what they held before the first one, over the size of the array. The
first array counts, in the client or on one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backhaul_bench import cases
from backhaul_bench.contenders import ClusterOptions
from backhaul_bench.dask_cluster import BenchmarkFailed, DaskCluster
from backhaul_bench.profiles import Profiler
from backhaul_bench.pss import read_all
from backhaul_bench.report import Report
from backhaul_bench.summary import Spread, spread

__all__ = ["WAYS", "Options", "Row", "run"]

#: From the client to all, a result copied to all, a result that tasks on all need
WAYS = ("scatter", "replicate", "fetch")

_JOB = "benches.python.broadcast_job:Broadcast"

# Large enough to go the way of large ones, small enough to leave nothing worth counting
_FIRST_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class Options(ClusterOptions):
    """Options of the benchmark."""

    #: Some of :data:`WAYS`
    ways: Sequence[str] = WAYS
    #: Size of the array, a multiple of 8
    nbytes: int = 2**28
    workers: int = 4


@dataclass(frozen=True)
class Row(cases.Row):
    """One way in one configuration."""

    #: Memory of all processes with the array on every worker, without that before the first one
    held_bytes: Spread
    #: That over the size of the array
    copies: Spread


def run(
    options: Options, *, on_step: Callable[[str, int], None], profiler: Profiler | None = None
) -> Report[Options, Row]:
    """Bring an array to every worker each way; see `backhaul_bench.cases.run`.

    Raises
    ------
    BenchmarkFailed
        As there, and if the kernel does not tell what a process holds.
    """
    chosen = [
        cases.Case(way, _JOB, {"way": way, "nbytes": options.nbytes}, label=f"broadcast-{way}")
        for way in options.ways
    ]
    first = cases.Case("first", _JOB, {"way": "fetch", "nbytes": _FIRST_BYTES}, label="first")
    #: By label of the configuration: before the first array, then with each one on every worker
    held: dict[str, list[int]] = {}

    def watch(cluster: DaskCluster, phase: str) -> None:
        # After the first small array nothing is held; of the others, once they have been read.
        known = held.setdefault(cluster.configuration.label, [])
        if phase == ("release" if known else "rest"):
            try:
                found = read_all(cluster.pids)
            except OSError as error:
                raise BenchmarkFailed(f"cannot read the memory of a process: {error}") from error
            known.append(sum(each.pss for each in found.values()))

    report = cases.run(
        "backhaul.benches.broadcast/1",
        chosen,
        options,
        rows_of=cases.data_rows,
        on_step=on_step,
        profiler=profiler,
        versions_of=("numpy",),
        turns=cases.Turns(first=first, watch=watch),
    )
    rows = [_with_memory(row, options, held) for row in report.rows]
    return Report(**{**vars(report), "rows": rows})


def _with_memory(row: cases.Row, options: Options, held: dict[str, list[int]]) -> Row:
    before, *after = held[row.configuration]
    start = options.ways.index(row.case) * options.repetitions
    grown = [each - before for each in after[start : start + options.repetitions]]
    copies = [each / options.nbytes for each in grown]
    return Row(**vars(row), held_bytes=spread(grown), copies=spread(copies))
