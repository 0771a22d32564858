"""Placement by what links cost on a scheduler whose state Dask has, in Python.

The core of the product decides in Rust, by the same rules. This is what the simulator runs beside
Dask's own code (`backhaul_bench.placement.simulation_job`), and what the tests of the core compare
it with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from distributed import Scheduler

from backhaul.dask.compat.names import TaskState, WorkerState
from backhaul.dask.placement.link_placement import LinkPlacement
from backhaul_bench.placement.root_plan import RootPlan

__all__ = ["PolicyInPython"]

#: Policies that get needs and results
_policies: list[PolicyInPython] = []

#: Functions of Dask that are replaced while there are policies, by name
_upstream: dict[str, Callable[..., Any]] = {}

#: Routes of links: numbers of sender and receiver, edges, latency in seconds
_Routes = Iterable[tuple[int, int, Sequence[int], float]]


class PolicyInPython(LinkPlacement):
    """Places the tasks of one scheduler that Dask has.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.roots = RootPlan(scheduler, self.mirror)
        self.result_bytes = self.roots.nbytes
        self._upstream_decide: Callable[[TaskState], WorkerState | None] = (
            scheduler.decide_worker_non_rootish
        )
        self._upstream_objective: Callable[..., Any] = scheduler.worker_objective
        self._upstream_cost: Callable[..., float] = scheduler.get_comm_cost
        self._replaced: list[str] = []

    def attach(self) -> None:
        """Replace the decisions of the scheduler."""
        _watch_needs()
        ours = {
            "decide_worker_non_rootish": self.decide_worker,
            "worker_objective": self.worker_objective,
            "get_comm_cost": self.get_comm_cost,
            **self.roots.replacements,
        }
        vars(self.scheduler).update(ours)
        self._replaced = list(ours)
        _policies.append(self)
        super().attach()

    def detach(self) -> None:
        """Return the decisions to Dask."""
        for name in self._replaced:
            vars(self.scheduler).pop(name, None)
        self._replaced.clear()
        self.roots.hints.clear()
        self.roots.own.clear()
        if self in _policies:
            _policies.remove(self)
        if not _policies:
            _stop_watching()
        super().detach()

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

    def remove_worker(self, scheduler: Scheduler, worker: str, **arguments: Any) -> None:
        """Forget a worker."""
        ws = self._states.get(worker)
        if ws is not None:
            self.roots.remove_worker(ws)
        super().remove_worker(scheduler, worker, **arguments)

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

    def _add(self, ws: WorkerState) -> int:
        number = super()._add(ws)
        self.roots.add_worker(ws, number)
        return number


# Account of needs, for all schedulers of this process


def _watch_needs() -> None:
    """Replace the three functions by which Dask notes what a worker needs."""
    if _upstream:
        return
    states: Any = WorkerState
    for name, make in (
        ("_inc_needs_replica", _counted_need),
        ("_dec_needs_replica", _dropped_need),
        ("add_replica", _met_need),
    ):
        _upstream[name] = original = getattr(states, name)
        setattr(states, name, make(original))


def _stop_watching() -> None:
    states: Any = WorkerState
    while _upstream:
        setattr(states, *_upstream.popitem())


def _counted_need(original: Callable[[WorkerState, TaskState], None]) -> Callable[..., None]:
    """Make an `_inc_needs_replica` that tells the mirrors of what is needed for the first time."""

    def _inc_needs_replica(self: WorkerState, ts: TaskState) -> None:
        if _policies and ts not in self.needs_what:
            for policy in _policies:
                policy.mirror.promise(ts, self)
        original(self, ts)

    return _inc_needs_replica


def _dropped_need(original: Callable[[WorkerState, TaskState], None]) -> Callable[..., None]:
    """Make a `_dec_needs_replica` that tells the mirrors of what is needed no more."""

    def _dec_needs_replica(self: WorkerState, ts: TaskState) -> None:
        original(self, ts)
        if _policies and ts not in self.needs_what:
            for policy in _policies:
                policy.mirror.settle(ts, self)

    return _dec_needs_replica


def _met_need(original: Callable[[WorkerState, TaskState], None]) -> Callable[..., None]:
    """Make an `add_replica` that tells the mirrors of what has come."""

    def add_replica(self: WorkerState, ts: TaskState) -> None:
        for policy in _policies:
            if ts in self.needs_what:
                policy.mirror.settle(ts, self)
            elif ts.who_has is None and self in policy.roots.numbers:
                policy.roots.observe(ts)
        original(self, ts)

    return add_replica
