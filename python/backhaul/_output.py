"""Output of the commands: a console of a known width, the machine, and JSON."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

from backhaul._machine import Machine

__all__ = ["open_console", "print_json", "print_machine"]

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


def print_json(value: dict[str, Any]) -> None:
    """Print a report as JSON on standard output.

    Parameters
    ----------
    value : dict of str to Any
        Plain JSON values.
    """
    click.echo(json.dumps(value, indent=2))
