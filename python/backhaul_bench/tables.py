"""The reports of the benchmarks as tables on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from backhaul._units import format_bytes, format_us

if TYPE_CHECKING:
    from backhaul_bench import p2p
    from backhaul_bench.answers import Answer
    from backhaul_bench.report import Report

__all__ = ["p2p_tables", "print_answer"]


#: Names of the memory of messages
_MEMORY = {
    "host": "Buffers are reused, page-touched and host memory",
    "cuda": "Buffers are reused, and on GPUs; a device copy is one within one process",
}


def print_answer(console: Console, answer: Answer, *, table: bool) -> None:
    """Print what a report comes to.

    Parameters
    ----------
    console : rich.console.Console
        Where to print.
    answer : Answer
        The sentence, the table and its notes.
    table : bool
        Whether the table comes behind the sentence.
    """
    console.print(answer.sentence, style="bold", highlight=False)
    console.print()
    if table:
        console.print(answer.table)
        for note in answer.notes:
            bad = note.startswith(("Not measured", "Results DIFFER"))
            console.print(Text(note, style="yellow" if bad else "dim"))
        console.print(Text("--verbose prints all that was measured.\n", style="dim"))


def p2p_tables(report: Report[p2p.Options, p2p.Row]) -> Group:
    """Lay out a report of ``bench p2p``.

    Parameters
    ----------
    report : Report
        Measurements.

    Returns
    -------
    rich.console.Group
        A table for each size, and a note for each missing peer.
    """
    parts: list[Table | Text] = []
    for size in report.options.sizes:
        table = Table(title=f"\n{format_bytes(size)}, between two processes", title_justify="left")
        for name in ("contender", "variant", "API", "lane"):
            table.add_column(name)
        for name in (
            "one-way p50 µs",
            "p99 µs",
            "ping-pong GB/s",
            "streaming GB/s",
        ):
            table.add_column(name, justify="right")
        rows = [row for row in report.rows if row.size_bytes == size]
        for row in sorted(rows, key=lambda row: row.latency_p50_us):
            own = row.peer == "backhaul"
            table.add_row(
                row.peer,
                "" if own else row.variant,
                row.api,
                row.lane,
                _with_range(
                    row.latency_p50_us, row.latency_p50_us_min, row.latency_p50_us_max, format_us
                ),
                format_us(row.latency_p99_us),
                _format_gb(row.pingpong_bytes_per_s),
                _with_range(
                    row.stream_bytes_per_s,
                    row.stream_bytes_per_s_min,
                    row.stream_bytes_per_s_max,
                    _format_gb,
                ),
                style="bold" if own else None,
            )
        parts.append(table)
    parts.append(
        Text(
            f"Medians (min – max) over {report.options.rounds} rounds, contenders in turn, "
            "warm-up not counted. One-way: half a ping-pong round trip.\n"
            "Ping-pong GB/s: size / one-way p50. Streaming: a window of messages one way until the "
            f"last is acknowledged.\n{_MEMORY[report.options.memory]}; "
            "GB is 1e9 bytes.",
            style="dim",
        )
    )
    for missing in report.missing or []:
        how = f" To get it: {missing.install}." if missing.install else ""
        parts.append(Text(f"Not measured: {missing.peer}: {missing.reason}.{how}", style="yellow"))
    return Group(*parts)


def _with_range(value: float, minimum: float, maximum: float, write: Callable[[float], str]) -> str:
    return f"{write(value)} ({write(minimum)} – {write(maximum)})"


def _format_gb(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g}"
