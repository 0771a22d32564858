"""How the benchmarks write what they do and what they found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["print_json", "show_progress", "write_json"]


@contextmanager
def show_progress() -> Iterator[Callable[[str, int], None]]:
    """Show a bar on standard error, so that standard output is the result alone.

    Yields
    ------
    callable
        To be called before each step with what comes, and how many steps are left.
    """
    with Progress(
        SpinnerColumn(),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task("starting", total=1)
        steps = 1

        def on_step(what: str, left: int) -> None:
            nonlocal steps
            steps = max(steps, left)
            progress.update(task, description=what, total=steps, completed=steps - left)

        yield on_step


def print_json(value: dict[str, Any]) -> None:
    """Print a report as JSON on standard output.

    Parameters
    ----------
    value : dict of str to Any
        Plain JSON values.
    """
    click.echo(json.dumps(value, indent=2))


def write_json(value: dict[str, Any], target: str) -> None:
    """Write a report as JSON.

    Parameters
    ----------
    value : dict of str to Any
        Plain JSON values.
    target : str
        Path of the file, or ``-`` for standard output.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    if target == "-":
        print_json(value)
    else:
        Path(target).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
