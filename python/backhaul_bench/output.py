"""How the benchmarks write what they do and what they found."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from backhaul._output import print_json

__all__ = ["show_progress", "write_json"]

#: Least time between two lines of progress in a log
_BETWEEN_LINES_S = 1.0


@contextmanager
def show_progress() -> Iterator[Callable[[str, int], None]]:
    """Show progress on standard error, so that standard output is the result alone.

    A bar on a terminal, and lines elsewhere, one a second at most.

    Yields
    ------
    callable
        To be called before each step with what comes, and how many steps are left.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _print_steps()
        return
    with Progress(
        SpinnerColumn(),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("starting", total=1)
        steps = 1

        def on_step(what: str, left: int) -> None:
            nonlocal steps
            steps = max(steps, left)
            progress.update(task, description=what, total=steps, completed=steps - left)

        yield on_step


def _print_steps() -> Callable[[str, int], None]:
    """Give what prints a line for a step, unless the last one was printed just before."""
    started = time.monotonic()
    steps, printed = 1, -math.inf

    def on_step(what: str, left: int) -> None:
        nonlocal steps, printed
        steps = max(steps, left)
        elapsed_s = time.monotonic() - started
        if elapsed_s - printed >= _BETWEEN_LINES_S:
            printed = elapsed_s
            click.echo(f"{elapsed_s:6.0f} s  {steps - left}/{steps}  {what}", err=True)

    return on_step


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
