"""The report of ``backhaul bench placement`` as tables on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from backhaul_bench.placement import Options, Row
    from backhaul_bench.report import Report

__all__ = ["placement_tables"]


def placement_tables(report: Report[Options, Row]) -> Group:
    """Lay out a report of ``bench placement``.

    Parameters
    ----------
    report : Report
        Results of the simulation.

    Returns
    -------
    rich.console.Group
        A table for each machine.
    """
    parts: list[Table | Text] = []
    policies = report.options.policies
    for machine in report.options.machines:
        table = Table(title=f"\n{machine}", title_justify="left")
        table.add_column("workload")
        table.add_column("at least s", justify="right")
        for policy in policies:
            table.add_column(f"{policy} × bound", justify="right")
        if len(policies) > 1:
            table.add_column("times as fast", justify="right")
        for policy in policies:
            table.add_column(f"{policy} GB moved (between hosts)", justify="right")
        for workload in report.options.workloads:
            rows = [
                row for row in report.rows if (row.machine, row.workload) == (machine, workload)
            ]
            table.add_row(
                workload,
                f"{rows[0].bound_s:.3f}",
                *(f"{row.over_bound:.2f}" for row in rows),
                *([f"{rows[-1].ratio:.2f}"] if len(rows) > 1 else []),
                *(f"{row.moved_bytes / 1e9:.1f} ({row.crossed_bytes / 1e9:.1f})" for row in rows),
            )
        means = [mean for mean in report.findings["means"] if mean["machine"] == machine]
        table.add_section()
        table.add_row(
            "geometric mean",
            "",
            *(f"{mean['over_bound']:.2f}" for mean in means),
            *([f"{means[-1]['ratio']:.2f}"] if len(means) > 1 else []),
            style="bold",
        )
        parts.append(table)
    parts.append(
        Text(
            "Simulated time over what the workload takes at least: all tasks over all threads, or "
            f"the critical path. Medians of {report.options.seeds} hash seeds, after two rounds.",
            style="dim",
        )
    )
    if report.options.plot is not None:
        parts.append(Text(f"Picture: {report.options.plot}", style="dim"))
    return Group(*parts)
