"""Sweep over the runs of a job that divides the time of all threads by its use.

Each moment of each thread counts once: the thread computes, or it is idle while its worker reads or
writes spilled results, while its worker fetches inputs, shortly between two tasks, while a
straggler computes elsewhere, or while too few tasks compute elsewhere. While no thread computes,
all threads wait for the same reads, writes or fetches, or for Dask.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from backhaul.dask.observe.job_runs import DISK, Run

__all__ = ["KINDS", "stragglers", "thread_time"]

#: Uses of a thread's time
KINDS: Final = ("compute", "transfer", "spilling", "overhead", "stragglers", "few-tasks")

#: A thread that is idle for less than this between two tasks waits for Dask, in seconds
_PAUSE_S_MAX: Final = 0.05
#: A straggler takes this many times the median of its prefix, and at least this time, in seconds
_STRAGGLER_RATIO: Final = 3.0
_STRAGGLER_S_MIN: Final = 0.02
#: Fewest runs of a prefix that have stragglers
_STRAGGLER_RUNS_MIN: Final = 4


class _Step(NamedTuple):
    at_s: float
    worker: str
    #: Counter of the worker that changes
    name: str
    change: int


@dataclass(slots=True)
class _Worker:
    threads: int
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def idle(self) -> dict[str, int]:
        """Count the idle threads by the reason that is known on the worker."""
        idle = max(0, self.threads - self.counts["compute"])
        if self.counts["disk"]:
            return {"spilling": idle}
        if self.counts["transfer"]:
            return {"transfer": idle}
        pausing = min(idle, self.counts["pause"])
        return {"overhead": pausing, "idle": idle - pausing}


def stragglers(runs: Iterable[Run]) -> list[Run]:
    """Return the runs that took much longer than others of their prefix, the longest first."""
    by_prefix: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_prefix[run.prefix].append(run)
    found: list[Run] = []
    for group in by_prefix.values():
        if len(group) >= _STRAGGLER_RUNS_MIN:
            least_s = _STRAGGLER_RATIO * statistics.median(run.compute_s for run in group)
            least_s = max(least_s, _STRAGGLER_S_MIN)
            found += [run for run in group if run.compute_s >= least_s]
    return sorted(found, key=lambda run: -run.compute_s)


def thread_time(runs: Sequence[Run], threads: Mapping[str, int]) -> dict[str, float]:
    """Divide the time of all threads, from the first action to the last, by its use.

    There is at least one run; the threads of the worker of each run are by address. Returns seconds
    by the names of `KINDS`.
    """
    workers = {address: _Worker(count) for address, count in threads.items()}
    spent = dict.fromkeys(KINDS, 0.0)
    #: Threads by use; "idle" is divided by what the other workers do
    now: dict[str, int] = defaultdict(int)
    for worker in workers.values():
        now["idle"] += worker.threads
    cluster: dict[str, int] = defaultdict(int)
    steps = sorted(_steps(runs))
    previous_s = steps[0].at_s
    for step in steps:
        if (lasted_s := step.at_s - previous_s) > 0:
            kind = _elsewhere(cluster)
            for name, count in now.items():
                spent[kind if name == "idle" else name] += count * lasted_s
            previous_s = step.at_s
        cluster[step.name] += step.change
        if step.name == "late":
            continue
        worker = workers[step.worker]
        before = worker.idle()
        computed = min(worker.threads, worker.counts["compute"])
        worker.counts[step.name] += step.change
        now["compute"] += min(worker.threads, worker.counts["compute"]) - computed
        for name, count in before.items():
            now[name] -= count
        for name, count in worker.idle().items():
            now[name] += count
    return spent


def _elsewhere(cluster: Mapping[str, int]) -> str:
    """Return the use of threads that are idle for no reason on their own worker."""
    if cluster["compute"]:
        return "stragglers" if cluster["late"] else "few-tasks"
    if cluster["disk"]:
        return "spilling"
    return "transfer" if cluster["transfer"] else "overhead"


def _steps(runs: Sequence[Run]) -> Iterator[_Step]:
    late = {id(run) for run in stragglers(runs)}
    for run in runs:
        for action, start_s, stop_s in run.actions:
            name = "disk" if action in DISK else action
            if name in ("compute", "transfer", "disk") and stop_s > start_s:
                yield from _interval(start_s, stop_s, run.worker, name)
        if id(run) in late and run.compute is not None:
            yield from _interval(*run.compute, run.worker, "late")
    yield from _pauses(runs)
    # The steps begin and end with the job, even if its runs took no time.
    address = runs[0].worker
    yield _Step(min(run.start_s for run in runs), address, "pause", 0)
    yield _Step(max(run.stop_s for run in runs), address, "pause", 0)


def _pauses(runs: Sequence[Run]) -> Iterator[_Step]:
    """Yield the short times between two tasks of one thread."""
    by_thread: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        if run.thread is not None and run.compute is not None:
            by_thread[run.worker, run.thread].append(run.compute)
    for (worker, _), computed in by_thread.items():
        for (_, stop_s), (start_s, _) in itertools.pairwise(sorted(computed)):
            if 0 < start_s - stop_s < _PAUSE_S_MAX:
                yield from _interval(stop_s, start_s, worker, "pause")


def _interval(start_s: float, stop_s: float, worker: str, name: str) -> Iterator[_Step]:
    yield _Step(start_s, worker, name, 1)
    yield _Step(stop_s, worker, name, -1)
