"""``merge``: a join of two dataframes, cut into few or many partitions.

The rows stay the same, only their partitions get smaller: what Dask does for each of them takes
over. The question is that of https://github.com/dask/distributed/issues/6899, where a join on GPUs
fell from 20 GiB/s with one chunk for each worker to 0.13 GiB/s with a hundred.

Where Polars is installed, it joins the same rows in one process with as many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from backhaul_bench import cases
from backhaul_bench.interleaved import Measured
from backhaul_bench.profiles import Profiler
from backhaul_bench.report import Report
from benches.python.exchange_options import ExchangeOptions
from benches.python.polars_rows import has_polars, polars_row

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(ExchangeOptions):
    """Options of the benchmark."""

    #: Partitions of each dataframe, for each worker
    chunks: Sequence[int] = (1, 5, 20)
    #: Rows of each dataframe, for each worker, over all its partitions
    rows_per_worker: int = 1_000_000
    #: Dask's ``shuffle_method``
    shuffle: str = "p2p"
    #: Whether the dataframes are read from files, as a part of what is measured
    parquet: bool = False
    #: Whether the types of the keys differ, so that pandas joins the exchange's outputs
    pandas: bool = False
    #: Of each worker
    memory_limit: str = "0"


def run(
    options: Options, *, on_step: Callable[[str, int], None], profiler: Profiler | None = None
) -> Report[Options, cases.Row]:
    """Run the join with every number of chunks; see `backhaul_bench.cases.run`."""
    chosen = [
        cases.Case(
            str(chunks),
            "benches.python.merge_job:Merge",
            {
                "partitions": chunks * options.workers,
                "rows": max(1, options.rows_per_worker // chunks),
                "shuffle": options.shuffle,
                "parquet": options.parquet,
                "pandas": options.pandas,
            },
            label=f"merge-{chunks}",
        )
        for chunks in options.chunks
    ]

    def rows_of(case: cases.Case, measured: Mapping[str, Sequence[Measured]]) -> list[cases.Row]:
        rows = cases.data_rows(case, measured)
        if not has_polars():
            return rows
        numbers = (case.parameters["partitions"], case.parameters["rows"], options.repetitions)
        return [*rows, polars_row(rows[0], options, "benches.python.merge_polars", *numbers)]

    return cases.run(
        "backhaul.benches.merge/2",
        chosen,
        options,
        rows_of=rows_of,
        on_step=on_step,
        profiler=profiler,
        versions_of=("pandas", "pyarrow", *(["polars"] if has_polars() else [])),
        turns=cases.Turns(memory_limit=options.memory_limit),
    )
