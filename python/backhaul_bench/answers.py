"""Answers of benchmarks: one sentence, and one table that fits a terminal of 80 columns.

The tables with everything that was measured are elsewhere, behind ``--verbose``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from backhaul._units import format_bytes, format_us

if TYPE_CHECKING:
    from backhaul_bench.report import Report

__all__ = [
    "Answer",
    "memory_answer",
    "p2p_answer",
    "placement_answer",
    "random_array_answer",
    "tasks_answer",
    "transpose_sum_answer",
]

#: Name of Backhaul in a report
_OURS = "backhaul"


@dataclass(frozen=True)
class Answer:
    """Summary of a report."""

    #: Without a full stop
    sentence: str
    #: At most 80 columns wide
    table: Table
    #: Meaning of the figures, and missing ones
    notes: Sequence[str]


def transpose_sum_answer(report: Report[Any, Any]) -> Answer:
    """Say how long the job took over each protocol."""
    options = report.options
    table = _table(
        f"(x + x.T).sum(), x of {options.size} × {options.size} float64 "
        f"({format_bytes(8 * options.size**2)}), {options.workers} workers",
        ["configuration"],
        ["s", "min – max", "times as fast", "moved"],
    )
    for row in report.rows:
        table.add_row(
            row.configuration,
            f"{row.seconds_median:.3f}",
            f"{row.seconds_min:.3f} – {row.seconds_max:.3f}",
            f"{row.ratio:.2f}",
            format_bytes(row.moved_bytes_median),
        )
    notes = [f"Medians of {options.repetitions}; moved: bytes between the workers."]
    if not report.findings["equal"]:
        sums = "; ".join(f"{row.configuration}: {row.sums}" for row in report.rows)
        notes.insert(0, f"Results DIFFER: {sums}")
    sentence = _faster(
        report.rows,
        lambda row: (row.seconds_median, row.seconds_min, row.seconds_max),
        lambda seconds: f"{seconds:.2f} s",
    )
    return Answer(sentence, table, notes)


def tasks_answer(report: Report[Any, Any]) -> Answer:
    """Say what a task costs in each case."""
    options = report.options
    table = _table(
        f"One task, {options.workers} workers × {options.threads} threads",
        ["case", "configuration"],
        ["µs", "min – max", "times as fast", "CPU µs"],
    )
    sentences: list[str] = []
    for case in options.cases:
        rows = [row for row in report.rows if row.case == case]
        for row in rows:
            cpu_us = sum(each.median for each in row.cpu_us.values())
            table.add_row(
                case if row is rows[0] else "",
                row.configuration,
                format_us(row.us_median),
                f"{format_us(row.us_min)} – {format_us(row.us_max)}",
                f"{row.ratio:.2f}",
                format_us(cpu_us),
                end_section=row is rows[-1],
            )
        if not sentences:
            sentences.append(
                _faster(
                    rows,
                    lambda row: (row.us_median, row.us_min, row.us_max),
                    lambda us: f"{format_us(us)} µs a task",
                )
                + f" ({case})"
            )
        elif (found := _ours(rows)) is not None:
            sentences.append(f"{case} {_ratio(found[0].us_median / found[1].us_median)}")
    notes = [
        f"Medians of {options.repetitions}; CPU: of client, scheduler and workers together. "
        "A saturation is how many tasks a thread is sent ahead; 1.1 where none is said."
    ]
    return Answer("; ".join(sentences), table, notes)


def p2p_answer(report: Report[Any, Any]) -> Answer:
    """Say what a message costs between two processes."""
    table = _table(
        "Between two processes",
        ["size", "contender", "API", "lane"],
        ["one-way µs", "GB/s"],
    )
    table.columns[1].overflow = "fold"
    for size in report.options.sizes:
        rows = [row for row in report.rows if row.size_bytes == size]
        rows.sort(key=lambda row: row.latency_p50_us)
        for row in rows:
            contender = row.peer if row.peer == _OURS else f"{row.peer} {row.variant}".strip()
            table.add_row(
                format_bytes(size) if row is rows[0] else "",
                contender,
                row.api,
                row.lane,
                format_us(row.latency_p50_us),
                f"{row.stream_bytes_per_s / 1e9:.3g}",
                style="bold" if row.peer == _OURS else None,
                end_section=row is rows[-1],
            )
    notes = [
        f"Medians of {report.options.rounds} rounds. One-way: half a round trip. GB/s: a stream of "
        "messages one way."
    ]
    notes += [
        f"Not measured: {each.peer}: {each.reason}."
        + (f" To get it: {each.install}." if each.install else "")
        for each in report.missing or []
    ]
    return Answer(_p2p_sentence(report), table, notes)


def _p2p_sentence(report: Report[Any, Any]) -> str:
    """Latency of the shortest messages and bandwidth of the longest, beside the best peer's."""
    shortest, longest = min(report.options.sizes), max(report.options.sizes)

    def best(own: bool, size: int, key: Callable[[Any], float]) -> Any | None:
        rows = [r for r in report.rows if r.size_bytes == size and (r.peer == _OURS) is own]
        return min(rows, key=key, default=None)

    def soonest(row: Any) -> float:
        return float(row.latency_p50_us)

    def fastest(row: Any) -> float:
        return -float(row.stream_bytes_per_s)

    parts = []
    for own in (True, False):
        quick, wide = best(own, shortest, soonest), best(own, longest, fastest)
        if quick is None or wide is None:
            continue
        over = f" over {quick.lane}" if own else ""
        wider = f" ({wide.peer})" if wide.peer != quick.peer else ""
        parts.append(
            f"{quick.peer}{over}: {format_us(quick.latency_p50_us)} µs one way for "
            f"{format_bytes(shortest)}, {wide.stream_bytes_per_s / 1e9:.3g} GB/s in messages of "
            f"{format_bytes(longest)}{wider}"
        )
    return "; the best of the others, ".join(parts) or "nothing was measured"


