"""The report of ``bench memory`` as tables on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from backhaul._units import format_bytes
from backhaul_bench.task_tables import format_lanes

if TYPE_CHECKING:
    from backhaul_bench import memory
    from backhaul_bench.report import Report

__all__ = ["memory_tables"]

_BARS = "▁▂▃▄▅▆▇█"
_COURSE_COLUMNS = 100
#: First letter of a phase under its column
_PHASES = {"prepare": "p", "run": "R", "check": "c", "release": "·", "rest": "·"}


def memory_tables(report: Report[memory.Options, memory.Row]) -> Group:
    """Lay out a report of ``bench memory``.

    Parameters
    ----------
    report : Report
        Measurements.

    Returns
    -------
    rich.console.Group
        Peak and mean of the runs, what stays after them, and the course of it.
    """
    options = report.options
    runs = Table(
        title=f"\nPSS of all processes while a job runs, {options.workers} workers × "
        f"{options.threads} threads; transpose-sum: (x + x.T).sum(), x of {options.size} × "
        f"{options.size} float64, chunks of {options.chunks} × {options.chunks}",
        title_justify="left",
    )
    rests = Table(title="\nPSS of all processes at rest", title_justify="left")
    for table in (runs, rests):
        table.add_column("job", no_wrap=True)
        table.add_column("configuration", no_wrap=True)
    for name in (
        "peak",
        "min – max",
        "of the first",
        "workers",
        "of the first",
        "anon",
        "shmem",
        "swap",
        "memfds",
        "mean",
    ):
        runs.add_column(name, justify="right", no_wrap=True)
    runs.add_column("s", justify="right")
    for name in (
        "fresh",
        "after 1",
        f"after {options.repetitions}",
        "anon",
        "shmem",
        "memfds",
        "growth a repetition",
    ):
        rests.add_column(name, justify="right", no_wrap=True)
    parts: list[Table | Text] = [runs, rests, Text("\nPSS over time")]
    most = max(max(_totals(row.series)) for row in report.rows)
    for row in report.rows:
        peak, last = row.peak, row.rest[-1]
        means = sorted(row.mean_pss_bytes)
        runs.add_row(
            row.job,
            row.configuration,
            format_bytes(row.peak_pss.median),
            f"{format_bytes(row.peak_pss.minimum)} – {format_bytes(row.peak_pss.maximum)}",
            f"{row.ratio:.2f}",
            format_bytes(row.peak_workers_pss.median),
            f"{row.workers_ratio:.2f}",
            *(format_bytes(each) for each in (peak.anon, peak.shmem, peak.swap)),
            format_bytes(row.peak_memfd_bytes),
            format_bytes(means[len(means) // 2]),
            f"{row.seconds_median:.3f}",
        )
        rests.add_row(
            row.job,
            row.configuration,
            *(format_bytes(each.pss) for each in (row.fresh, row.rest[0], last)),
            *(format_bytes(each) for each in (last.anon, last.shmem, row.rest_memfd_bytes[-1])),
            format_bytes(row.growth_bytes_per_repetition),
        )
        bars, phases = course(row.series, most)
        parts.append(Text(f"{bars}  {row.job}, {row.configuration}"))
        parts.append(Text(phases, style="dim"))
    sampling = "; ".join(
        f"{row.job}, {row.configuration}: every {row.sampling_interval_s.median * 1e3:.0f} ms (at "
        f"most {row.sampling_interval_s.maximum * 1e3:.0f}), {row.sampling_cpu_share:.1%} of a CPU"
        for row in report.rows
    )
    parts.append(
        Text(
            f"{format_bytes(most)} at full height; R the job, p making x, c checking, · releasing "
            "and rest.\n"
            f"Medians over {options.repetitions} repetitions on clusters in turn; a job is sampled "
            "while it is timed. Anon, shmem, swap: of the highest peak.\nMemfds: "
            "pages of files in memory that a process has open, mapped or not. Fresh: modules "
            f"loaded; after n: {options.settle_s:g} s after repetition n, all dropped.\n"
            f"Sampled from outside: {sampling}.\n"
            f"Lanes between workers: {format_lanes(report.lanes or {})}.",
            style="dim",
        )
    )
    return Group(*parts)


def course(series: memory.Series, most: float) -> tuple[str, str]:
    """Draw PSS over time.

    Parameters
    ----------
    series : memory.Series
        Samples of one cluster.
    most : float
        Full height, in bytes.

    Returns
    -------
    tuple of (str, str)
        A bar for each stretch of time, as high as the highest sample in it, and under it the
        phase of that sample. A stretch without samples repeats the one before.
    """
    start, end = series.seconds[0], series.seconds[-1]
    highest: dict[int, tuple[int, str]] = {}
    for second, total, phase in zip(series.seconds, _totals(series), series.phase, strict=True):
        fraction = (second - start) / (end - start) if end > start else 0
        column = min(int(fraction * _COURSE_COLUMNS), _COURSE_COLUMNS - 1)
        highest[column] = max(highest.get(column, (0, "")), (total, phase))
    bars, phases = "", ""
    for column in range(_COURSE_COLUMNS):
        total, phase = highest.get(column, highest[max(c for c in highest if c <= column)])
        bars += _BARS[min(int(total / most * len(_BARS)), len(_BARS) - 1)]
        phases += _PHASES[phase]
    return bars, phases


def _totals(series: memory.Series) -> list[int]:
    return [sum(each) for each in zip(*series.pss_bytes.values(), strict=True)]
