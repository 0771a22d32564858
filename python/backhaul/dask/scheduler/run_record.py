"""Record of the last runs of a scheduler, from which `backhaul.dask.explain` finds a job's limit.

The record is a ring buffer in Rust. The core appends the runs that end while it has the state of
the scheduler; the handler of ``task-finished`` appends the others. A request returns the runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from distributed import Scheduler

from backhaul._native import RunRecord
from backhaul.dask.compat.instance_patches import SCHEDULER_ACCOUNT
from backhaul.dask.compat.operations import RUNS
from backhaul.dask.config.settings import explained_runs_max

__all__ = ["RunKeeper", "install", "installed"]


def install(scheduler: Scheduler) -> None:
    """Keep a record of the runs of a scheduler; a second call changes nothing."""
    runs_max = explained_runs_max()
    if runs_max is not None and installed(scheduler) is None:
        RunKeeper(scheduler, runs_max).attach()


def installed(scheduler: Scheduler) -> RunKeeper | None:
    """Return the `RunKeeper` of a scheduler; None if it has none."""
    owner = getattr(scheduler.handlers.get(RUNS), "__self__", None)
    return owner if isinstance(owner, RunKeeper) else None


class RunKeeper:
    """Keeps the record of the last `runs_max` runs of one scheduler.

    Attributes
    ----------
    record : backhaul._native.RunRecord
        The record, to which a core appends, too.
    """

    def __init__(self, scheduler: Scheduler, runs_max: int) -> None:
        self._scheduler = scheduler
        self.record = RunRecord(runs_max)
        self._upstream_finished: Any = scheduler.handle_task_finished
        self._key_of: Callable[[str], Any] = str

    def attach(self) -> None:
        """Install the handlers on the scheduler."""
        _, finished, runs = SCHEDULER_ACCOUNT.slots
        ours = {finished: self.handle_task_finished, runs: self.runs}
        if replaced := SCHEDULER_ACCOUNT.install(self._scheduler, ours):
            self._upstream_finished = replaced[finished].original

    def record_from(self, core: Any, key_of: Callable[[str], Any]) -> None:
        """Let a core append its runs, with the texts that it has for keys."""
        self._key_of = key_of
        core.record_runs(self.record)

    def handle_task_finished(self, key: Any, worker: str, stimulus_id: str, **message: Any) -> None:
        """Append the run; replaces `distributed.Scheduler.handle_task_finished`."""
        ts = self._scheduler.tasks.get(key)
        if ts is not None and ts.processing_on is not None and ts.processing_on.address == worker:
            # A record has no place for what a worker may say besides: sizes that are no whole
            # numbers, or negative.
            with contextlib.suppress(KeyError, OverflowError, TypeError, ValueError):
                startstops = message["startstops"]
                self.record.add(
                    key=str(key),
                    prefix=ts.prefix.name,
                    worker=worker,
                    thread=message.get("thread"),
                    nbytes=message["nbytes"] or 0,
                    actions=[(one["action"], one["start"], one["stop"]) for one in startstops],
                )
        self._upstream_finished(key=key, worker=worker, stimulus_id=stimulus_id, **message)

    def runs(self, start_s: float = 0.0) -> Any:
        """Return the runs that ended at or after a time, and how many were dropped so far."""
        runs, dropped = self.record.since(start_s)
        return [(str(self._key_of(text)), *others) for text, *others in runs], dropped