def memory_answer(report: Report[Any, Any]) -> Answer:
    """Say what each cluster held."""
    options = report.options
    table = _table(
        f"PSS in MiB, {options.workers} workers × {options.threads} threads",
        ["job", "cluster"],
        ["workers", "×", "all", "rest", "s", "×"],
    )
    for row in report.rows:
        table.add_row(
            row.job,
            row.configuration,
            _mib(row.peak_workers_pss.median),
            f"{row.workers_ratio:.2f}",
            _mib(row.peak_pss.median),
            _mib(row.rest[-1].pss),
            f"{row.seconds_median:.3f}",
            f"{row.seconds_ratio:.2f}",
        )
    means = report.findings["means"]
    found = _ours(report.rows)
    if found is None:
        row = report.rows[0]
        sentence = f"{row.configuration} holds {format_bytes(row.peak_pss.median)} at its peak"
    else:
        first, own = (each.configuration for each in found)
        mean = means[own]
        sentence = (
            f"workers of {own} hold {mean['workers']:.2f} × the memory of those of {first} at "
            f"their peak, all processes {mean['all']:.2f} ×, in {mean['seconds']:.2f} × the time"
        )
    notes = [
        f"Medians of {options.repetitions}; PSS: shared pages count once, divided up. Peaks of the "
        "workers and of all processes; rest: all processes after the job.",
        "×: of the first configuration; the sentence has their geometric means.",
    ]
    notes += [
        f"{row.job}, {row.configuration}: "
        + ", ".join(f"{name} {[each[name] for each in row.facts]}" for name in row.facts[0])
        for row in report.rows
        if row.facts
    ]
    return Answer(sentence, table, notes)


