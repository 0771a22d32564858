"""Where a scheduler runs tasks, by what links cost: which worker, which thief.

Dask places a task on a worker that holds one of its inputs, by one bandwidth for all links. Here
each edge has its own, bytes that are already promised count as a queue, and idle workers beside the
holders are asked, too. The decision is in Rust (``crates/placement/src/cost``), which keeps a
mirror of the promises to each worker, which the functions below feed from the three places where
Dask keeps its own account of that. ``docs/design/placement.md`` has the model and what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from distributed import Scheduler, SchedulerPlugin

from backhaul import _native
from backhaul.dask.compat.instance_patches import PLACEMENT
from backhaul.dask.compat.names import TaskState, WorkerState
from backhaul.dask.compat.patching import Replacement
from backhaul.dask.config.settings import switched_on
from backhaul.dask.observe.account import account_of
from backhaul.dask.observe.counters import Report
from backhaul.dask.observe.fetch_latency import FetchTimes
from backhaul.dask.placement.link_messages import LinkNews
from backhaul.dask.placement.link_model import LearnedLinks
from backhaul.dask.placement.root_plan import RootPlan

__all__ = ["LinkPlacement", "counted_need", "dropped_need", "install", "met_need"]

#: How much more a byte counts than the time that it takes alone: bytes that need not move are not
#: moved for a small gain. Found in simulation, see ``docs/design/placement.md``.
BETA = 3.0

#: The same where one pair of workers has a link for itself: its bytes are in no other flow's way
BETA_PRIVATE = 1.5

#: Placements that get needs and results: one for each open scheduler of this process that has one
_placements: list[LinkPlacement] = []

#: Routes of links: numbers of sender and receiver, edges, latency in seconds
_Routes = Iterable[tuple[int, int, Sequence[int], float]]


def install(scheduler: Scheduler) -> LinkPlacement | None:
    """Place the tasks of a scheduler by what links cost.

    Does nothing unless ``distributed.comm.backhaul.placement.enabled`` is true, or, with a warning
    in the log, if the scheduler does not look like one we know.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        Before or after it has started.

    Returns
    -------
    LinkPlacement or None
        The placement that is in force now.

    Raises
    ------
    ValueError
        If the configuration cannot be understood.
    """
    found = scheduler.plugins.get(LinkPlacement.name)
    if isinstance(found, LinkPlacement):
        return found
    if not switched_on("placement.enabled"):
        return None
    if not PLACEMENT.fits_on(scheduler):
        return None
    placement = LinkPlacement(scheduler)
    placement.attach()
    return placement


class LinkPlacement(SchedulerPlugin):
    """Decides for one scheduler.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.
    """

    name = "backhaul-placement"

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.mirror = _native.Placement(beta=BETA, beta_private=BETA_PRIVATE)
        #: Numbers of hosts
        self.hosts: dict[str, int] = {}
        self._states: dict[str, WorkerState] = {}
        #: Addresses of the workers of each host that has some
        self._by_host: dict[str, list[str]] = {}
        self.roots = RootPlan(scheduler, self.mirror)
        self._account = account_of(scheduler)
        #: Measured links; None if the scheduler keeps no account of them
        self.learned: LearnedLinks | None = None
        #: Messages to workers about these links
        self.news: LinkNews | None = None
        if self._account is not None:
            self.learned = LearnedLinks(self._account.links, self.mirror.set_hosts)
            self.news = LinkNews(scheduler, self._account.links)
        #: Latencies of requests for data
        self.fetch_times = FetchTimes()
        self._replaced: list[Replacement] = []
        self._upstream_decide: Callable[[TaskState], WorkerState | None] = (
            scheduler.decide_worker_non_rootish
        )
        self._upstream_objective: Callable[..., Any] = scheduler.worker_objective
        self._upstream_cost: Callable[..., float] = scheduler.get_comm_cost

    def attach(self) -> None:
        """Take our place on the scheduler."""
        for ws in self.scheduler.workers.values():
            self._add(ws)
        ours = {
            "decide_worker_non_rootish": self.decide_worker,
            "worker_objective": self.worker_objective,
            "get_comm_cost": self.get_comm_cost,
        }
        self._replaced += PLACEMENT.install(self.scheduler, ours).values()
        self.roots.attach()
        if self._account is not None:
            self._account.listeners.append(self.hear)
        _placements.append(self)
        self.scheduler.add_plugin(self)

    def detach(self) -> None:
        """Give it up again."""
        for replaced in self._replaced:
            replaced.take_back()
        self._replaced.clear()
        self.roots.detach()
        if self._account is not None and self.hear in self._account.listeners:
            self._account.listeners.remove(self.hear)
        _forget(self)
        if self.name in self.scheduler.plugins:
            self.scheduler.remove_plugin(self.name)

    async def close(self) -> None:
        """Hear no more of needs and results: the scheduler is closing."""
        _forget(self)

    def set_routes(self, capacities_bytes_per_s: Sequence[float], routes: _Routes) -> None:
        """Take the way of every pair of workers, instead of what hosts say.

        Parameters
        ----------
        capacities_bytes_per_s : sequence of float
            Of each edge.
        routes : iterable
            For each pair of workers, by number in the order in which they came: sender, receiver,
            edges, latency in seconds.

        Raises
        ------
        ValueError
            If a pair is missing, or a figure cannot be.
        """
        self.mirror.set_routes(
            list(capacities_bytes_per_s),
            [
                (sender, receiver, list(edges), latency_s)
                for sender, receiver, edges, latency_s in routes
            ],
        )

    def learn(self) -> None:
        """Look at what is known of links by now."""
        if self.learned is not None:
            self.learned.refresh(self.hosts, self._by_host)

    def hear(self, address: str, report: Report) -> None:
        """Record a worker's report of its links, and send it those of others."""
        self.learn()
        self.fetch_times.tell(address, report.get("request_s"))
        if (request_s := self.fetch_times.request_s) is not None:
            self.mirror.set_request_seconds(request_s)
        # One of another release would end at a message that it does not know.
        if self.news is not None and report.get("hears_of_links") is True:
            self.news.tell(address, self._by_host)

    # In the place of Dask's

    def decide_worker(self, ts: TaskState) -> WorkerState | None:
        """Choose a worker for a task; for `Scheduler.decide_worker_non_rootish`."""
        scheduler = self.scheduler
        if not ts.dependencies:
            return self.roots.decide_unqueued(ts) or self._upstream_decide(ts)
        if ts.actor or ts.worker_restrictions or ts.host_restrictions or ts.resource_restrictions:
            return self._upstream_decide(ts)
        ws: WorkerState | None = self.mirror.choose(
            ts,
            scheduler,
            scheduler.UNKNOWN_TASK_DURATION,
            # Of a worker that is leaving Dask tells its plugins last.
            scheduler.running,
            self.roots.nbytes.get(ts.prefix.name, 0.0),
        )
        return self._upstream_decide(ts) if ws is None else ws

    def worker_objective(self, ts: TaskState, ws: WorkerState) -> tuple[Any, ...]:
        """Say what it costs to run a task somewhere; for `Scheduler.worker_objective`."""
        costs = self.mirror.transfer(ts, ws)
        if costs is None:
            upstream: tuple[Any, ...] = self._upstream_objective(ts, ws)
            return upstream
        stack_s = self.scheduler._calc_occupancy(ws.task_prefix_count, 0) / ws.nthreads
        start_s = stack_s + costs[1]
        return (len(ws.actors), start_s, ws.nbytes) if ts.actor else (start_s, ws.nbytes)

    def get_comm_cost(self, ts: TaskState, ws: WorkerState) -> float:
        """Say how long the inputs of a task take to come; for `Scheduler.get_comm_cost`."""
        costs = self.mirror.transfer(ts, ws)
        return self._upstream_cost(ts, ws) if costs is None else costs[1]

    # Callbacks of a scheduler's plugin

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Take a worker in."""
        self._add(scheduler.workers[worker])

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
        """Forget a worker; upstream has forgotten its state already."""
        ws = self._states.pop(worker, None)
        if ws is not None:
            self.roots.remove_worker(ws)
            self.mirror.remove_worker(ws)
            self.fetch_times.forget(worker)
            own = self._by_host[ws.host]
            own.remove(worker)
            if not own:
                del self._by_host[ws.host]
            if self.news is not None:
                self.news.forget(worker)

    def update_graph(
        self,
        scheduler: Scheduler,
        *,
        tasks: list[Any],
        priority: dict[Any, tuple[int | float, ...]],
        **_: Any,
    ) -> None:
        """Plan the roots of a graph before any of them is given out."""
        self.learn()
        self.roots.plan(tasks, priority)

    def _add(self, ws: WorkerState) -> None:
        host = self.hosts.setdefault(ws.host, len(self.hosts))
        self._states[ws.address] = ws
        self._by_host.setdefault(ws.host, []).append(ws.address)
        self.roots.add_worker(ws, self.mirror.add_worker(ws, host, host))


def _forget(placement: LinkPlacement) -> None:
    if placement in _placements:
        _placements.remove(placement)


# For the whole process, in the place of functions of the scheduler's `WorkerState`


def counted_need(original: Callable[[WorkerState, TaskState], None]) -> Callable[..., None]:
    """Make an `_inc_needs_replica` that tells the mirrors of what is needed for the first time."""

    def _inc_needs_replica(self: WorkerState, ts: TaskState) -> None:
        if _placements and ts not in self.needs_what:
            for placement in _placements:
                placement.mirror.promise(ts, self)
        original(self, ts)

    return _inc_needs_replica


def dropped_need(original: Callable[[WorkerState, TaskState], None]) -> Callable[..., None]:
    """Make a `_dec_needs_replica` that tells the mirrors of what is needed no more."""

    def _dec_needs_replica(self: WorkerState, ts: TaskState) -> None:
        original(self, ts)
        if _placements and ts not in self.needs_what:
            for placement in _placements:
                placement.mirror.settle(ts, self)

    return _dec_needs_replica


def met_need(original: Callable[[WorkerState, TaskState], None]) -> Callable[..., None]:
    """Make an `add_replica` that tells the mirrors of what has come."""

    def add_replica(self: WorkerState, ts: TaskState) -> None:
        for placement in _placements:
            if ts in self.needs_what:
                placement.mirror.settle(ts, self)
            elif ts.who_has is None and self in placement.roots.numbers:
                placement.roots.observe(ts)
        original(self, ts)

    return add_replica
