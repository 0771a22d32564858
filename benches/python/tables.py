"""The reports of the development benchmarks as tables on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from backhaul._units import format_bytes
from backhaul_bench.data_tables import cases_tables
from backhaul_bench.report import Report
from backhaul_bench.summary import Spread

__all__ = [
    "alloc_tables",
    "broadcast_tables",
    "merge_tables",
    "out_of_core_tables",
    "rechunk_tables",
    "shuffle_tables",
    "start_tables",
    "tpch_tables",
    "whole_jobs_tables",
]


def merge_tables(report: Report[Any, Any]) -> Group:
    """Lay out a report of ``merge``."""
    options = report.options
    return cases_tables(
        report,
        f"left.merge(right), {options.shuffle} shuffle, {options.rows_per_worker} rows of "
        "16 bytes for each worker on either side",
        "chunks\na worker",
        (
            "Both dataframes are in files before, the result in memory after."
            if options.parquet
            else "Both dataframes are in memory before, the result after."
        )
        + " pandas joins, as the types of the keys differ." * options.pandas,
    )


def shuffle_tables(report: Report[Any, Any]) -> Group:
    """Lay out a report of ``shuffle``."""
    options = report.options
    return cases_tables(
        report,
        f"{', '.join(options.operations)} by key, {options.rows_per_worker} rows of "
        f"{8 * (1 + options.columns)} bytes{' and a text' * options.text} for each worker",
        "method,\nchunks\na worker",
        "The dataframe is in memory before, the result after.",
    )


def whole_jobs_tables(report: Report[Any, Any]) -> Group:
    """Lay out a report of ``whole-jobs``."""
    return cases_tables(report, "whole jobs", "job", "Inputs are in memory before.")


def tpch_tables(report: Report[Any, Any]) -> Group:
    """Lay out a report of ``tpch``."""
    means = ", ".join(f"{name} {mean:.2f}" for name, mean in report.findings["mean_ratio"].items())
    return cases_tables(
        report,
        f"TPC-H, scale {report.options.scale:g}",
        "query",
        "Tables are in Parquet files before, the answer is in the client after. Answers are equal "
        f"to DuckDB's.\nGeometric means of times as fast: {means}.",
    )


def out_of_core_tables(report: Report[Any, Any]) -> Group:
    """Lay out a report of ``out-of-core``."""
    limit = f"workers may use {report.options.memory_limit} each"
    return cases_tables(
        report,
        f"out of core, {limit}",
        "job",
        "Making the arrays is a part. Restarted: workers that their nannies ended, of all runs.",
        {"restarted": lambda row: str(sum(each.get("restarted", 0) for each in row.facts))},
    )


def rechunk_tables(report: Report[Any, Any]) -> Group:
    """Lay out a report of ``rechunk``."""
    options = report.options
    after = "transposed rows" if options.transpose else "columns"
    return cases_tables(
        report,
        f"rechunk of {options.size} × {options.size} float64 ({format_bytes(8 * options.size**2)})"
        f", from chunks of rows to chunks of {after}",
        "method,\nrows\na chunk",
        "The array is in memory before, the result after.",
    )


def broadcast_tables(report: Report[Any, Any]) -> Group:
    """Lay out a report of ``broadcast``."""
    options = report.options
    return cases_tables(
        report,
        f"{format_bytes(options.nbytes)} to every worker",
        "way",
        "Until every worker has the array. Held: PSS of all processes once all workers have read "
        "all of it, less what they held before the first one;\ncopies: that over the size of the "
        "array. The first array counts: scatter has it in the client, the others on one worker.",
        {
            "held": lambda row: format_bytes(row.held_bytes.median),
            "copies": lambda row: f"{row.copies.median:.2f}",
        },
    )


def alloc_tables(report: Report[Any, Any]) -> Group:
    """Lay out a report of ``alloc``."""
    options = report.options
    table = Table(
        title=f"\nnp.empty of {format_bytes(options.nbytes)}, filled, dropped, and again",
        title_justify="left",
    )
    table.add_column("allocator", no_wrap=True)
    for which in ("first", "second"):
        table.add_column(f"{which}, ms", justify="right")
        table.add_column("min – max", justify="right", no_wrap=True)
        table.add_column("page faults", justify="right")
    table.add_column("second, times as fast", justify="right")
    for row in report.rows:
        table.add_row(
            row.allocator,
            *_fill(row.first_seconds, row.first_page_faults),
            *_fill(row.second_seconds, row.second_page_faults),
            f"{row.ratio:.2f}",
        )
    note = Text(
        f"Medians over {options.repetitions} processes each, allocators in turn. Recycled: glibc "
        "keeps freed memory.",
        style="dim",
    )
    return Group(table, note)


def start_tables(report: Report[Any, Any]) -> Group:
    """Lay out a report of ``start``."""
    options = report.options
    table = Table(
        title=f"\n{options.workers} workers with {options.threads} threads each",
        title_justify="left",
    )
    table.add_column("launcher", no_wrap=True)
    for which in ("start", "close"):
        table.add_column(f"{which}, s", justify="right")
        table.add_column("min – max", justify="right", no_wrap=True)
    table.add_column("start, against the first", justify="right")
    for row in report.rows:
        cells = [
            text
            for each in (row.start_seconds, row.close_seconds)
            for text in (f"{each.median:.2f}", f"{each.minimum:.2f} – {each.maximum:.2f}")
        ]
        table.add_row(row.launcher, *cells, f"{row.ratio:.2f}")
    note = Text(f"Medians of {options.repetitions}, launchers in turn.", style="dim")
    return Group(table, note)


def _fill(seconds: Spread, page_faults: Spread) -> tuple[str, str, str]:
    median, low, high = (f"{each * 1e3:.2f}" for each in seconds)
    return median, f"{low} – {high}", f"{page_faults.median:.0f}"
