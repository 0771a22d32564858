"""Report in a worker's heartbeats of the data that the worker has received over Backhaul."""

from __future__ import annotations

from typing import Any

import psutil
from distributed import Status, Worker
from distributed.comm import get_address_host

from backhaul.dask.compat.instance_patches import WORKER_METRIC
from backhaul.dask.compat.operations import TRANSFERS
from backhaul.dask.config.settings import transfers_links_max
from backhaul.dask.observe import prometheus
from backhaul.dask.observe.counters import Reporter
from backhaul.dask.observe.exchange_counters import exchange_counters
from backhaul.dask.observe.fetch_latency import request_s_of

__all__ = ["METRIC", "WorkerMetric", "install", "nic_bytes_per_s", "report_of"]

#: Under this name a heartbeat carries a report.
METRIC: str = TRANSFERS


def install(worker: Worker) -> None:
    """Add the report to a worker's heartbeats; again costs nothing."""
    if transfers_links_max() is not None and METRIC not in worker.metrics:
        (slot,) = WORKER_METRIC.slots
        WORKER_METRIC.install(worker, {slot: WorkerMetric()})
        prometheus.install()


class WorkerMetric:
    """Metric that a worker calls for each heartbeat, as it calls its other metrics."""

    def __init__(self) -> None:
        self._reporter = Reporter()
        self._reports_all = False
        #: Of the NIC, in bytes per second; told with each report, as a scheduler may start anew.
        self._nic_bytes_per_s: float | None = None
        self._has_looked = False

    def __call__(self, worker: Worker) -> dict[str, Any]:
        """Make a report; empty until the worker has joined, as the scheduler ignores it before."""
        # The scheduler shows and writes to files what came with it, and that is to be text.
        if worker.status in (Status.undefined, Status.init, Status.starting):
            return {}
        if not self._has_looked:
            self._has_looked = True
            self._nic_bytes_per_s = nic_bytes_per_s(get_address_host(worker.address))
        report = self._reporter(changed_max=None) if self._reports_all else self._reporter()
        self._reports_all = False
        report["nic_bytes_per_s"] = self._nic_bytes_per_s
        report["request_s"] = request_s_of(worker)
        report["exchanges"] = exchange_counters.report()
        return report

    def report_all(self) -> None:
        """Make the next report complete."""
        self._reports_all = True


def nic_bytes_per_s(host: str) -> float | None:
    """Ask the system how fast the interface with an address is, in bytes per second.

    None of one that does not say, of no interface here, and of the loopback.
    """
    speeds = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == host for address in addresses):
            # In millions of bits; 0 if it does not say.
            speed = speeds[name].speed if name in speeds else 0
            return speed * 1e6 / 8 if speed > 0 else None
    return None


def report_of(worker: Worker) -> WorkerMetric | None:
    """Find what makes the reports of a worker; None if it makes none."""
    metric = worker.metrics.get(METRIC)
    return metric if isinstance(metric, WorkerMetric) else None
