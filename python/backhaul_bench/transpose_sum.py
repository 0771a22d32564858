"""``backhaul bench transpose-sum``: one Dask array job over several protocols, results compared.

In turn, each persists a random array, which is not timed, and computes ``(x + x.T).sum()``, which
is. It can be held against one process, in which nothing is moved, and against processes whose
allocator keeps freed memory: what would be left to gain if a transfer cost nothing, and if memory
did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backhaul_bench import cases
from backhaul_bench.contenders import ClusterOptions
from backhaul_bench.interleaved import Measured
from backhaul_bench.profiles import Profiler
from backhaul_bench.report import Report
from backhaul_bench.summary import spread
from backhaul_bench.transfers import PairBandwidth, pair_bandwidths

__all__ = ["RELATIVE_TOLERANCE", "Options", "Row", "run"]

#: Results may differ this much: the order of summation is Dask's choice
RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Options(ClusterOptions):
    """Options of the benchmark."""

    #: Rows and columns of the array of float64
    size: int = 8000
    #: Rows and columns of a chunk
    chunks: int = 1000
    #: Timed repetitions in each configuration
    repetitions: int = 5
    #: Repetitions before them that are not counted
    warmup: int = 1
    #: Seed of the first array; the next ones count up
    seed: int = 1


@dataclass(frozen=True)
class Row(cases.Row):
    """Results of one configuration."""

    #: Bytes that workers fetched from each other, median over repetitions
    moved_bytes_median: float
    bandwidths: list[PairBandwidth]
    #: Of each timed repetition
    sums: list[float]


def run(
    options: Options, *, on_step: Callable[[str, int], None], profiler: Profiler | None = None
) -> Report[Options, Row]:
    """Run the job in every configuration, interleaved; see `backhaul_bench.cases.run`."""
    case = cases.Case(
        "",
        "transpose-sum",
        {"size": options.size, "chunks": options.chunks},
        label="transpose-sum",
    )
    report = cases.run(
        "backhaul.bench.transpose-sum/2",
        [case],
        options,
        rows_of=_rows,
        on_step=on_step,
        profiler=profiler,
        versions_of=("numpy",),
        # As most clusters have it: workers look after their memory
        turns=cases.Turns(warmup=options.warmup, seed=options.seed, memory_limit="auto"),
    )
    equal = _all_equal([row.sums for row in report.rows])
    return replace(report, findings={"equal": equal, "relative_tolerance": RELATIVE_TOLERANCE})


def _rows(case: cases.Case, measured: Mapping[str, Sequence[Measured]]) -> list[Row]:
    return [_with_transfers(row) for row in cases.data_rows(case, measured)]


def _with_transfers(row: cases.Row) -> Row:
    moved = []
    logs: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for facts in row.facts:
        moved.append(sum(int(each["total"]) for log in facts["transfers"].values() for each in log))
        for worker, log in facts["transfers"].items():
            logs[worker] += log
    return Row(
        **vars(replace(row, facts=[])),
        moved_bytes_median=spread(moved).median,
        bandwidths=pair_bandwidths(logs, names={}),
        sums=[facts["sum"] for facts in row.facts],
    )


def _all_equal(sums: Sequence[Sequence[float]]) -> bool:
    """Compare the sums of each repetition with those of the first configuration."""
    return all(
        abs(one - other) <= RELATIVE_TOLERANCE * abs(one)
        for others in sums[1:]
        for one, other in zip(sums[0], others, strict=True)
    )
