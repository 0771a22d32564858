"""The report of ``backhaul bench session`` as a table and a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from backhaul._units import format_us
from backhaul_bench.session import held_over_idle

if TYPE_CHECKING:
    from backhaul_bench import session
    from backhaul_bench.report import Report

__all__ = ["session_table"]


def session_table(report: Report[session.Options, session.Row]) -> Table:
    """Lay out a report of ``bench session``.

    Parameters
    ----------
    report : Report
        Measurements.

    Returns
    -------
    rich.table.Table
        A row for each case and configuration.
    """
    options = report.options
    table = Table(
        title=f"\n{options.workers} workers × {options.threads} threads, medians of "
        f"{options.repetitions}; times are for one task",
        title_justify="left",
    )
    table.add_column("case")
    table.add_column("configuration", no_wrap=True)
    for name in ("idle µs", "held µs", "held / idle", "by the core", "escapes"):
        table.add_column(name, justify="right")
    rows = {(row.case, row.configuration, row.held): row for row in report.rows}
    for (case, configuration), ratio in held_over_idle(report.rows).items():
        idle, held = rows[case, configuration, False], rows[case, configuration, True]
        table.add_row(
            case,
            configuration,
            format_us(idle.seconds_median / idle.tasks * 1e6),
            format_us(held.seconds_median / held.tasks * 1e6),
            f"{ratio:.2f}",
            f"{idle.handled_share:.0%}, {held.handled_share:.0%}",
            f"{idle.escapes}, {held.escapes}",
        )
    return table
