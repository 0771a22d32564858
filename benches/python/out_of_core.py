"""``out-of-core``: jobs on arrays that are larger than the workers may keep in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dask.utils import parse_bytes

from backhaul_bench import cases
from backhaul_bench.contenders import ClusterOptions
from backhaul_bench.profiles import Profiler
from backhaul_bench.report import Report

__all__ = ["Options", "run"]

_TRANSPOSE = "transpose"
_MODULE = "backhaul_bench.grid_job"

#: Name of each job in the tables, and the class of those on grids
_JOBS = {
    _TRANSPOSE: ("persist, (x + x.T).sum()", None),
    "anomaly": ("anomalies from the mean of all years", "Anomaly"),
    "vorticity": ("mean square of the vorticity", "Vorticity"),
    "quadratic-means": ("variances and covariance over time", "QuadraticMeans"),
}


@dataclass(frozen=True, kw_only=True)
class Options(ClusterOptions):
    """Options of the benchmark."""

    #: Names in `_JOBS`
    jobs: tuple[str, ...] = (_TRANSPOSE,)
    #: Rows and columns of the array of ``transpose``, and of its chunks
    size: int = 16_000
    chunks: int = 2_000
    #: Of each worker
    memory_limit: str = "1GB"
    #: Input of the other jobs, as a multiple of the memory of all workers
    times: float = 4.0
    repetitions: int = 5


def run(
    options: Options, *, on_step: Callable[[str, int], None], profiler: Profiler | None = None
) -> Report[Options, cases.Row]:
    """Run the jobs; see `backhaul_bench.cases.run`."""
    return cases.run(
        "backhaul.benches.out-of-core/2",
        [_case(name, options) for name in options.jobs],
        options,
        rows_of=cases.data_rows,
        on_step=on_step,
        profiler=profiler,
        versions_of=("numpy",),
        turns=cases.Turns(memory_limit=options.memory_limit),
    )


def _case(name: str, options: Options) -> cases.Case:
    title, cls = _JOBS[name]
    if cls is None:
        job = "backhaul_bench.memory_job:SpillTranspose"
        parameters = {"size": options.size, "chunks": options.chunks, "scale": 1.0}
    else:
        job = f"{_MODULE}:{cls}"
        nbytes = options.workers * parse_bytes(options.memory_limit) * options.times
        parameters = {"nbytes": int(nbytes)}
    return cases.Case(title, job, parameters, label=name)