def random_array_answer(report: Report[Any, Any]) -> Answer:
    """Say how fast each architecture is."""
    from backhaul_bench.random_array import ARCHITECTURES

    options = report.options
    table = _table(
        f"(x + 1)[::2, ::2].sum(), x of {options.size} × {options.size} normal numbers",
        ["architecture"],
        ["units", "s", "min – max", "times as fast"],
    )
    for row in report.rows:
        table.add_row(
            ARCHITECTURES[row.on],
            f"{row.units}",
            f"{row.seconds.median:.3g}",
            f"{row.seconds.minimum:.3g} – {row.seconds.maximum:.3g}",
            f"{row.times_as_fast:.2f}",
        )
    best = min(report.rows, key=lambda row: row.seconds.median)
    first = report.rows[0]
    sentence = f"{ARCHITECTURES[best.on]}: {best.seconds.median:.3g} s"
    if best is not first:
        sentence = (
            f"{ARCHITECTURES[best.on]} {_ratio(best.times_as_fast)} as fast as "
            f"{ARCHITECTURES[first.on]}: {best.seconds.median:.3g} s against "
            f"{first.seconds.median:.3g} s"
        )
    notes = [
        f"Not measured: {each.peer}: {each.reason}. To get it: {each.install}."
        for each in report.missing or []
    ]
    return Answer(sentence, table, notes)


def placement_answer(report: Report[Any, Any]) -> Answer:
    """Say what placement is worth on each machine."""
    policies = report.options.policies
    table = _table(
        "Simulated time over the least that is possible",
        ["machine", "workload"],
        [*policies, *(["times as fast"] if len(policies) > 1 else [])],
    )
    for machine in report.options.machines:
        for number, workload in enumerate(report.options.workloads):
            rows = [r for r in report.rows if (r.machine, r.workload) == (machine, workload)]
            table.add_row(
                "" if number else machine,
                workload,
                *(f"{row.over_bound:.2f}" for row in rows),
                *([f"{rows[-1].ratio:.2f}"] if len(rows) > 1 else []),
                end_section=workload == report.options.workloads[-1],
            )
    last = {mean["machine"]: mean for mean in report.findings["means"]}
    if len(policies) > 1:
        ratios = {name: _ratio(mean["ratio"]) for name, mean in last.items()}
        named, of = policies[-1], f"as fast as {policies[0]}"
    else:
        ratios = {name: f"{mean['over_bound']:.2f} ×" for name, mean in last.items()}
        named, of = f"{policies[0]} takes", "the least possible time"
    (first, ratio), *others = ratios.items()
    sentence = "; ".join(
        [f"{named} {ratio} {of} on {first}", *(f"{name} {each}" for name, each in others)]
    )
    notes = [
        f"Geometric means above; medians of {report.options.seeds} hash seeds. Nothing ran but "
        "Dask's scheduler."
    ]
    if report.options.plot is not None:
        notes.append(f"Picture: {report.options.plot}")
    return Answer(sentence, table, notes)


def _table(title: str, texts: Iterable[str], figures: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in texts:
        table.add_column(name)
    for name in figures:
        table.add_column(name, justify="right")
    return table


def _ours(rows: Sequence[Any]) -> tuple[Any, Any] | None:
    """Find the first row, and that of Backhaul which differs from it in the protocol alone."""
    first = rows[0]
    own = [row for row in rows[1:] if row.configuration.startswith(_OURS)]
    return (first, own[0]) if own else None


def _faster(
    rows: Sequence[Any],
    times: Callable[[Any], tuple[float, float, float]],
    write: Callable[[float], str],
) -> str:
    """Compare Backhaul with the first row, by median, least and most."""
    found = _ours(rows)
    if found is None:
        return f"{rows[0].configuration}: {write(times(rows[0])[0])}"
    (before, before_min, before_max), (after, after_min, after_max) = map(times, found)
    sentence = (
        f"{found[1].configuration} {_ratio(before / after)} as fast as "
        f"{found[0].configuration}: {write(after)} against {write(before)}"
    )
    if after_min <= before_max and before_min <= after_max:
        sentence += ", but their ranges overlap: repeat it more often"
    return sentence


def _ratio(ratio: float) -> str:
    digits = 1 if ratio >= 0.95 and math.isfinite(ratio) else 2
    return f"{ratio:.{digits}f} ×"


def _mib(nbytes: float) -> str:
    # With its unit beside each figure, the table would be wider than 80 columns.
    return f"{nbytes / 2**20:.1f}"


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
