"""``whole-jobs``: the jobs of the chart in README, over ``tcp`` and over ``backhaul`` in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from backhaul_bench import cases
from backhaul_bench.contenders import ClusterOptions
from backhaul_bench.profiles import Profiler
from backhaul_bench.report import Report

__all__ = ["JOBS", "Options", "run"]

#: Name in the chart, job and parameters, for two workers
JOBS: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    (
        "join two dataframes, 64 MB",
        "benches.python.merge_job:Merge",
        {"partitions": 10, "rows": 200_000, "shuffle": "p2p"},
    ),
    (
        "shuffle a dataframe, 160 MB",
        "benches.python.shuffle_job:Shuffle",
        {"method": "p2p", "partitions": 10, "rows": 400_000, "columns": 4},
    ),
    (
        "rechunk an array, 512 MB",
        "benches.python.rechunk_job:Rechunk",
        {"method": "p2p", "size": 8000, "chunks": 1000},
    ),
    ("(x + x.T).sum(), 512 MB", "transpose-sum", {"size": 8000, "chunks": 1000}),
    ("map 5,000 small tasks", "map", {"tasks": 5000, "function": "module"}),
)


@dataclass(frozen=True, kw_only=True)
class Options(ClusterOptions):
    """Options of the benchmark."""

    repetitions: int = 5


def run(
    options: Options, *, on_step: Callable[[str, int], None], profiler: Profiler | None = None
) -> Report[Options, cases.Row]:
    """Run every job over each protocol; see `backhaul_bench.cases.run`."""
    chosen = [cases.Case(name, job, parameters, label=name) for name, job, parameters in JOBS]
    report = cases.run(
        "backhaul.benches.whole-jobs/1",
        chosen,
        options,
        rows_of=cases.data_rows,
        on_step=on_step,
        profiler=profiler,
        versions_of=("numpy", "pandas", "pyarrow"),
    )
    rows = [replace(row, facts=[]) for row in report.rows]
    return replace(report, rows=rows, findings={"date": datetime.now(tz=UTC).date().isoformat()})
