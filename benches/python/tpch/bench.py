"""``tpch``: the queries of TPC-H on ``dask.dataframe``, from Parquet files to the answer.

The package tpchgen-cli makes the tables, and DuckDB the answers that those of Dask are compared
with. Where Polars is installed, it runs the SQL of the queries in one process.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from backhaul._machine import installed_versions
from backhaul_bench import cases
from backhaul_bench.dask_cluster import BenchmarkFailed
from backhaul_bench.interleaved import Measured
from backhaul_bench.profiles import Profiler
from backhaul_bench.report import Report
from benches.python.children import run_child
from benches.python.exchange_options import ExchangeOptions
from benches.python.polars_rows import has_polars, polars_row

__all__ = ["Options", "make_data", "run"]

#: For the tables and answers of scale 1, many times what they take
_DATA_S = 600.0
#: Distributions that make them
_NEEDED = ("duckdb", "tpchgen-cli")


@dataclass(frozen=True, kw_only=True)
class Options(ExchangeOptions):
    """Options of the benchmark."""

    #: Numbers of queries
    queries: Sequence[int] = tuple(range(1, 23))
    #: Of the tables
    scale: float = 1.0
    #: Files of each of the large tables
    parts: int = 8
    #: Of each worker
    memory_limit: str = "0"


def make_data(folder: str, options: Options) -> None:
    """Make the tables and the answers.

    Raises
    ------
    BenchmarkFailed
        If a query does not exist, or what makes them is not installed.
    """
    if not set(options.queries) <= set(range(1, 23)):
        raise BenchmarkFailed("TPC-H has the queries 1 to 22")
    if absent := [name for name in _NEEDED if not installed_versions(name)]:
        raise BenchmarkFailed(f"tpch needs: pip install {' '.join(absent)}")
    numbers = (options.scale, options.parts, *options.queries)
    run_child(
        "making the tables",
        "benches.python.tpch.data",
        folder,
        *map(str, numbers),
        timeout_s=_DATA_S * max(1.0, options.scale),
    )


def run(
    options: Options, *, on_step: Callable[[str, int], None], profiler: Profiler | None = None
) -> Report[Options, cases.Row]:
    """Run the queries; see `backhaul_bench.cases.run`."""
    with tempfile.TemporaryDirectory() as folder:
        on_step("making the tables", 0)
        make_data(folder, options)
        report = _run_on(folder, options, on_step=on_step, profiler=profiler)
    ratios: dict[str, list[float]] = {}
    for row in report.rows:
        ratios.setdefault(row.configuration, []).append(row.ratio)
    means = {name: statistics.geometric_mean(each) for name, each in ratios.items()}
    return replace(report, findings={"mean_ratio": means})


def _run_on(
    folder: str,
    options: Options,
    *,
    on_step: Callable[[str, int], None],
    profiler: Profiler | None,
) -> Report[Options, cases.Row]:
    chosen = [
        cases.Case(
            str(number),
            "benches.python.tpch.query_job:Query",
            {"folder": folder, "scale": options.scale, "number": number},
            label=f"query {number}",
        )
        for number in options.queries
    ]

    def rows_of(case: cases.Case, measured: Mapping[str, Sequence[Measured]]) -> list[cases.Row]:
        rows = cases.data_rows(case, measured)
        if not has_polars():
            return rows
        arguments = (folder, options.scale, case.name, options.repetitions)
        return [*rows, polars_row(rows[0], options, "benches.python.tpch.polars_job", *arguments)]

    return cases.run(
        "backhaul.benches.tpch/1",
        chosen,
        options,
        rows_of=rows_of,
        on_step=on_step,
        profiler=profiler,
        versions_of=("pandas", "pyarrow", "duckdb", *(["polars"] if has_polars() else [])),
        turns=cases.Turns(memory_limit=options.memory_limit),
    )
