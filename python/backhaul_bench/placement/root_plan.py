"""Plan of the workers of the root tasks of a graph, in Python: the core has the same in Rust.

Dask gives each root to any worker with a free thread, so results that are combined later are made
anywhere. `RootPlan` says for each root which worker is to run it, by a partition of the graph
(``crates/placement/src/roots``), as a hint: a worker with a free thread takes the roots that were
planned for it first, and when there are none left, those of the worker that has most. No root
waits for a worker that is busy while another one is idle.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from distributed import Scheduler

from backhaul import _native
from backhaul.dask.compat.names import TaskPrefix, TaskState, WorkerState, task_slots_available
from backhaul.dask.placement.link_placement import memory_target

__all__ = ["RootPlan"]

#: Kinds of tasks whose size is remembered; when there are more, all are forgotten
PREFIXES_MAX = 10_000
#: How much the size of one result counts
_WEIGHT = 1 / 8

#: States of a root that has not been assigned
_BEFORE = frozenset({"released", "waiting", "queued"})


class RootPlan:
    """The roots of one scheduler that wait for a thread, by the worker that is to run them.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.
    mirror : backhaul._native.Placement
        The knowledge of workers and links.
    """

    def __init__(self, scheduler: Scheduler, mirror: _native.Placement) -> None:
        self.scheduler = scheduler
        self.mirror = mirror
        #: Numbers of the workers in the mirror
        self.numbers: dict[WorkerState, int] = {}
        self.states: dict[int, WorkerState] = {}
        #: The worker that is to run each unassigned root, by key
        self.hints: OrderedDict[Any, WorkerState] = OrderedDict()
        #: The same by worker, in order; some of it may have been given out meanwhile
        self.own: dict[WorkerState, deque[TaskState]] = {}
        #: Expected size of a result, in bytes, by name of the prefix
        self.nbytes: dict[str, float] = {}
        #: The task that upstream looks at, and the worker that the next one goes to
        self._looked_at: TaskState | None = None
        self._target: WorkerState | None = None
        self._upstream_rootish: Callable[[TaskState], bool] = scheduler.is_rootish
        self._upstream_slots: Callable[..., None] = scheduler.stimulus_queue_slots_maybe_opened
        self._upstream_decide: Callable[[], WorkerState | None] = (
            scheduler.decide_worker_rootish_queuing_enabled
        )

    @property
    def replacements(self) -> dict[str, Callable[..., Any]]:
        """Methods of the scheduler that the plan replaces, by name."""
        return {
            "is_rootish": self.is_rootish,
            "stimulus_queue_slots_maybe_opened": self.slots_maybe_opened,
            "decide_worker_rootish_queuing_enabled": self.decide_worker,
        }

    # Events of workers

    def add_worker(self, ws: WorkerState, number: int) -> None:
        """Take a worker in; it has no roots of its own in the plans that there are."""
        self.numbers[ws] = number
        self.states[number] = ws

    def remove_worker(self, ws: WorkerState) -> None:
        """Forget a worker: its roots go to any free worker."""
        number = self.numbers.pop(ws, None)
        if number is not None:
            del self.states[number]
        self.own.pop(ws, None)
        for key in [key for key, hint in self.hints.items() if hint is ws]:
            del self.hints[key]

    def observe(self, ts: TaskState) -> None:
        """Learn from a result that has been made how large those of its kind are."""
        name = ts.prefix.name
        before = self.nbytes.get(name)
        if before is None:
            if len(self.nbytes) >= PREFIXES_MAX:
                self.nbytes.clear()
            self.nbytes[name] = float(ts.nbytes)
        else:
            self.nbytes[name] = before + (ts.nbytes - before) * _WEIGHT

    def plan(self, tasks: Iterable[Any], priority: Mapping[Any, Any]) -> int:
        """Plan the roots among some tasks.

        Parameters
        ----------
        tasks : iterable of key
            Tasks of a graph that has come, and what they need.
        priority : mapping of key to priority
            The order in which they are to run.

        Returns
        -------
        int
            Number of roots that were planned.
        """
        scheduler = self.scheduler
        targets = [
            (self.numbers[ws], float(ws.nthreads), _memory_left_bytes(ws))
            for ws in scheduler.running
            if ws in self.numbers
        ]
        self._forget_lost(tasks)
        if len(targets) < 2 or math.isinf(scheduler.WORKER_SATURATION):
            return 0
        # Data that a client put on workers has none.
        ordered = sorted(tasks, key=lambda key: priority[key] or ())
        states = [scheduler.tasks[key] for key in ordered]
        indices = {ts: index for index, ts in enumerate(states)}
        rootish: dict[Any, bool] = {}
        places: list[int] = []
        needs: list[int] = []
        prefixes: dict[TaskPrefix, int] = {}
        kinds: list[int] = []
        roots = 0
        for ts in states:
            if ts.who_has:
                holder = next(iter(ts.who_has))
                places.append(self.numbers.get(holder, -2))
            elif self._is_root(ts, rootish):
                places.append(-1)
                roots += 1
            else:
                places.append(-2)
            own = [indices[dts] for dts in ts.dependencies if dts in indices]
            needs.append(len(own))
            needs += own
            kinds.append(prefixes.setdefault(ts.prefix, len(prefixes)))
        if not roots:
            return 0
        targets.sort()
        table = [
            (max(0.0, prefix.duration_average), self.nbytes.get(prefix.name, 0.0))
            for prefix in prefixes
        ]
        planned = _native.plan_roots(self.mirror, places, needs, kinds, table, targets)
        if planned is None:
            return 0
        for ts, number in zip(states, planned, strict=True):
            if number >= 0:
                ws = self.states[number]
                self.hints[ts.key] = ws
                self.own.setdefault(ws, deque()).append(ts)
        return roots

    # In the place of Dask's

    def is_rootish(self, ts: TaskState) -> bool:
        """Note which task upstream looks at, before it asks for a worker without naming it."""
        self._looked_at = ts
        return self._upstream_rootish(ts)

    def decide_worker(self) -> WorkerState | None:
        """Choose a worker for a root; for `Scheduler.decide_worker_rootish_queuing_enabled`."""
        ts, self._looked_at = self._looked_at, None
        target, self._target = self._target, None
        if target is not None:
            return target
        if ts is None or ts.key not in self.hints:
            return self._upstream_decide()
        hint = self._free_worker(ts)
        if hint is not None:
            self.give(ts)
        return hint

    def decide_unqueued(self, ts: TaskState) -> WorkerState | None:
        """Choose a worker for a root that is not queued; None if it is not planned."""
        hint = self.hints.get(ts.key)
        if hint is None or hint not in self.scheduler.running:
            return None
        chosen = self._free_worker(ts)
        # A worker with more slots than threads is not idle: the task would start no sooner there.
        if chosen is None or len(chosen.processing) >= chosen.nthreads:
            chosen = hint
        self.give(ts)
        return chosen

    def slots_maybe_opened(self, *, stimulus_id: str) -> None:
        """Fill free threads; for `Scheduler.stimulus_queue_slots_maybe_opened`."""
        scheduler = self.scheduler
        if not self._has_hints():
            self._upstream_slots(stimulus_id=stimulus_id)
            return
        for ws in list(scheduler.idle_task_count):
            for _ in range(task_slots_available(ws, scheduler.WORKER_SATURATION)):
                ts = self._front_for(ws)
                if ts is None:
                    break
                self.give(ts)
                self._target = ws
                try:
                    scheduler.transitions({ts.key: "processing"}, stimulus_id)
                finally:
                    self._target = None

    def _front_for(self, ws: WorkerState) -> TaskState | None:
        """Return the queued task that a worker runs next; None if there is none.

        The caller that sends the task calls `give`.
        """
        queued = self.scheduler.queued
        if not queued:
            return None
        front: TaskState = queued.peek()
        own = self._end(ws, 0)
        if front.key not in self.hints and (own is None or _first(front, own)):
            return front
        # The last roots of the worker with most to do are missed least, and their partners come
        # last, too.
        while own is None and self.own:
            richest = max(self.own, key=lambda other: len(self.own[other]))
            own = self._end(richest, -1)
        return front if own is None else own

    def give(self, ts: TaskState) -> None:
        """Note that a task is sent to a worker."""
        self.hints.pop(ts.key, None)

    def _free_worker(self, ts: TaskState) -> WorkerState | None:
        """Get the worker that a root was planned for, or another one, if it has a free thread."""
        idle = self.scheduler.idle_task_count
        hint = self.hints[ts.key]
        if hint in idle:
            return hint
        # No task waits for a busy worker while another worker has no roots of its own.
        return next((ws for ws in idle if not self._has_own(ws)), None)

    def _forget_lost(self, touched: Iterable[Any]) -> None:
        """Drop hints of tasks that were cancelled before they were requested.

        Tasks of a graph that have not begun are planned anew, or have come since.
        """
        if self.hints:
            tasks = self.scheduler.tasks
            for key in touched:
                if tasks[key].state == "released":
                    self.hints.pop(key, None)
        if not self._has_hints():
            self.own.clear()

    def _has_hints(self) -> bool:
        """Tell whether anything is planned that was not given out, and drop what has gone before.

        Each that has gone is looked at once.
        """
        tasks = self.scheduler.tasks
        while self.hints:
            key = next(iter(self.hints))
            if key in tasks:
                return True
            del self.hints[key]
        return False

    def _has_own(self, ws: WorkerState) -> bool:
        """Tell whether roots were planned for a worker that may still come into the queue."""
        own = self.own.get(ws)
        while own:
            ts = own[0]
            if self.hints.get(ts.key) is ws and ts.state in _BEFORE:
                return True
            own.popleft()
        self.own.pop(ws, None)
        return False

    def _end(self, ws: WorkerState, end: int) -> TaskState | None:
        """Look at a worker's first (0) or last (-1) root in the queue; drop those that are not."""
        own = self.own.get(ws)
        if own is None:
            return None
        while own:
            ts = own[end]
            if ts.state == "queued" and self.hints.get(ts.key) is ws:
                return ts
            own.pop() if end else own.popleft()
            if self.hints.get(ts.key) is ws and ts.state != "queued":
                del self.hints[ts.key]
        del self.own[ws]
        return None

    def _is_root(self, ts: TaskState, rootish: dict[Any, bool]) -> bool:
        """Tell whether a task waits for nothing, and its worker is ours to choose."""
        if (
            ts.dependencies
            or ts.state != "released"
            or ts.run_spec is None
            or ts.actor
            or ts.worker_restrictions
            or ts.host_restrictions
            or ts.resource_restrictions
        ):
            return False
        group = ts.group
        if group not in rootish:
            rootish[group] = self._upstream_rootish(ts)
        # Upstream has a way of its own for roots that may not be queued.
        return not rootish[group] or bool(ts._queueable)


def _memory_left_bytes(ws: WorkerState) -> float:
    """Say how much a worker may still hold before it would spill, in bytes."""
    if not ws.memory_limit:
        return math.inf
    return max(0.0, float(ws.memory_limit * memory_target() - ws.nbytes))


def _first(one: TaskState, other: TaskState) -> bool:
    """Tell whether a task is to run before another one."""
    return (one.priority or ()) < (other.priority or ())
