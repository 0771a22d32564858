"""``backhaul bench start``: how long a cluster on this machine takes to start, by launcher.

From asking for it until all workers have joined the scheduler. Each start has a new process, whose
imports are not counted; those of the workers are.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from backhaul.bench.dask_cluster import BenchmarkFailed
from backhaul.bench.machine import Machine, installed_versions
from backhaul.bench.summary import Spread, spread

__all__ = ["Options", "Report", "Row", "run", "start_tables"]

_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run."""

    #: Some of those of `start_child`; the first one is what the others are held to
    launchers: Sequence[str]
    workers: int = 2
    #: Threads of each worker
    threads: int = 1
    #: Starts of each
    repetitions: int = 5


@dataclass(frozen=True)
class Row:
    """One launcher."""

    launcher: str
    start_seconds: Spread
    close_seconds: Spread
    #: Median of this launcher's start over the first one's
    ratio: float


@dataclass(frozen=True)
class Report:
    """Everything that a run found."""

    machine: Machine
    versions: dict[str, str]
    options: Options
    rows: list[Row]

    def to_json(self) -> dict[str, Any]:
        """Give the report as plain JSON values.

        Returns
        -------
        dict of str to Any
            With ``schema`` naming this layout. A spread is median, minimum and maximum.
        """
        return {"schema": "backhaul.bench.start/1", **asdict(self)}


def run(options: Options, *, on_step: Callable[[str, int], None]) -> Report:
    """Start and close clusters of each launcher, in turn.

    Parameters
    ----------
    options : Options
        What to run.
    on_step : callable
        Called before each step with what comes, and how many steps are left.

    Returns
    -------
    Report
        A row for each launcher.

    Raises
    ------
    BenchmarkFailed
        If a process fails or takes too long.
    """
    machine = Machine.here()
    left = len(options.launchers) * options.repetitions
    found: dict[str, list[list[float]]] = {name: [] for name in options.launchers}
    for number in range(1, options.repetitions + 1):
        for name in options.launchers:
            on_step(f"{name}: {number}/{options.repetitions}", left)
            left -= 1
            found[name].append(_start_once(name, options))
    on_step("done", 0)
    rows: list[Row] = []
    for name, repetitions in found.items():
        start_s, close_s = (spread(figures) for figures in zip(*repetitions, strict=True))
        base = rows[0].start_seconds.median if rows else start_s.median
        rows.append(Row(name, start_s, close_s, start_s.median / base))
    return Report(machine, installed_versions("backhaul", "dask", "distributed"), options, rows)


def start_tables(report: Report) -> Group:
    """Lay out a report.

    Parameters
    ----------
    report : Report
        What was measured.

    Returns
    -------
    rich.console.Group
        One table.
    """
    options = report.options
    table = Table(
        title=f"\n{options.workers} workers with {options.threads} threads each",
        title_justify="left",
    )
    table.add_column("launcher", no_wrap=True)
    for which in ("start", "close"):
        table.add_column(f"{which}, s", justify="right")
        table.add_column("min – max", justify="right", no_wrap=True)
    table.add_column("start, against the first", justify="right")
    for row in report.rows:
        cells = [
            text
            for each in (row.start_seconds, row.close_seconds)
            for text in (f"{each.median:.2f}", f"{each.minimum:.2f} – {each.maximum:.2f}")
        ]
        table.add_row(row.launcher, *cells, f"{row.ratio:.2f}")
    note = Text(f"Medians of {options.repetitions}, launchers in turn.", style="dim")
    return Group(table, note)


def _start_once(launcher: str, options: Options) -> list[float]:
    """Start and close a cluster in a process of its own; seconds of both."""
    counts = (str(options.workers), str(options.threads))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "backhaul.bench.start_child", launcher, *counts],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkFailed(f"{launcher} took more than {_TIMEOUT_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        said = "\n".join(error.stderr.strip().splitlines()[-6:])
        raise BenchmarkFailed(f"{launcher} ended with {error.returncode}:\n{said}") from None
    found: list[float] = json.loads(done.stdout)
    return found
