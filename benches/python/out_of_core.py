"""``out-of-core``: an array that is larger than the workers may keep in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backhaul.bench import cases
from backhaul.bench.contenders import ClusterOptions
from backhaul.bench.profiles import Profiler
from backhaul.bench.report import Report

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(ClusterOptions):
    """Options of the benchmark."""

    #: Rows and columns
    size: int = 16_000
    #: Rows and columns of a chunk
    chunks: int = 2_000
    #: Of each worker
    memory_limit: str = "1GB"
    repetitions: int = 5


def run(
    options: Options, *, on_step: Callable[[str, int], None], profiler: Profiler | None = None
) -> Report[Options, cases.Row]:
    """Persist the array and add it to its transpose; see `backhaul.bench.cases.run`."""
    case = cases.Case(
        "persist, (x + x.T).sum()",
        "backhaul.bench.memory_job:SpillTranspose",
        {"size": options.size, "chunks": options.chunks, "scale": 1.0},
        label="out-of-core",
    )
    return cases.run(
        "backhaul.benches.out-of-core/1",
        [case],
        options,
        rows_of=cases.data_rows,
        on_step=on_step,
        profiler=profiler,
        versions_of=("numpy",),
        turns=cases.Turns(memory_limit=options.memory_limit),
    )
