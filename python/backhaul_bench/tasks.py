"""``backhaul bench tasks``: what a trivial task costs over several protocols.

Reported for each task: wall-clock as the client sees it, CPU time and context switches of client,
scheduler and workers, from the moment of submission until the results are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backhaul_bench import cases
from backhaul_bench.contenders import ClusterOptions
from backhaul_bench.interleaved import Measured, spread_by_role
from backhaul_bench.profiles import Profiler
from backhaul_bench.report import Report
from backhaul_bench.summary import Spread, spread

__all__ = ["DEFAULT_TASKS", "Options", "Row", "run", "task_rows"]

#: Cases, and how many tasks each has unless something else is asked for
DEFAULT_TASKS = {
    "map": 5000,
    "chain": 300,
    "tree": 1023,
    "all-to-all": 100,
    "submit": 200,
    "submit-impure": 200,
    "submit-chain": 300,
}


@dataclass(frozen=True, kw_only=True)
class Options(ClusterOptions):
    """Options of the benchmark."""

    #: Some of :data:`DEFAULT_TASKS`
    cases: Sequence[str] = tuple(DEFAULT_TASKS)
    #: Values of ``distributed.scheduler.worker-saturation``, each with every protocol
    saturations: Sequence[float] = (1.1, 20.0)
    #: Timed repetitions of each case in each configuration
    repetitions: int = 5
    #: Tasks of every case; each case's own number if None
    tasks: int | None = None
    #: How the functions of the tasks are pickled, one of ``backhaul_bench.jobs.FUNCTIONS``
    function: str = "module"


@dataclass(frozen=True)
class Row:
    """One case in one configuration. Every figure is for one task."""

    case: str
    configuration: str
    tasks: int
    #: Wall-clock, of each repetition
    us: list[float]
    us_median: float
    us_min: float
    us_max: float
    #: Wall-clock of the first configuration over this one's, medians
    ratio: float
    #: By role, summed over its processes
    cpu_us: dict[str, Spread]
    context_switches: dict[str, Spread]


def run(
    options: Options, *, on_step: Callable[[str, int], None], profiler: Profiler | None = None
) -> Report[Options, Row]:
    """Run every case in every configuration, interleaved; see `backhaul_bench.cases.run`."""
    chosen = [
        cases.Case(name, name, _parameters(options, name), label=name) for name in options.cases
    ]
    return cases.run(
        "backhaul.bench.tasks/1",
        chosen,
        options,
        rows_of=task_rows,
        on_step=on_step,
        profiler=profiler,
    )


def _parameters(options: Options, case: str) -> dict[str, Any]:
    tasks = DEFAULT_TASKS[case] if options.tasks is None else options.tasks
    return {"tasks": tasks, "function": options.function}


def task_rows(case: cases.Case, found: Mapping[str, Sequence[Measured]]) -> list[Row]:
    """Sum up the repetitions of a case, for one task each.

    Parameters
    ----------
    case : Case
        Case that was run.
    found : mapping of str to sequence of Measured
        Its repetitions, by label of the configuration.

    Returns
    -------
    list of Row
        One for each configuration.
    """
    rows: list[Row] = []
    tasks = next(iter(found.values()))[0].tasks
    for label, repetitions in found.items():
        us = [each.seconds / tasks * 1e6 for each in repetitions]
        wall = spread(us)
        cpu_us = spread_by_role(repetitions, lambda used: used.cpu_seconds / tasks * 1e6)
        switches = spread_by_role(repetitions, lambda used: used.context_switches / tasks)
        first = rows[0].us_median if rows else wall.median
        ratio = first / wall.median
        rows.append(Row(case.name, label, tasks, us, *wall, ratio, cpu_us, switches))
    return rows
