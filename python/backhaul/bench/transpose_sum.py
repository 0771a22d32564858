"""``backhaul bench transpose-sum``: one Dask array job over several protocols, results compared.

In turn, each persists a random array, which is not timed, and computes ``(x + x.T).sum()``, which
is. It can be held against one process, in which nothing is moved, and against processes whose
allocator keeps freed memory: what would be left to gain if a transfer cost nothing, and if memory
did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backhaul.bench import data_jobs
from backhaul.bench.configurations import ClusterOptions, Configuration
from backhaul.bench.profiles import Profiler
from backhaul.bench.summary import spread
from backhaul.bench.transfers import PairBandwidth, pair_bandwidths

__all__ = ["AGAINST", "RELATIVE_TOLERANCE", "Options", "Report", "Row", "run"]

#: Results may differ this much: the order of summation is Dask's choice
RELATIVE_TOLERANCE = 1e-9

#: What the protocols can be held against
AGAINST = {
    "one-process": Configuration("inproc"),
    "one-process-recycled": Configuration("inproc", recycled=True),
    "tcp-recycled": Configuration("tcp", recycled=True),
}


@dataclass(frozen=True, kw_only=True)
class Options(ClusterOptions):
    """What to compute."""

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
    #: Some of :data:`AGAINST`
    against: Sequence[str] = ()

    @property
    def configurations(self) -> list[Configuration]:
        """What is compared; the first one is what the others are held to."""
        return [*super().configurations, *(AGAINST[name] for name in self.against)]


@dataclass(frozen=True)
class Row(data_jobs.Row):
    """What one configuration took."""

    #: Bytes that workers fetched from each other, median over repetitions
    moved_bytes_median: float
    bandwidths: list[PairBandwidth]
    #: Of each timed repetition
    sums: list[float]


@dataclass(frozen=True)
class Report(data_jobs.Report):
    """Everything that a run found."""

    rows: Sequence[Row]
    #: Whether all configurations computed the same sums
    equal: bool
    relative_tolerance: float = RELATIVE_TOLERANCE


def run(
    options: Options, *, on_step: Callable[[str, int], None], profiler: Profiler | None = None
) -> Report:
    """Run the job in every configuration, in turn.

    Parameters
    ----------
    options : Options
        What to compute.
    on_step : callable
        Called before each step with what comes, and how many steps are left.
    profiler : Profiler, optional
        Profiles each configuration once it is measured.

    Returns
    -------
    Report
        Times, transfers, and whether the results are equal.

    Raises
    ------
    BenchmarkFailed
        If a cluster does not start or does not answer, or a result is wrong.
    ProfilerFailed
        If the processes cannot be profiled.
    """
    case = data_jobs.Case("", "transpose-sum", {"size": options.size, "chunks": options.chunks})
    report = data_jobs.run(
        "backhaul.bench.transpose-sum/2",
        [case],
        options,
        on_step=on_step,
        profiler=profiler,
        versions_of=("numpy",),
        # As most clusters have it: workers look after their memory
        turns=data_jobs.Turns(warmup=options.warmup, seed=options.seed, memory_limit="auto"),
    )
    rows = [_with_transfers(row) for row in report.rows]
    return Report(**{**vars(report), "rows": rows}, equal=_all_equal([row.sums for row in rows]))


def _with_transfers(row: data_jobs.Row) -> Row:
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
