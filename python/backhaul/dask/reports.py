"""What a worker adds to its heartbeats: a report of what it has received over Backhaul."""

from __future__ import annotations

from typing import Any

from distributed import Worker

from backhaul.dask import prometheus
from backhaul.dask.config import transfers_links_max
from backhaul.dask.flows import Reporter
from backhaul.dask.patches import WORKER_METRIC

__all__ = ["METRIC", "WorkerMetric", "install", "report_of"]

#: Under this name a heartbeat carries a report.
METRIC: str = WORKER_METRIC.item


def install(worker: Worker) -> None:
    """Have a worker report what it receives; again costs nothing."""
    if transfers_links_max() is not None and METRIC not in worker.metrics:
        WORKER_METRIC.install(worker.metrics, WorkerMetric())
        prometheus.install()


class WorkerMetric:
    """What a worker calls for each heartbeat, as it calls its other metrics."""

    def __init__(self) -> None:
        self._reporter = Reporter()
        self._reports_all = False

    def __call__(self, worker: Worker) -> dict[str, Any]:
        """Make a report."""
        if self._reports_all:
            self._reports_all = False
            return self._reporter(changed_max=None)
        return self._reporter()

    def report_all(self) -> None:
        """Have the next report leave out nothing."""
        self._reports_all = True


def report_of(worker: Worker) -> WorkerMetric | None:
    """Find what makes the reports of a worker; None if it makes none."""
    metric = worker.metrics.get(METRIC)
    return metric if isinstance(metric, WorkerMetric) else None
