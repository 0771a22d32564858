"""Metrics of one execution of a task, and their addition to the worker's metrics."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Hashable
from time import perf_counter
from typing import Any, Final, TypeAlias

from backhaul.dask.compat.names import ExecuteFailureEvent, ExecuteSuccessEvent, Worker
from backhaul.dask.worker.lazy_collections import data_of
from backhaul.dask.worker.spill_buffer import touch

__all__ = ["Metrics", "Sums", "add_up", "may_be_summed", "publish", "recorder", "seconds_in"]

#: Label, value and unit of each
Metrics: TypeAlias = list[tuple[Any, float, str]]

#: Dask's method, whose digest was checked; a program may replace it later
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
    """Add the metrics of a task to a worker's, as ``BaseWorker._finalize_metrics`` does.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    task_state : distributed.worker_state_machine.TaskState
        The task.
    span_id : str or None
        Span that the metrics belong to.
    event : ExecuteDoneEvent
        The end of the task, which the state machine has handled.
    metrics : list of tuple of hashable, float and str
        The measured values.
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
    """Add the metrics of a task to a worker's.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    prefix : str
        Prefix of the task's key.
    span_id : str or None
        Span that the metrics belong to.
    coarse : str or None
        Label for the whole time of a task that did not succeed.
    metrics : list of tuple of hashable, float and str
        The measured values.
    started_s : float
        When the instruction began, on the clock of ``time.perf_counter``.
    """
    named = _named(prefix, span_id, coarse, metrics, perf_counter() - started_s)
    if not may_be_summed(worker):
        for label, value in named:
            worker.digest_metric(label, value)
        return
    # As Worker.digest_metric, with one lookup of the dictionaries for all
    totals = worker.digests_total
    since_heartbeat = worker.digests_total_since_heartbeat
    greatest = worker.digests_max
    for label, value in named:
        totals[label] += value
        since_heartbeat[label] += value
        if value > greatest[label]:
            greatest[label] = value


def _named(
    prefix: str, span_id: str | None, coarse: str | None, metrics: Metrics, spent_s: float
) -> list[tuple[Hashable, float]]:
    """Give the metrics of a task the names of a worker's metrics, and add the rest of its time."""
    named: list[tuple[Hashable, float]] = []
    for label, value, unit in metrics:
        if coarse is None or unit != "seconds":
            named.append((("execute", span_id, prefix, label, unit), value))
        if coarse is None and unit == "seconds":
            spent_s -= value
    name = "execute", span_id, prefix, coarse or "other", "seconds"
    named.append((name, max(0.0, spent_s)))
    return named


def may_be_summed(worker: Worker) -> bool:
    """Tell whether a worker needs only sums of its metrics, not each value."""
    return worker.digests is None and type(worker).digest_metric is _DIGEST_METRIC


class Sums:
    """Sums of the metrics of tasks that succeeded, until the event loop adds them to the worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Sum and maximum by label
        self._found: dict[Hashable, tuple[float, float]] = {}
        self._reads = 0
        self._read_bytes = 0.0

    # Called by any thread

    def add(
        self,
        prefix: str,
        span_id: str | None,
        metrics: Metrics,
        executor_s: float,
        spent_s: float,
    ) -> None:
        """Add the metrics of a task that succeeded; see `add_up`.

        Parameters
        ----------
        prefix : str
            Prefix of its key.
        span_id : str or None
            Span that the metrics belong to.
        metrics : list of tuple of hashable, float and str
            The measured values.
        executor_s : float
            Overhead of the thread pool, in seconds.
        spent_s : float
            Time of the whole execution, in seconds.
        """
        named = _named(prefix, span_id, None, metrics, spent_s - executor_s)
        named.append((("execute", span_id, prefix, "executor", "seconds"), executor_s))
        with self._lock:
            found = self._found
            for label, value in named:
                total, greatest = found.get(label, _NOTHING)
                found[label] = total + value, value if value > greatest else greatest

    def count_reads(self, data: Any, keys: Collection[Any], metrics: Metrics) -> None:
        """Count inputs of a task as read from a worker's store, if the store counts reads."""
        nbytes = None if type(data) is dict else touch(data, keys)
        if nbytes is None:
            return
        metrics.append(("memory-read", len(keys), "count"))
        metrics.append(("memory-read", nbytes, "bytes"))
        with self._lock:
            self._reads += len(keys)
            self._read_bytes += nbytes

    # Called by the event loop

    def publish(self, worker: Worker) -> None:
        """Add the sums to the metrics of a worker that `may_be_summed`."""
        if not self._found:
            return
        with self._lock:
            found, self._found = self._found, {}
            reads, self._reads = self._reads, 0
            read_bytes, self._read_bytes = self._read_bytes, 0.0
        totals = worker.digests_total
        since_heartbeat = worker.digests_total_since_heartbeat
        maxima = worker.digests_max
        for label, (total, greatest) in found.items():
            totals[label] += total
            since_heartbeat[label] += total
            if greatest > maxima[label]:
                maxima[label] = greatest
        if reads:
            counts = data_of(worker).cumulative_metrics
            counts["memory-read", "count"] += reads
            counts["memory-read", "bytes"] += read_bytes


#: Sum and maximum of no values
_NOTHING: Final = (0.0, -math.inf)
