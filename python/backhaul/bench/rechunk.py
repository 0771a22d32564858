"""``backhaul bench rechunk``: an array in chunks of rows becomes one in chunks of columns.

Every chunk has a piece for every new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backhaul.bench import data_jobs
from backhaul.bench.configurations import ClusterOptions
from backhaul.bench.profiles import Profiler

__all__ = ["METHODS", "Options", "run"]

#: Dask's ways to do it
METHODS = ("p2p", "tasks")


@dataclass(frozen=True, kw_only=True)
class Options(ClusterOptions):
    """What to run."""

    #: Some of :data:`METHODS`
    methods: Sequence[str] = METHODS
    #: Rows and columns of the array of float64
    size: int = 8000
    #: Rows of a chunk before, columns of one after
    chunks: int = 1000


def run(
    options: Options, *, on_step: Callable[[str, int], None], profiler: Profiler | None = None
) -> data_jobs.Report:
    """Rechunk an array each way; see `backhaul.bench.data_jobs.run`."""
    cases = [
        data_jobs.Case(
            method,
            "rechunk",
            {"method": method, "size": options.size, "chunks": options.chunks},
        )
        for method in options.methods
    ]
    return data_jobs.run(
        "backhaul.bench.rechunk/1",
        cases,
        options,
        on_step=on_step,
        profiler=profiler,
        versions_of=("numpy",),
    )
