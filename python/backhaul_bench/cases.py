"""Cases on several clusters, interleaved: what all benchmarks on clusters have in common.

A benchmark names its cases, each a job with its parameters, and sums up the repetitions of each: by
`data_rows` wall-clock, input over wall-clock, CPU time, context switches and page faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from backhaul._machine import Machine, installed_versions
from backhaul_bench.contenders import ClusterOptions
from backhaul_bench.interleaved import (
    Measured,
    Steps,
    Watch,
    lanes_between_workers,
    measure_in_turn,
    open_all,
    profile_in_turn,
    spread_by_role,
)
from backhaul_bench.profiles import Profile, Profiler
from backhaul_bench.report import Report
from backhaul_bench.summary import Spread, spread

__all__ = ["VERSIONS_OF", "Case", "Row", "Turns", "data_rows", "run"]

OptionsT = TypeVar("OptionsT", bound=ClusterOptions)
RowT = TypeVar("RowT")

#: Distributions whose version every report on clusters has
VERSIONS_OF = ("backhaul", "dask", "distributed", "cloudpickle", "msgpack", "tornado")


@dataclass(frozen=True)
class Case:
    """One thing to measure in every configuration."""

    #: How tables name it, beside the other cases
    name: str
    #: Name of the job, as ``backhaul_bench.jobs`` knows it
    job: str
    parameters: dict[str, Any]
    #: How steps and profiles name it
    label: str


@dataclass(frozen=True)
class Row:
    """One case in one configuration."""

    case: str
    configuration: str
    parameters: dict[str, Any]
    #: Size of what the job reads
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
    page_faults: dict[str, Spread]
    #: Facts that the job reports of each repetition
    facts: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Turns:
    """How the cases are run, where a benchmark departs from what most do."""

    #: Repetitions that do not count
    warmup: int = 1
    #: Of the first repetition; the next ones count up
    seed: int = 0
    #: Of each worker; without one they neither spill nor pause
    memory_limit: str = "0"
    #: Run once on each cluster before anything else, so that it has loaded its modules
    first: Case | None = None
    #: Called with each phase of that, and of the repetitions that count
    watch: Watch | None = None


def run(
    schema: str,
    cases: Sequence[Case],
    options: OptionsT,
    *,
    rows_of: Callable[[Case, Mapping[str, Sequence[Measured]]], list[RowT]],
    on_step: Callable[[str, int], None],
    profiler: Profiler | None = None,
    versions_of: Sequence[str] = (),
    turns: Turns | None = None,
) -> Report[OptionsT, RowT]:
    """Run every case in every configuration, in turn.

    Parameters
    ----------
    schema : str
        Name of the report's layout.
    cases : sequence of Case
        Cases to run.
    options : ClusterOptions
        Clusters to run them on.
    rows_of : callable
        Sums up the repetitions of one case, by label of the configuration.
    on_step : callable
        Called before each step with what comes, and how many steps are left.
    profiler : Profiler, optional
        Profiles each case in each configuration once it is measured.
    versions_of : sequence of str
        Distributions that the jobs use, beside those that every job does.
    turns : Turns, optional
        How.

    Returns
    -------
    Report
        A row for each case and configuration.

    Raises
    ------
    BenchmarkFailed
        If a cluster does not start or does not answer, or a result is wrong.
    ProfilerFailed
        If the processes cannot be profiled.
    """
    machine = Machine.here()
    turns = turns or Turns()
    configurations = options.configurations
    of_case = turns.warmup + options.repetitions + (profiler is not None)
    total = len(configurations) * (1 + (turns.first is not None) + len(cases) * of_case)
    steps = Steps(on_step, total=total)
    rows: list[RowT] = []
    profiles: list[Profile] = []
    with open_all(
        configurations,
        workers=options.workers,
        threads=options.threads,
        steps=steps,
        memory_limit=turns.memory_limit,
    ) as clusters:
        if turns.first is not None:
            measure_in_turn(
                clusters,
                turns.first.job,
                turns.first.parameters,
                repetitions=1,
                steps=steps,
                case="first",
                warmup=0,
                watch=turns.watch,
            )
        for case in cases:
            measured = measure_in_turn(
                clusters,
                case.job,
                case.parameters,
                repetitions=options.repetitions,
                steps=steps,
                case=case.label,
                warmup=turns.warmup,
                seed=turns.seed,
                watch=turns.watch,
            )
            rows += rows_of(case, measured)
            if profiler is not None:
                profiles += profile_in_turn(
                    clusters, case.job, case.parameters, profiler, steps=steps, case=case.label
                )
        lanes = lanes_between_workers(clusters)
    steps.done()
    versions = installed_versions(*VERSIONS_OF, *versions_of)
    return Report(
        schema=schema,
        machine=machine,
        versions=versions,
        options=options,
        rows=rows,
        lanes=lanes,
        profiles=profiles,
    )


def data_rows(case: Case, measured: Mapping[str, Sequence[Measured]]) -> list[Row]:
    """Sum up the repetitions of a job that moves data.

    Parameters
    ----------
    case : Case
        Case that was run.
    measured : mapping of str to sequence of Measured
        Its repetitions, by label of the configuration.

    Returns
    -------
    list of Row
        One for each configuration.
    """
    rows: list[Row] = []
    for label, repetitions in measured.items():
        seconds = [each.seconds for each in repetitions]
        wall = spread(seconds)
        input_bytes = repetitions[0].input_bytes
        first = rows[0].seconds_median if rows else wall.median
        rows.append(
            Row(
                case.name,
                label,
                case.parameters,
                input_bytes,
                seconds,
                *wall,
                input_bytes_per_s=input_bytes / wall.median,
                ratio=first / wall.median,
                cpu_seconds=spread_by_role(repetitions, lambda used: used.cpu_seconds),
                context_switches=spread_by_role(repetitions, lambda used: used.context_switches),
                page_faults=spread_by_role(repetitions, lambda used: used.page_faults),
                facts=[each.facts for each in repetitions],
            )
        )
    return rows
