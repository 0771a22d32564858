"""``rechunk``: an array in chunks of rows becomes one in chunks of columns.

Every chunk has a piece for every new one. Beside the last case, as many threads as the workers have
copy the array in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from backhaul_bench import cases
from backhaul_bench.contenders import ClusterOptions
from backhaul_bench.interleaved import Measured
from backhaul_bench.profiles import Profiler
from backhaul_bench.report import Report
from benches.python.children import child_row, run_child

__all__ = ["METHODS", "Options", "run"]

#: Dask's ways to do it
METHODS = ("p2p", "tasks")


@dataclass(frozen=True, kw_only=True)
class Options(ClusterOptions):
    """Options of the benchmark."""

    #: Some of :data:`METHODS`
    methods: Sequence[str] = METHODS
    #: Rows and columns of the array of float64
    size: int = 8000
    #: Rows of a chunk before, columns of one after
    chunks: Sequence[int] = (1000,)
    #: Whether the array is transposed, so that chunks have these rows after
    transpose: bool = False


def run(
    options: Options, *, on_step: Callable[[str, int], None], profiler: Profiler | None = None
) -> Report[Options, cases.Row]:
    """Rechunk an array each way; see `backhaul_bench.cases.run`."""
    chosen = [
        cases.Case(
            f"{method}, {chunks}",
            "benches.python.rechunk_job:Rechunk",
            {
                "method": method,
                "size": options.size,
                "chunks": chunks,
                "transpose": options.transpose,
            },
            label=f"rechunk-{method}, {chunks}",
        )
        for method in options.methods
        for chunks in options.chunks
    ]

    def rows_of(case: cases.Case, measured: Mapping[str, Sequence[Measured]]) -> list[cases.Row]:
        rows = cases.data_rows(case, measured)
        # One copy beside all cases, as its time depends on the size only
        return [*rows, _copy_row(rows[0], options)] if case is chosen[-1] else rows

    return cases.run(
        "backhaul.benches.rechunk/1",
        chosen,
        options,
        rows_of=rows_of,
        on_step=on_step,
        profiler=profiler,
        versions_of=("numpy",),
    )


def _copy_row(first: cases.Row, options: Options) -> cases.Row:
    """Measure a plain copy of the array; `first` is the row that it is compared with."""
    numbers = (options.size, options.workers * options.threads, options.repetitions)
    found = run_child("memcpy", "benches.python.rechunk_memcpy", *map(str, numbers))
    return child_row(first, "memcpy", found)
