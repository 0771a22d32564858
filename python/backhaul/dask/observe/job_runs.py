"""Runs of a job, as the scheduler's record has them, without Dask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

__all__ = ["DISK", "Run", "last_job", "read_runs"]

#: Actions that read or write spilled results
DISK: Final = frozenset({"disk-read", "disk-write"})


@dataclass(frozen=True)
class Run:
    """One run of a task that ended well."""

    #: Key of the task and its prefix
    key: str
    prefix: str
    #: Address of the worker
    worker: str
    #: Thread that ran the task
    thread: int | None
    #: Size of the result, in bytes
    nbytes: int
    #: Name, begin and end of each action, in seconds since the epoch
    actions: tuple[tuple[str, float, float], ...]

    @cached_property
    def start_s(self) -> float:
        """Begin of the first action."""
        return min(start_s for _, start_s, _ in self.actions)

    @cached_property
    def stop_s(self) -> float:
        """End of the last action."""
        return max(stop_s for _, _, stop_s in self.actions)

    @cached_property
    def compute(self) -> tuple[float, float] | None:
        """Begin and end of the computation; None of a run without one."""
        found = [(start_s, stop_s) for name, start_s, stop_s in self.actions if name == "compute"]
        return (found[0][0], found[-1][1]) if found else None

    @cached_property
    def compute_s(self) -> float:
        """Duration of the computation."""
        return self.compute[1] - self.compute[0] if self.compute else 0.0


def read_runs(rows: Iterable[Sequence[Any]]) -> list[Run]:
    """Make runs of the rows of a record; rows without actions are left out."""
    return [
        Run(key, prefix, worker, thread, nbytes, tuple(map(tuple, actions)))
        for key, prefix, worker, thread, nbytes, actions in rows
        if actions
    ]


def last_job(runs: Iterable[Run], idle_s: float) -> list[Run]:
    """Return the runs since the last time in which no run was in progress for some seconds."""
    ordered = sorted(runs, key=lambda run: run.start_s)
    first, busy_until_s = 0, float("-inf")
    for place, run in enumerate(ordered):
        if run.start_s - busy_until_s > idle_s:
            first = place
        busy_until_s = max(busy_until_s, run.stop_s)
    return ordered[first:]
