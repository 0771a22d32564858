"""What is measured of one execution of a task, and how it gets into the worker's metrics."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Any, TypeAlias

from backhaul.dask.private import ExecuteFailureEvent, ExecuteSuccessEvent, Worker

__all__ = ["Metrics", "add_up", "publish", "recorder", "seconds_in"]

#: Label, value and unit of each
Metrics: TypeAlias = list[tuple[Any, float, str]]

#: The one whose source was read, whoever replaces it later
_DIGEST_METRIC = Worker.digest_metric


def recorder(metrics: Metrics) -> Callable[[Any, float, str], None]:
    """Make a callback of a context meter; a context may keep it for long, so it holds no task."""

    def measured(label: Any, value: float, unit: str) -> None:
        metrics.append((label, value, unit))

    return measured


def seconds_in(metrics: Metrics, begin: int) -> float:
    """Sum up the seconds that were measured since there were `begin` metrics."""
    found = 0.0
    for _, value, unit in metrics[begin:]:
        if unit == "seconds":
            found += value
    return found


def publish(
    worker: Worker,
    task_state: Any,
    span_id: str | None,
    event: Any,
    metrics: Metrics,
    started_s: float,
) -> None:
    """Add what was measured to a worker's metrics, as ``BaseWorker._finalize_metrics``.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    task_state : distributed.worker_state_machine.TaskState
        The task.
    span_id : str or None
        Span that the metrics belong to.
    event : ExecuteDoneEvent
        How it ended; the state machine has been told.
    metrics : list of tuple of hashable, float and str
        What was measured.
    started_s : float
        When the instruction began, on the clock of ``time.perf_counter``: time that nothing else
        accounts for is "other".
    """
    coarse: str | None = None
    if isinstance(event, ExecuteSuccessEvent):
        state = worker.state.tasks.get(task_state.key)
        if state is None or state.state != "memory":
            coarse = "cancelled"
    elif isinstance(event, ExecuteFailureEvent):
        coarse = "failed"
    else:
        coarse = "cancelled"
    add_up(worker, task_state.prefix, span_id, coarse, metrics, started_s)


def add_up(
    worker: Worker,
    prefix: str,
    span_id: str | None,
    coarse: str | None,
    metrics: Metrics,
    started_s: float,
) -> None:
    """Add what was measured of a task to a worker's metrics.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    prefix : str
        Of the task's key.
    span_id : str or None
        Span that the metrics belong to.
    coarse : str or None
        What all of its time is, if it did not end well.
    metrics : list of tuple of hashable, float and str
        What was measured.
    started_s : float
        When the instruction began, on the clock of ``time.perf_counter``.
    """
    spent_s = perf_counter() - started_s
    named: list[tuple[Hashable, float]] = []
    for label, value, unit in metrics:
        if coarse is None or unit != "seconds":
            named.append((("execute", span_id, prefix, label, unit), value))
        if coarse is None and unit == "seconds":
            spent_s -= value
    name = "execute", span_id, prefix, coarse or "other", "seconds"
    named.append((name, max(0.0, spent_s)))
    if worker.digests is not None or type(worker).digest_metric is not _DIGEST_METRIC:
        for label, value in named:
            worker.digest_metric(label, value)
        return
    # As Worker.digest_metric, with one look for all
    totals = worker.digests_total
    since_heartbeat = worker.digests_total_since_heartbeat
    greatest = worker.digests_max
    for label, value in named:
        totals[label] += value
        since_heartbeat[label] += value
        if value > greatest[label]:
            greatest[label] = value
