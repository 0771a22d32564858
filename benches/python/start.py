"""``start``: how long a cluster on this machine takes to start, by launcher.

From asking for it until all workers have joined the scheduler. Each start has a new process, whose
imports are not counted; those of the workers are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backhaul._machine import Machine, installed_versions
from backhaul_bench.report import Report
from backhaul_bench.summary import Spread, spread
from benches.python.children import in_turn, run_child

__all__ = ["Options", "Row", "run"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the benchmark."""

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


def run(options: Options, *, on_step: Callable[[str, int], None]) -> Report[Options, Row]:
    """Start and close clusters of each launcher, in turn.

    Parameters
    ----------
    options : Options
        Options of the benchmark.
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
    found = in_turn(
        options.launchers,
        lambda name: _start_once(name, options),
        repetitions=options.repetitions,
        on_step=on_step,
    )
    rows: list[Row] = []
    for name, repetitions in found.items():
        start_s, close_s = (spread(figures) for figures in zip(*repetitions, strict=True))
        base = rows[0].start_seconds.median if rows else start_s.median
        rows.append(Row(name, start_s, close_s, start_s.median / base))
    return Report(
        schema="backhaul.benches.start/1",
        machine=machine,
        versions=installed_versions("backhaul", "dask", "distributed"),
        options=options,
        rows=rows,
    )


def _start_once(launcher: str, options: Options) -> list[float]:
    """Start and close a cluster in a process of its own; seconds of both."""
    counts = (str(options.workers), str(options.threads))
    found: list[float] = run_child(launcher, "benches.python.start_child", launcher, *counts)
    return found
