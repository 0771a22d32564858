"""``idle``: what peers cost that say nothing.

A process listens, another one opens so many endpoints to it and then sleeps. Both are watched for
CPU time and memory; `tls` needs `cryptography`. One side of a connection is half of what both hold
more than before.
"""

from __future__ import annotations

import click
from rich.table import Table

from backhaul._machine import Machine, installed_versions
from backhaul._output import open_console, print_machine
from backhaul_bench.option_types import ListType
from benches.python.children import run_child

__all__ = ["main"]

_LANES = ("shm", "tcp", "tls")


@click.command("idle")
@click.option("--peers", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--lane", "lanes", type=ListType(_LANES, all=_LANES), default="shm,tcp")
@click.option("--seconds", type=float, default=10.0, show_default=True)
def main(peers: int, lanes: tuple[str, ...], seconds: float) -> None:
    """Measure CPU time and memory of peers that are idle."""
    console = open_console(wide=True)
    print_machine(console, Machine.here(), installed_versions("backhaul"))
    table = Table(title=f"\n{peers} idle peers for {seconds:g} s", title_justify="left")
    table.add_column("lane")
    for column in ("% of a core, listening side", "kB for each, PSS of one side"):
        table.add_column(column, justify="right")
    for lane in lanes:
        found = run_child(
            f"{peers} idle peers", "benches.python.idle_child", lane, f"{peers}", f"{seconds}"
        )
        table.add_row(lane, f"{found['core_percent']:.2f}", f"{found['kb_each']:.1f}")
    console.print(table)
