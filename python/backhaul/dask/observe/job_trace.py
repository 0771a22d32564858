"""Trace of a job in Chrome's "Trace Event Format", which Perfetto shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backhaul.dask.observe.job_runs import Run
from backhaul.dask.observe.verdict import Site

__all__ = ["chrome_trace"]


def chrome_trace(runs: Sequence[Run], sites: Mapping[str, Site]) -> dict[str, Any]:
    """Lay runs, at least one, out as a trace: a process for each worker, a row for each thread.

    Transfers and reads and writes of spilled results overlap, and have rows of their own. Events
    are complete, in microseconds from the begin of the job. The workers are by address.
    """
    begin_s = min(run.start_s for run in runs)
    pids = {address: pid for pid, address in enumerate(sites, 1)}
    rows = _Rows()
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pids[address], "args": {"name": site.name}}
        for address, site in sites.items()
    ]
    actions = [
        (start_s, stop_s, name, run) for run in runs for name, start_s, stop_s in run.actions
    ]
    for start_s, stop_s, name, run in sorted(actions, key=lambda one: one[:2]):
        kind = f"thread {run.thread}" if name == "compute" else name
        event = {
            "ph": "X",
            "name": run.prefix if name == "compute" else f"{name} for {run.prefix}",
            "cat": name,
            "pid": pids[run.worker],
            "tid": rows.take(run.worker, kind, start_s, stop_s),
            "ts": (start_s - begin_s) * 1e6,
            "dur": (stop_s - start_s) * 1e6,
            "args": {"key": run.key, "nbytes": run.nbytes},
        }
        events.append(event)
    events += [
        {"ph": "M", "name": "thread_name", "pid": pids[worker], "tid": tid, "args": {"name": kind}}
        for worker, kind, tid in rows.names
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


class _Rows:
    """Numbers of rows in which no two events overlap."""

    def __init__(self) -> None:
        #: Worker, kind and number of each row
        self.names: list[tuple[str, str, int]] = []
        self._free: dict[tuple[str, str], list[tuple[int, float]]] = {}

    def take(self, worker: str, kind: str, start_s: float, stop_s: float) -> int:
        """Return the first row of a kind that is free from a time on, and occupy it."""
        rows = self._free.setdefault((worker, kind), [])
        for place, (tid, free_s) in enumerate(rows):
            if free_s <= start_s:
                rows[place] = (tid, stop_s)
                return tid
        tid = len(self.names) + 1
        self.names.append((worker, kind, tid))
        rows.append((tid, stop_s))
        return tid
