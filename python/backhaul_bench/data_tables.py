"""The reports of benchmarks that move data on clusters as tables on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from backhaul._units import format_bytes, format_rate
from backhaul_bench.dask_cluster import ROLES
from backhaul_bench.task_tables import format_lanes, profile_tables

if TYPE_CHECKING:
    from backhaul_bench.report import Report

__all__ = ["cases_tables", "random_array_tables", "transpose_sum_tables"]

#: Header and cell of columns that only one benchmark has
_Columns = Mapping[str, Callable[[Any], str]]


def transpose_sum_tables(report: Report[Any, Any]) -> Group:
    """Lay out a report of ``bench transpose-sum``.

    Parameters
    ----------
    report : Report
        Measurements.

    Returns
    -------
    rich.console.Group
        Times, bandwidths between the workers, whether the results are equal, and where the time
        went.
    """
    options: Any = report.options
    pairs = Table(
        title="\nPeer-to-peer bandwidth as Dask logs it, transfers above 1 MB",
        title_justify="left",
    )
    for name in ("configuration", "(receiver, sender)"):
        pairs.add_column(name)
    for name in ("25 %", "50 %", "75 %", "total", "transfers"):
        pairs.add_column(name, justify="right")
    for row in report.rows:
        for pair in row.bandwidths:
            pairs.add_row(row.configuration, *pair.format_row())
    times = cases_tables(
        report,
        f"(x + x.T).sum(), x of {options.size} × {options.size} float64 "
        f"({format_bytes(8 * options.size**2)}), chunks of {options.chunks} × {options.chunks}",
        None,
        "Making x is not timed. Moved: bytes that workers fetched from each other, median. "
        "Recycled: glibc keeps freed memory.",
        {"moved": lambda row: format_bytes(row.moved_bytes_median)},
        warmup=options.warmup,
    )
    return Group(times, pairs, _verdict(report))


def cases_tables(
    report: Report[Any, Any],
    title: str,
    case_header: str | None,
    note: str,
    more: _Columns | None = None,
    *,
    warmup: int = 1,
) -> Group:
    """Lay out what all of them have in common.

    Parameters
    ----------
    report : Report
        Of cases on clusters, with rows of `backhaul_bench.cases.Row`.
    title : str
        Title of the table.
    case_header : str or None
        Difference between the cases; None if there is but one.
    note : str
        Meaning of the figures.
    more : mapping of str to callable, optional
        Header and cell of further columns.
    warmup : int
        Repetitions that were not counted.

    Returns
    -------
    rich.console.Group
        One table for all, and where the time went.
    """
    options = report.options
    table = Table(
        title=f"\n{title}, {options.workers} workers × {options.threads} threads",
        title_justify="left",
    )
    if case_header is not None:
        table.add_column(case_header, justify="right", no_wrap=True)
    table.add_column("configuration", no_wrap=True)
    table.add_column("s", justify="right")
    table.add_column("min – max", justify="right", no_wrap=True)
    table.add_column("input / s", justify="right", no_wrap=True)
    table.add_column("times\nas fast", justify="right")
    for role in ROLES:
        table.add_column(f"CPU s\n{role}", justify="right")
    table.add_column("page\nfaults", justify="right")
    more = more or {}
    for header in more:
        table.add_column(header, justify="right", no_wrap=True)
    for row in report.rows:
        table.add_row(
            *([] if case_header is None else [row.case]),
            row.configuration,
            f"{row.seconds_median:.3f}",
            f"{row.seconds_min:.3f} – {row.seconds_max:.3f}",
            format_rate(row.input_bytes_per_s),
            f"{row.ratio:.2f}",
            *(f"{row.cpu_seconds[role].median:.3f}" for role in ROLES),
            f"{sum(row.page_faults[role].median for role in ROLES):.0f}",
            *(cell(row) for cell in more.values()),
            end_section=row.configuration == report.rows[-1].configuration,
        )
    text = Text(
        f"Medians over {options.repetitions} repetitions, configurations in turn, {warmup} before "
        f"them not counted, results checked.\n{note}\n"
        f"Lanes between workers: {format_lanes(report.lanes or {})}.",
        style="dim",
    )
    return Group(table, text, *profile_tables(report.profiles or []))


def _verdict(report: Report[Any, Any]) -> Text:
    if len(report.rows) < 2:
        return Text("One configuration: nothing to compare results with.", style="yellow")
    if report.findings["equal"]:
        tolerance = report.findings["relative_tolerance"]
        return Text(f"Results are equal (relative tolerance {tolerance:g}).", style="green")
    sums = "; ".join(f"{row.configuration}: {row.sums}" for row in report.rows)
    return Text(f"Results DIFFER: {sums}", style="bold red")


def random_array_tables(report: Report[Any, Any]) -> Group:
    """Lay out a report of ``bench random-array``.

    Parameters
    ----------
    report : Report
        Measurements.

    Returns
    -------
    rich.console.Group
        A row for each architecture, and a note for each that is not here.
    """
    from backhaul_bench.random_array import ARCHITECTURES

    options: Any = report.options
    table = Table(
        title=f"\n(x + 1)[::2, ::2].sum(), x of {options.size} × {options.size} normal numbers "
        f"({format_bytes(8 * options.size**2)}), chunks of {options.chunks} × {options.chunks}",
        title_justify="left",
    )
    table.add_column("architecture")
    for name in ("units", "s", "min – max", "numbers", "times as fast"):
        table.add_column(name, justify="right")
    for row in report.rows:
        seconds = row.seconds
        table.add_row(
            ARCHITECTURES[row.on],
            f"{row.units}",
            f"{seconds.median:.3g}",
            f"{seconds.minimum:.3g} – {seconds.maximum:.3g}",
            format_rate(row.bytes_per_s),
            f"{row.times_as_fast:.2f}",
        )
    notes = [
        Text(
            f"Medians of {options.repetitions} repetitions, architectures in turn, each in a new "
            "process whose start is not timed. Numbers: bytes of x over the time. Sums checked.",
            style="dim",
        )
    ]
    notes += [
        Text(f"Not measured: {each.peer}: {each.reason}. To get it: {each.install}.", "yellow")
        for each in report.missing or []
    ]
    return Group(table, *notes)
