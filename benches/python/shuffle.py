"""``shuffle``: bring equal keys of a dataframe together, or sort it, every partition to all.

The rows stay the same, whatever the number of partitions that they are cut into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backhaul_bench import cases
from backhaul_bench.profiles import Profiler
from backhaul_bench.report import Report
from benches.python.exchange_options import ExchangeOptions

__all__ = ["METHODS", "Options", "run"]

#: Dask's ways to do it between processes
METHODS = ("p2p", "tasks")


@dataclass(frozen=True, kw_only=True)
class Options(ExchangeOptions):
    """Options of the benchmark."""

    #: Some of :data:`METHODS`
    methods: Sequence[str] = ("p2p",)
    #: Partitions for each worker
    chunks: Sequence[int] = (5,)
    #: Rows for each worker, over all its partitions
    rows_per_worker: int = 2_000_000
    #: Columns of 8 bytes beside the key
    columns: int = 4
    #: Some of `benches.python.shuffle_job.OPERATIONS`
    operations: Sequence[str] = ("shuffle",)
    #: Whether there is a column of text
    text: bool = False


def run(
    options: Options, *, on_step: Callable[[str, int], None], profiler: Profiler | None = None
) -> Report[Options, cases.Row]:
    """Run the shuffle each way, with every number of chunks; see `backhaul_bench.cases.run`."""
    chosen = [
        cases.Case(
            f"{operation} {method}, {chunks}".removeprefix("shuffle "),
            "benches.python.shuffle_job:Shuffle",
            {
                "method": method,
                "partitions": chunks * options.workers,
                "rows": max(1, options.rows_per_worker // chunks),
                "columns": options.columns,
                "operation": operation,
                "text": options.text,
            },
            label=f"{operation}-{method}, {chunks}",
        )
        for operation in options.operations
        for method in options.methods
        for chunks in options.chunks
    ]
    return cases.run(
        "backhaul.benches.shuffle/1",
        chosen,
        options,
        rows_of=cases.data_rows,
        on_step=on_step,
        profiler=profiler,
        versions_of=("pandas", "pyarrow"),
    )
