"""The reports of the benchmarks of small tasks as tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from backhaul._units import format_us
from backhaul_bench.dask_cluster import ROLES
from backhaul_bench.shares import GROUPS

if TYPE_CHECKING:
    from backhaul_bench import tasks
    from backhaul_bench.profiles import Profile
    from backhaul_bench.report import Report

__all__ = ["format_lanes", "profile_tables", "tasks_tables"]


def tasks_tables(report: Report[tasks.Options, tasks.Row]) -> Group:
    """Lay out a report of ``bench tasks``.

    Parameters
    ----------
    report : Report
        Measurements.

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
    parts.append(
        Text(
            f"Medians over {options.repetitions} repetitions, configurations in turn, one warm-up "
            "not counted, results checked, keys never reused.\nFrom submission until the results "
            "are with the client. CPU time: user and system, all threads; workers: the sum of "
            "them.\nTimes as fast: the median of the first row over this one's. Switches: context "
            "switches, voluntary and not.\nLanes between workers: "
            f"{format_lanes(report.lanes or {})}.",
            style="dim",
        )
    )
    return Group(*parts, *profile_tables(report.profiles or []))


def profile_tables(profiles: Sequence[Profile]) -> list[Table | Text]:
    """Lay out where the time went.

    Parameters
    ----------
    profiles : sequence of Profile
        Any number, of any cases and configurations.

    Returns
    -------
    list of rich.table.Table or rich.text.Text
        A table for each case and configuration, and a note; empty if there are no profiles.
    """
    tables: list[Table | Text] = []
    by_run: dict[tuple[str, str], dict[str, Profile]] = {}
    for each in profiles:
        by_run.setdefault((each.case, each.configuration), {})[each.role] = each
    for (case, configuration), roles in by_run.items():
        table = Table(title=f"\nProfile: {case}, {configuration}", title_justify="left")
        table.add_column("share of the samples, %")
        for role, profile in roles.items():
            table.add_column(f"{role}\n({profile.samples})", justify="right")
        for group in GROUPS:
            found = [profile.shares.get(group, 0.0) for profile in roles.values()]
            if any(found):
                table.add_row(group, *(f"{share:.1%}".removesuffix("%") for share in found))
        tables.append(table)
    if tables:
        tables.append(
            Text(
                "Stacks of threads that did not wait, all processes of a role; in brackets how "
                "many.\nEach counts for the innermost function that belongs to a group.",
                style="dim",
            )
        )
    return tables


def format_lanes(lanes: Mapping[str, Sequence[str]]) -> str:
    """Write the lanes between the workers of each configuration.

    Parameters
    ----------
    lanes : mapping of str to sequence of str
        By label of the configuration; none where there is but one worker.

    Returns
    -------
    str
        For example ``tcp: tcp; backhaul: shm``.
    """
    return "; ".join(f"{label}: {', '.join(found) or 'none'}" for label, found in lanes.items())
