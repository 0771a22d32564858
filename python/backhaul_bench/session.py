"""``backhaul bench session``: small tasks in a session that holds data and was looked at.

Each case runs twice in every configuration: in an idle session, and after the client has persisted
an array and a dataframe, opened a task stream, added plugins, asked for a story, for who has what
and for a performance report, shuffled and rechunked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from backhaul_bench import cases
from backhaul_bench.contenders import ClusterOptions
from backhaul_bench.interleaved import Measured
from backhaul_bench.profiles import Profiler
from backhaul_bench.report import Report

__all__ = ["DEFAULT_TASKS", "Options", "Row", "run"]

#: Cases, and how many tasks each has; for ``mean`` the chunks of the array
DEFAULT_TASKS = {"map": 5000, "chain": 300, "submit": 200, "tree": 1023, "mean": 2500}


@dataclass(frozen=True, kw_only=True)
class Options(ClusterOptions):
    """Options of the benchmark."""

    #: Some of :data:`DEFAULT_TASKS`
    cases: Sequence[str] = tuple(DEFAULT_TASKS)
    #: Timed repetitions of each case in each configuration and session
    repetitions: int = 5
    #: Tasks of every case; each case's own number if None
    tasks: int | None = None


@dataclass(frozen=True)
class Row:
    """One case in one configuration, in one of the two sessions."""

    case: str
    configuration: str
    #: Whether the session holds data and was looked at
    held: bool
    tasks: int
    #: Wall-clock of each repetition, in seconds
    seconds: list[float]
    seconds_median: float
    #: Finished tasks that the scheduler's core handled on the engine's thread, of those asked for,
    #: in the median repetition; 0 for a scheduler without one
    handled_share: float
    #: How often the state left the core, over all repetitions
    escapes: int


def run(
    options: Options, *, on_step: Callable[[str, int], None], profiler: Profiler | None = None
) -> Report[Options, Row]:
    """Run every case in every configuration, first in idle sessions, then in held ones."""
    chosen = [
        cases.Case(
            name,
            "backhaul_bench.session_job:InSession",
            {
                "case": name,
                "held": held,
                "tasks": DEFAULT_TASKS[name] if options.tasks is None else options.tasks,
                "function": "module",
            },
            label=f"{name}, {'held' if held else 'idle'}",
        )
        for held in (False, True)
        for name in options.cases
    ]
    return cases.run(
        "backhaul.bench.session/1",
        chosen,
        options,
        rows_of=_rows,
        on_step=on_step,
        profiler=profiler,
        versions_of=("numpy", "pandas"),
    )


def _rows(case: cases.Case, found: Mapping[str, Sequence[Measured]]) -> list[Row]:
    rows = []
    for label, repetitions in found.items():
        seconds = [each.seconds for each in repetitions]
        shares = [each.facts["handled"] / each.tasks for each in repetitions]
        rows.append(
            Row(
                case.name,
                label,
                bool(case.parameters["held"]),
                repetitions[0].tasks,
                seconds,
                median(seconds),
                # A job may run more tasks than the number that it is named by.
                min(1.0, median(shares)),
                sum(each.facts["escapes"] for each in repetitions),
            )
        )
    return rows


def held_over_idle(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """Divide the time in the held session by that in the idle one, by case and configuration.

    Parameters
    ----------
    rows : sequence of Row
        Of a report.

    Returns
    -------
    dict of (str, str) to float
        Medians; in the order of the idle rows.
    """
    times: dict[tuple[str, str, bool], Any] = {
        (row.case, row.configuration, row.held): row.seconds_median for row in rows
    }
    return {
        (case, configuration): times[case, configuration, True] / seconds
        for (case, configuration, held), seconds in times.items()
        if not held
    }
