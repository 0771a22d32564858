"""``backhaul bench merge``: a join of two dataframes, cut into few or many partitions.

The rows stay the same, only their partitions get smaller: what Dask does for each of them takes
over. The question is that of https://github.com/dask/distributed/issues/6899, where a join on GPUs
fell from 20 GiB/s with one chunk for each worker to 0.13 GiB/s with a hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from backhaul.bench.dask_cluster import Configuration
from backhaul.bench.machine import Machine, installed_versions
from backhaul.bench.profiles import Profile, Profiler
from backhaul.bench.summary import Spread, spread
from backhaul.bench.tasks import VERSIONS_OF
from backhaul.bench.turns import (
    Measured,
    Steps,
    lanes_between_workers,
    measure_in_turn,
    open_all,
    profile_in_turn,
    spread_by_role,
)

__all__ = ["Options", "Report", "Row", "run"]


@dataclass(frozen=True)
class Options:
    """What to run."""

    #: Partitions of each dataframe, for each worker
    chunks: Sequence[int] = (1, 5, 20)
    #: Rows of each dataframe, for each worker, over all its partitions
    rows_per_worker: int = 1_000_000
    #: Dask's ``shuffle_method``
    shuffle: str = "p2p"
    #: URI schemes
    protocols: Sequence[str] = ("tcp", "backhaul")
    #: Values of ``distributed.scheduler.worker-saturation``, each with every protocol
    saturations: Sequence[float] = (1.1,)
    workers: int = 2
    #: Of each worker
    threads: int = 1
    #: Timed repetitions for each number of chunks in each configuration
    repetitions: int = 3

    @property
    def configurations(self) -> list[Configuration]:
        """What is compared; the first one is what the others are held to."""
        return [Configuration(p, s) for p in self.protocols for s in self.saturations]


@dataclass(frozen=True)
class Row:
    """One number of chunks in one configuration."""

    chunks_per_worker: int
    configuration: str
    #: Of each dataframe
    partitions: int
    rows_per_partition: int
    #: Both dataframes
    input_bytes: int
    #: Wall-clock of each repetition
    seconds: list[float]
    seconds_median: float
    seconds_min: float
    seconds_max: float
    #: Input over the median time
    input_bytes_per_s: float
    #: Median of the first configuration over this one's
    ratio: float
    #: By role, summed over its processes
    cpu_seconds: dict[str, Spread]
    context_switches: dict[str, Spread]


@dataclass(frozen=True)
class Report:
    """Everything that a run found."""

    machine: Machine
    versions: dict[str, str]
    options: Options
    rows: list[Row]
    #: Lanes between the workers of each configuration
    lanes: dict[str, list[str]]
    #: Where the time went, if that was asked for
    profiles: list[Profile]

    def to_json(self) -> dict[str, Any]:
        """Give the report as plain JSON values.

        Returns
        -------
        dict of str to Any
            With ``schema`` naming this layout. A spread is median, minimum and maximum.
        """
        return {"schema": "backhaul.bench.merge/1", **asdict(self)}


def run(
    options: Options, *, on_step: Callable[[str, int], None], profiler: Profiler | None = None
) -> Report:
    """Run the join with every number of chunks in every configuration, in turn.

    Parameters
    ----------
    options : Options
        What to run.
    on_step : callable
        Called before each step with what comes, and how many steps are left.
    profiler : Profiler, optional
        Profiles each number of chunks in each configuration once it is measured.

    Returns
    -------
    Report
        A row for each number of chunks and configuration.

    Raises
    ------
    BenchmarkFailed
        If a cluster does not start or does not answer, or a result is wrong.
    ProfilerFailed
        If the processes cannot be profiled.
    """
    machine = Machine.here()
    configurations = options.configurations
    turns = 1 + options.repetitions + (profiler is not None)
    steps = Steps(on_step, total=len(configurations) * (1 + len(options.chunks) * turns))
    rows: list[Row] = []
    profiles: list[Profile] = []
    with open_all(
        configurations, workers=options.workers, threads=options.threads, steps=steps
    ) as clusters:
        for chunks in options.chunks:
            case = f"merge-{chunks}"
            parameters = _parameters(options, chunks)
            found = measure_in_turn(
                clusters,
                "merge",
                parameters,
                repetitions=options.repetitions,
                steps=steps,
                case=case,
            )
            rows += _rows(chunks, parameters, found)
            if profiler is not None:
                profiles += profile_in_turn(
                    clusters, "merge", parameters, profiler, steps=steps, case=case
                )
        lanes = lanes_between_workers(clusters)
    steps.done()
    versions = installed_versions(*VERSIONS_OF, "pandas", "pyarrow")
    return Report(machine, versions, options, rows, lanes, profiles)


def _parameters(options: Options, chunks: int) -> dict[str, Any]:
    return {
        "partitions": chunks * options.workers,
        "rows": max(1, options.rows_per_worker // chunks),
        "shuffle": options.shuffle,
    }


def _rows(chunks: int, parameters: dict[str, Any], found: dict[str, list[Measured]]) -> list[Row]:
    rows: list[Row] = []
    for label, repetitions in found.items():
        seconds = [each.seconds for each in repetitions]
        wall = spread(seconds)
        input_bytes = repetitions[0].input_bytes
        first = rows[0].seconds_median if rows else wall.median
        rows.append(
            Row(
                chunks,
                label,
                parameters["partitions"],
                parameters["rows"],
                input_bytes,
                seconds,
                *wall,
                input_bytes_per_s=input_bytes / wall.median,
                ratio=first / wall.median,
                cpu_seconds=spread_by_role(repetitions, lambda used: used.cpu_seconds),
                context_switches=spread_by_role(repetitions, lambda used: used.context_switches),
            )
        )
    return rows
