"""Knowledge of links by which the scheduler's core places tasks.

Dask places a task on a worker that holds one of its inputs, by one bandwidth for all links. While
Rust has the state of the scheduler, each edge has its own (``crates/dask/src/scheduler/placing.rs``
and ``roots.rs``, by the costs of ``crates/placement``); while Dask has the state, Dask places. This
plugin tells the costs about workers and links. ``docs/design/placement.md`` has the model.
"""

from __future__ import annotations

from typing import Any

from distributed import Scheduler, SchedulerPlugin

import dask
from backhaul import _native
from backhaul.dask.compat.names import WorkerState
from backhaul.dask.config.settings import switched_on
from backhaul.dask.observe.account import account_of
from backhaul.dask.observe.counters import Report
from backhaul.dask.observe.fetch_latency import FetchTimes
from backhaul.dask.placement.link_model import LearnedLinks

__all__ = ["LinkPlacement", "install", "memory_target"]

#: How much more a byte counts than the time that it takes alone: bytes that need not move are not
#: moved for a small gain. Found in simulation, see ``docs/design/placement.md``.
BETA = 3.0

#: The same where one pair of workers has a link for itself: its bytes are in no other flow's way
BETA_PRIVATE = 1.5


def install(scheduler: Scheduler) -> LinkPlacement | None:
    """Place the tasks of a scheduler by what links cost, while a core has its state.

    Does nothing, and returns None, unless ``distributed.comm.backhaul.placement.enabled`` is true.
    """
    found = scheduler.plugins.get(LinkPlacement.name)
    if isinstance(found, LinkPlacement):
        return found
    if not switched_on("placement.enabled"):
        return None
    placement = LinkPlacement(scheduler)
    placement.attach()
    return placement


class LinkPlacement(SchedulerPlugin):
    """Knowledge of the workers and links of one scheduler.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.

    Attributes
    ----------
    result_bytes : dict of str to float
        Expected size of a result by the name of its prefix, for the next core.
    """

    name = "backhaul-placement"

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.result_bytes: dict[str, float] = {}
        #: Latencies of requests for data
        self.fetch_times = FetchTimes()
        self._account = account_of(scheduler)
        self._begin()

    def _begin(self) -> None:
        self.mirror = _native.Placement(beta=BETA, beta_private=BETA_PRIVATE)
        #: Numbers of hosts
        self.hosts: dict[str, int] = {}
        self._states: dict[str, WorkerState] = {}
        #: Addresses of the workers of each host that has some
        self._by_host: dict[str, list[str]] = {}
        #: Measured links; None if the scheduler keeps no account of them
        self.learned: LearnedLinks | None = None
        if self._account is not None:
            self.learned = LearnedLinks(self._account.links, self.mirror.set_hosts)

    def renew(self, result_bytes: dict[str, float]) -> None:
        """Forget the transfers of a core that decides no more, and keep its sizes of results."""
        self.result_bytes = result_bytes
        self._begin()
        for ws in self.scheduler.workers.values():
            self._add(ws)
        if (request_s := self.fetch_times.request_s) is not None:
            self.mirror.set_request_seconds(request_s)
        self.learn()

    def attach(self) -> None:
        """Begin to listen to reports and workers of the scheduler."""
        for ws in self.scheduler.workers.values():
            self._add(ws)
        if self._account is not None:
            self._account.listeners.append(self.hear)
        self.scheduler.add_plugin(self)

    def detach(self) -> None:
        """End what `attach` has begun."""
        if self._account is not None and self.hear in self._account.listeners:
            self._account.listeners.remove(self.hear)
        if self.name in self.scheduler.plugins:
            self.scheduler.remove_plugin(self.name)

    def learn(self) -> None:
        """Look at what is known of links by now."""
        if self.learned is not None:
            self.learned.refresh(self.hosts, self._by_host)

    def hear(self, address: str, report: Report) -> None:
        """Record a worker's report of its links."""
        self.learn()
        self.fetch_times.tell(address, report.get("request_s"))
        if (request_s := self.fetch_times.request_s) is not None:
            self.mirror.set_request_seconds(request_s)

    # Callbacks of a scheduler's plugin

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Take a worker in."""
        self._add(scheduler.workers[worker])

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
        """Forget a worker; upstream has forgotten its state already."""
        ws = self._states.pop(worker, None)
        if ws is not None:
            self.mirror.remove_worker(ws)
            self.fetch_times.forget(worker)
            own = self._by_host[ws.host]
            own.remove(worker)
            if not own:
                del self._by_host[ws.host]

    def _add(self, ws: WorkerState) -> int:
        host = self.hosts.setdefault(ws.host, len(self.hosts))
        self._states[ws.address] = ws
        self._by_host.setdefault(ws.host, []).append(ws.address)
        return self.mirror.add_worker(ws, host, host)


def memory_target() -> float:
    """Return the share of its memory limit that a worker may hold before it would spill.

    This is the value of the scheduler's configuration; a worker may have another one, or none.
    """
    return float(dask.config.get("distributed.worker.memory.target") or 1.0)
