"""What is measured of one execution of a task, and how it gets into the worker's metrics."""

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
    named = _named(prefix, span_id, coarse, metrics, perf_counter() - started_s)
    if not may_be_summed(worker):
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


def _named(
    prefix: str, span_id: str | None, coarse: str | None, metrics: Metrics, spent_s: float
) -> list[tuple[Hashable, float]]:
    """Name what was measured of a task as a worker's metrics are, with the rest of its time."""
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
    """Tell whether nobody sees each value of a worker's metrics."""
    return worker.digests is None and type(worker).digest_metric is _DIGEST_METRIC


class Sums:
    """What was measured of tasks that ended well, until the event loop adds it to the worker's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Sum and greatest by label
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
        """Add what was measured of a task that has ended well; see `add_up`.

        Parameters
        ----------
        prefix : str
            Of its key.
        span_id : str or None
            Span that the metrics belong to.
        metrics : list of tuple of hashable, float and str
            What was measured.
        executor_s : float
            How long the thread pool took around it, in seconds.
        spent_s : float
            How long all of it took.
        """
        named = _named(prefix, span_id, None, metrics, spent_s - executor_s)
        named.append((("execute", span_id, prefix, "executor", "seconds"), executor_s))
        with self._lock:
            found = self._found
            for label, value in named:
                total, greatest = found.get(label, _NOTHING)
                found[label] = total + value, value if value > greatest else greatest

    def count_reads(self, data: Any, keys: Collection[Any], metrics: Metrics) -> None:
        """Count inputs of a task as read from a worker's store, if that is counted."""
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
        """Add all of it to the metrics of a worker that `may_be_summed`."""
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


#: Sum and greatest of what has not been measured
_NOTHING: Final = (0.0, -math.inf)
