"""Jobs that ``backhaul bench memory`` knows by name; importing this module needs no Dask."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["CASES", "TRANSPOSE_SUM", "Case"]

TRANSPOSE_SUM: Final = "transpose-sum"

_JOBS = "backhaul_bench.memory_job"
_GRIDS = "backhaul_bench.grid_job"


@dataclass(frozen=True)
class Case:
    """One job, and what its workers may use."""

    #: Name as ``backhaul_bench.jobs`` knows it
    job: str
    #: Parameters beside the scale
    parameters: dict[str, Any] = field(default_factory=dict)
    #: Parameters of a run that loads every module, and is too small for a figure
    first: dict[str, Any] = field(default_factory=lambda: {"scale": 0.01})
    #: Of each worker, as ``dask worker`` takes it
    memory_limit: str = "4GB"
    #: Whether the job reports facts of each run that belong in a report
    has_facts: bool = False


def _spill(size: int, memory_limit: str, chunks: int = 1000) -> Case:
    """Make a job whose array is larger than two workers may keep in memory."""
    return Case(
        f"{_JOBS}:SpillTranspose",
        {"size": size, "chunks": chunks},
        memory_limit=memory_limit,
        has_facts=True,
    )


def _grid(name: str) -> Case:
    """Make a job whose input is four times the memory of two workers."""
    return Case(f"{_GRIDS}:{name}", {"nbytes": 4_000_000_000}, memory_limit="500MB", has_facts=True)


#: By name
CASES: Final = {
    TRANSPOSE_SUM: Case(TRANSPOSE_SUM, first={"size": 200, "chunks": 100}),
    "merge": Case(f"{_JOBS}:Merge"),
    "shuffle": Case(f"{_JOBS}:Shuffle"),
    "set-index": Case(f"{_JOBS}:SetIndex"),
    "groupby": Case(f"{_JOBS}:GroupBy"),
    "rechunk": Case(f"{_JOBS}:Rechunk", {"size": 6000, "chunks": 500}),
    "fft": Case(f"{_JOBS}:FourierTransform", {"size": 4096, "chunks": 512}),
    "matmul": Case(f"{_JOBS}:MatrixProduct", {"size": 4000, "chunks": 1000}),
    "climatology": Case(f"{_JOBS}:Climatology"),
    "spill-0.36": _spill(9000, "0.36GB"),
    "spill-0.6": _spill(12_000, "0.6GB"),
    "spill-1": _spill(16_000, "1GB", chunks=2000),
    "anomaly": _grid("Anomaly"),
    "vorticity": _grid("Vorticity"),
    "quadratic-means": _grid("QuadraticMeans"),
}
