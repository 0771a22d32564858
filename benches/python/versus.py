"""``versus``: this build of Backhaul and another one, in turn.

Is a change faster, or is the machine? ``backhaul bench p2p`` of two interpreters runs in
alternation, so that what else happens here meets both. The commit before, built into an environment
of its own, is the other one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from backhaul._machine import Machine, installed_versions
from backhaul._output import open_console, print_machine
from backhaul._units import format_bytes
from backhaul_bench.dask_cluster import BenchmarkFailed
from benches.python.children import in_turn

__all__ = ["main"]

_TIMEOUT_S = 600.0

#: Columns that identify a row, and compared figures with their units
_KEYS = ("api", "lane", "size_bytes")
_FIGURES = (("latency_p50_us", "one-way µs", 1.0), ("stream_bytes_per_s", "streaming GB/s", 1e-9))


@click.command("versus")
@click.argument("other", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--sizes", default="8,64KiB,1MiB,16MiB", show_default=True)
@click.option("--lane", default="shm,tcp", show_default=True)
@click.option("--api", default="both", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--budget", type=float, default=0.3, show_default=True)
def main(other: Path, sizes: str, lane: str, api: str, rounds: int, budget: float) -> None:
    """Compare this build with that of OTHER, an interpreter with another Backhaul."""
    console = open_console(wide=True)
    print_machine(console, Machine.here(), installed_versions("backhaul"))
    options = ("--sizes", sizes, "--lane", lane, "--api", api, "--budget", f"{budget}")
    pythons = {"other": other, "this": Path(sys.executable)}

    def on_step(what: str, left: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"{what}, {left} left", err=True)

    found = in_turn(
        tuple(pythons),
        lambda name: _measure(pythons[name], options),
        repetitions=rounds,
        on_step=on_step,
    )
    table = Table(title=f"\nMedians of {rounds} rounds, in turn", title_justify="left")
    for column in _KEYS:
        table.add_column(column)
    for _, title, _ in _FIGURES:
        for column in (f"other {title}", f"this {title}", "this / other"):
            table.add_column(column, justify="right")
    for key in found["this"][0]:
        cells = [f"{key[0]}", f"{key[1]}", format_bytes(key[2])]
        for index, (_, _, unit) in enumerate(_FIGURES):
            before, after = (
                statistics.median(run[key][index] for run in found[name]) for name in pythons
            )
            cells += [f"{before * unit:.4g}", f"{after * unit:.4g}", f"{after / before:.2f}"]
        table.add_row(*cells)
    console.print(table)


def _measure(python: Path, options: Sequence[str]) -> dict[tuple[str, str, int], list[float]]:
    """One run of ``bench p2p``: its figures by what identifies a row."""
    program = python.with_name("backhaul")
    # Paths that are added to this one's path would hide the other one's packages.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [program, "bench", "p2p", "--rounds", "1", "--json", *options],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        said = "\n".join(done.stderr.strip().splitlines()[-6:])
        raise BenchmarkFailed(f"{program} ended with {done.returncode}:\n{said}")
    rows = json.loads(done.stdout)["rows"]
    return {
        (row["api"], row["lane"], row["size_bytes"]): [row[name] for name, _, _ in _FIGURES]
        for row in rows
    }
