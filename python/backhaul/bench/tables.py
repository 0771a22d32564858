"""The reports of the benchmarks as tables on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from backhaul._units import format_bytes, format_us

if TYPE_CHECKING:
    from backhaul.bench import p2p
    from backhaul.bench.answers import Answer
    from backhaul.bench.machine import Machine
    from backhaul.bench.report import Report

__all__ = ["open_console", "p2p_tables", "print_answer", "print_machine"]


#: Names of the memory of messages
_MEMORY = {
    "host": "Buffers are reused, page-touched and host memory",
    "cuda": "Buffers are reused, and on GPUs; a device copy is one within one process",
}

#: Columns of a table in a file or a pipe, where nothing says how many there are
_WIDTH_ELSEWHERE = 80
#: And where a table with everything is asked for
_WIDTH_OF_ALL = 140


def open_console(*, wide: bool = False) -> Console:
    """Open standard output for tables.

    Parameters
    ----------
    wide : bool
        Tables with everything come.

    Returns
    -------
    rich.console.Console
        As wide as the terminal, or wide enough for every table.
    """
    console = Console()
    width = _WIDTH_OF_ALL if wide else _WIDTH_ELSEWHERE
    if console.is_terminal and console.width >= width:
        return console
    # A terminal that is too narrow breaks lines, which is better than to lose what is in them.
    return Console(width=width) if wide or not console.is_terminal else console


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


def print_machine(console: Console, machine: Machine, versions: dict[str, str]) -> None:
    """Print what a figure means nothing without.

    Parameters
    ----------
    console : rich.console.Console
        Where to print.
    machine : Machine
        The machine.
    versions : dict of str to str
        Version of each distribution.
    """
    console.print(f"Machine   {machine.describe()}", highlight=False)
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    console.print(f"Versions  {listed}", highlight=False)


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
