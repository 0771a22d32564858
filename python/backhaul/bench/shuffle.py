"""``backhaul bench shuffle``: bring equal keys of a dataframe together, every partition to all.

The rows stay the same, whatever the number of partitions that they are cut into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backhaul.bench import data_jobs
from backhaul.bench.configurations import ClusterOptions
from backhaul.bench.profiles import Profiler

__all__ = ["METHODS", "Options", "run"]

#: Dask's ways to do it between processes
METHODS = ("p2p", "tasks")


@dataclass(frozen=True, kw_only=True)
class Options(ClusterOptions):
    """What to run."""

    #: Some of :data:`METHODS`
    methods: Sequence[str] = ("p2p",)
    #: Partitions for each worker
    chunks: Sequence[int] = (5,)
    #: Rows for each worker, over all its partitions
    rows_per_worker: int = 2_000_000
    #: Columns of 8 bytes beside the key
    columns: int = 4


def run(
    options: Options, *, on_step: Callable[[str, int], None], profiler: Profiler | None = None
) -> data_jobs.Report:
    """Run the shuffle each way, with every number of chunks; see `backhaul.bench.data_jobs.run`."""
    cases = [
        data_jobs.Case(
            f"{method}, {chunks}",
            "shuffle",
            {
                "method": method,
                "partitions": chunks * options.workers,
                "rows": max(1, options.rows_per_worker // chunks),
                "columns": options.columns,
            },
        )
        for method in options.methods
        for chunks in options.chunks
    ]
    return data_jobs.run(
        "backhaul.bench.shuffle/1",
        cases,
        options,
        on_step=on_step,
        profiler=profiler,
        versions_of=("pandas", "pyarrow"),
    )
