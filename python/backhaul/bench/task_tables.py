"""The reports of the benchmarks of small tasks as tables on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from backhaul.bench.dask_cluster import ROLES
from backhaul.bench.units import format_us

if TYPE_CHECKING:
    from backhaul.bench import tasks

__all__ = ["tasks_tables"]


def tasks_tables(report: tasks.Report) -> Group:
    """Lay out a report of ``bench tasks``.

    Parameters
    ----------
    report : tasks.Report
        What was measured.

    Returns
    -------
    rich.console.Group
        A table for each case.
    """
    options = report.options
    parts: list[Table | Text] = []
    for case in options.cases:
        rows = [row for row in report.rows if row.case == case]
        table = Table(
            title=f"\n{case}, {rows[0].tasks} tasks, {options.workers} workers × "
            f"{options.threads} threads; every figure for one task",
            title_justify="left",
        )
        table.add_column("configuration", no_wrap=True)
        table.add_column("µs", justify="right")
        table.add_column("min – max", justify="right", no_wrap=True)
        table.add_column("times as fast", justify="right", max_width=8)
        for role in (*ROLES, "all"):
            table.add_column(f"CPU µs\n{role}", justify="right")
        for role in ROLES:
            table.add_column(f"switches\n{role}", justify="right")
        for row in rows:
            cpu_us = [row.cpu_us[role].median for role in ROLES]
            table.add_row(
                row.configuration,
                format_us(row.us_median),
                f"{format_us(row.us_min)} – {format_us(row.us_max)}",
                f"{row.ratio:.2f}",
                *(format_us(value) for value in (*cpu_us, sum(cpu_us))),
                *(f"{row.context_switches[role].median:.2f}" for role in ROLES),
            )
        parts.append(table)
    lanes = "; ".join(f"{label}: {', '.join(found)}" for label, found in report.lanes.items())
    parts.append(
        Text(
            f"Medians over {options.repetitions} repetitions, configurations in turn, one warm-up "
            "not counted, results checked, keys never reused.\nFrom submission until the results "
            "are with the client. CPU time: user and system, all threads; workers: the sum of "
            "them.\nTimes as fast: the median of the first row over this one's. Switches: context "
            f"switches, voluntary and not.\nLanes between workers: {lanes}.",
            style="dim",
        )
    )
    return Group(*parts)
