"""``imports``: what ``import backhaul.dask`` takes on top of ``import distributed``.

Every worker pays it once. Each repetition is a new process. CPU time, as the least of many says
most on a machine where something else runs; modules are compiled before.
"""

from __future__ import annotations

import os

import click
from rich.table import Table

from backhaul._machine import Machine, installed_versions
from backhaul._output import open_console, print_machine
from backhaul_bench.summary import spread
from benches.python.children import in_turn, run_child

__all__ = ["main"]

_MODULES = ("distributed", "backhaul.dask")


@click.command("imports")
@click.option("--repetitions", type=click.IntRange(1), default=15, show_default=True)
def main(repetitions: int) -> None:
    """Measure how long imports take."""
    # Modules that are compiled anew each time would be all there is to see.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    console = open_console(wide=True)
    print_machine(console, Machine.here(), installed_versions("backhaul", "dask", "distributed"))

    def measure(module: str) -> float:
        before = "distributed" if module != "distributed" else "sys"
        found = run_child("an import", "benches.python.imports_child", before, module)
        return float(found)

    for module in _MODULES:
        measure(module)
    table = Table(title="\nCPU time, ms", title_justify="left")
    for column in ("import", "least", "median", "most"):
        table.add_column(column, justify="left" if column == "import" else "right")
    by_module = in_turn(_MODULES, measure, repetitions=repetitions, on_step=lambda *_: None)
    for module, seconds in by_module.items():
        found = spread([1e3 * each for each in seconds])
        after = "" if module == "distributed" else ", after distributed"
        cells = (f"{each:.1f}" for each in (found.minimum, found.median, found.maximum))
        table.add_row(module + after, *cells)
    console.print(table)
