"""Which ready task of a worker starts next: slots for each kind of request, apart from each other.

Dask looks at the first ready task only, and counts each running one as a thread. Here tasks that
ask for the same wait together, and any of these queues whose resources are free goes on, whatever
waits before it in another one (dask/distributed#6136); what asks for no CPU takes no thread away.
Each task that asks for something other than one thread holds a lease while it runs. It comes back
when the task ends, however it ends, or secedes.

Plain tasks are started by Dask's own code as long as nothing else waits or runs.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar

from distributed import Worker

import dask
from backhaul._native import ResourcePools, ResourceRequest
from backhaul.dask.beside import BesideThreadPoolExecutor
from backhaul.dask.config import resource_limits
from backhaul.dask.declared import Declared, checked, groups_of, totals
from backhaul.dask.holding import holding_execute
from backhaul.dask.leases import Lease
from backhaul.dask.patches import (
    BESIDE_EXECUTOR,
    CONSTRAINED_TASKS,
    EXECUTE,
    READY_TASKS,
    SET_RESOURCES,
    STARTUP_INFORMATION,
    WORKER_STATE_CLASS,
)
from backhaul.dask.private import HeapSet, UnpauseEvent, WorkerStateMachine, time
from backhaul.dask.requests import ANNOTATION, CPU, Needs
from backhaul.errors import ConfigError

__all__ = ["WorkerSlots", "declared_here", "install", "lease_of", "slots_of"]

logger = logging.getLogger(__name__)

_by_priority = attrgetter("priority")

#: Shares of threads are added up as floats
_ROUNDING = 1e-9


def install(worker: Worker) -> None:
    """Give a worker slots by request; again costs nothing.

    Reads ``backhaul.resources``, and adds to Dask's own resources of the worker what is declared
    there.

    Parameters
    ----------
    worker : distributed.Worker
        Before it has joined its scheduler.

    Raises
    ------
    ConfigError
        If the configuration makes no sense.
    """
    limits = resource_limits()
    state = worker.state
    # A class of somebody else's keeps what it does otherwise.
    if limits is None or type(state) is not WorkerStateMachine:
        return
    declared = declared_here(state.total_resources)
    places = (
        (WORKER_STATE_CLASS, state),
        (CONSTRAINED_TASKS, state),
        (READY_TASKS, state),
        (BESIDE_EXECUTOR, worker.executors),
        (STARTUP_INFORMATION, worker.startup_information),
        (SET_RESOURCES, worker),
    )
    # The first that does not fit says so. Tasks that wait there already would have to move.
    if not all(patch.fits(place) for patch, place in places) or state.ready or state.constrained:
        return
    for name, total in totals(declared).items():
        state.total_resources[name] = total
        state.available_resources.setdefault(name, total)
    executor = BesideThreadPoolExecutor()
    slots = WorkerSlots(declared, beside_max=limits.beside_max, executor=executor)
    CONSTRAINED_TASKS.install(state, _Constrained(slots))
    READY_TASKS.install(state, _Ready(slots))
    WORKER_STATE_CLASS.install(state, SlottedWorkerState)
    BESIDE_EXECUTOR.install(worker.executors, executor)
    STARTUP_INFORMATION.install(worker.startup_information, _declared_by)
    SET_RESOURCES.install(worker, _setting(worker, worker.set_resources))
    if not _executes_directly():
        EXECUTE.install(worker, holding_execute(worker, worker.execute, lease_of))


def declared_here(given: Mapping[str, float]) -> Declared:
    """Say what a worker has: what it was given, and what ``backhaul.resources`` says besides.

    The configuration wins where both have a name and count alike, as it may name ids; where they
    count otherwise, what the worker was given does.
    """
    configured = checked(dask.config.get("backhaul.resources", None))
    counted = totals(configured)
    own = {name: total for name, total in given.items() if counted.get(name) != total}
    # Threads of workers are what Dask says; local schedulers are told otherwise.
    if CPU not in given:
        configured.pop(CPU, None)
    return checked({**configured, **own})


def slots_of(state: WorkerStateMachine) -> WorkerSlots | None:
    """Find the slots of a worker's state; None if it has none."""
    return getattr(state.constrained, "slots", None)


def lease_of(state: WorkerStateMachine, key: Any) -> Lease | None:
    """Find the lease of a task that executes; None if it needs none."""
    slots: WorkerSlots | None = getattr(state.constrained, "slots", None)
    return slots.held.get(key) if slots is not None and slots.held else None


def _executes_directly() -> bool:
    """Tell whether tasks of this process are started by `backhaul.dask.execution`."""
    # That imports this.
    from backhaul.dask.activation import installed

    return any(patch.replace == "execution.direct_start" for patch in installed())


def _setting(worker: Worker, original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Worker.set_resources` after which tasks start that waited for what there is now."""

    async def set_resources(**resources: float) -> None:
        await original(**resources)
        if worker.state.running:
            worker.handle_stimulus(UnpauseEvent(stimulus_id=f"set-resources-{time()}"))

    return set_resources


def _declared_by(worker: Worker) -> Declared:
    slots = slots_of(worker.state)
    return {} if slots is None else slots.declared


class WorkerSlots:
    """What waits and what runs on one worker, besides plain tasks.

    Parameters
    ----------
    declared : mapping
        What the worker has, see `backhaul.dask.declared`.
    beside_max : int
        Most tasks at once that take less than a thread.
    executor : BesideThreadPoolExecutor
        Where these run.
    """

    def __init__(
        self,
        declared: Declared,
        *,
        beside_max: int,
        executor: BesideThreadPoolExecutor | None = None,
    ) -> None:
        self.declared = declared
        self.pools = ResourcePools(declared)
        self._totals = totals(declared)
        self.groups = groups_of(declared)
        self.beside_max = beside_max
        #: Tasks that are ready, by what they ask for
        self.waiting: dict[Needs, HeapSet[Any]] = {}
        #: Leases of tasks that execute, by key
        self.held: dict[Any, Lease] = {}
        #: Units that results in memory were made on, by key
        self.made_on: dict[Any, dict[str, tuple[int, ...]]] = {}
        #: Tasks that execute and take less than a thread
        self.beside = 0
        #: Threads that tasks with leases take; a plain one takes one
        self._threads = 0.0
        self._executor = executor
        self._needs: dict[Any, Needs] = {}
        self._requests: dict[Needs, ResourceRequest] = {}

    @property
    def is_idle(self) -> bool:
        """Whether there are only plain tasks."""
        return not self.held and not self.waiting

    def needs_of(self, ts: Any) -> Needs | None:
        """Say what a task of the worker asks for; None for one thread and nothing else."""
        restrictions = ts.resource_restrictions
        carried = ts.annotations.get(ANNOTATION) if ts.annotations else None
        if not restrictions and carried is None:
            return None
        cpu, affinity = (carried["CPU"], carried["affinity"]) if carried else (1.0, ())
        found = (tuple((restrictions or {}).items()), cpu, tuple(affinity))
        needs = self._needs.get(found)
        if needs is None:
            # A worker that declares CPU as Dask's resource counts it as that.
            amounts = {name: units for name, units in found[0] if name != CPU}
            needs = self._needs[found] = Needs({**amounts, CPU: cpu}, affinity)
        return needs

    def add(self, ts: Any, needs: Needs) -> None:
        """Note a task that has become ready."""
        heap = self.waiting.get(needs)
        if heap is None:
            heap = self.waiting[needs] = HeapSet(key=_by_priority)
        heap.add(ts)

    def discard(self, ts: Any) -> None:
        """Forget a task that is not ready any more."""
        needs = self.needs_of(ts)
        if needs is not None and (heap := self.waiting.get(needs)) is not None:
            heap.discard(ts)
            if not heap:
                del self.waiting[needs]

    def start(self, state: SlottedWorkerState) -> dict[Any, str]:
        """Take leases for as many ready tasks as there are slots for, in order of priority.

        Returns
        -------
        dict
            What is recommended to the state machine.
        """
        self._follow(state.total_resources)
        recs: dict[Any, str] = {}
        ready = state.ready
        free = state.nthreads - (len(state.executing) - len(self.held)) - self._threads
        heads = [
            (heap.peek().priority, number, needs)
            for number, (needs, heap) in enumerate(self.waiting.items())
        ]
        heapq.heapify(heads)
        while True:
            plain = ready.peek_plain() if free >= 1 - _ROUNDING else None
            if plain is not None and (not heads or plain.priority <= heads[0][0]):
                ready.discard(plain)
                free -= 1
                state._acquire_resources(plain)
                state.executing.add(plain)
                recs[plain] = "executing"
                continue
            if not heads:
                break
            _, number, needs = heapq.heappop(heads)
            heap = self.waiting[needs]
            ts = heap.peek()
            if needs.cpu > free + _ROUNDING:
                if 1 < needs.cpu <= state.nthreads and self.could_hold(needs):
                    # It would wait for ever if others took each thread as it gets free.
                    free = 0
                continue
            if not self._lend(ts, needs):
                continue
            free -= needs.cpu
            heap.discard(ts)
            state.ready.discard(ts)
            state.constrained.discard(ts)
            state._acquire_resources(ts)
            state.executing.add(ts)
            recs[ts] = "executing"
            if heap:
                heapq.heappush(heads, (heap.peek().priority, number, needs))
            else:
                self.waiting.pop(needs, None)
        return recs

    def could_hold(self, needs: Needs) -> bool:
        """Tell whether the resources of a request are free, without taking them."""
        lease = self._take(needs, {})
        if lease is None:
            return False
        self.pools.give_back(lease)
        return True

    def give_back(self, ts: Any) -> None:
        """Have back what a task holds; does nothing if it holds nothing."""
        lease = self.held.pop(ts.key, None)
        if lease is None:
            return
        lease.is_over = True
        self.pools.give_back(lease.number)
        self._threads -= lease.needs.cpu
        if lease.needs.cpu < 1:
            self.beside -= 1
            if self._executor is not None:
                self._executor.shrink(self.beside)
        if units := lease.units:
            self.made_on[ts.key] = units

    def _follow(self, total: Mapping[str, float]) -> None:
        """Have what the worker has by now; what is held stays with its holder."""
        if total == self._totals:
            return
        changed = {name: units for name, units in total.items() if self._totals.get(name) != units}
        try:
            declared = checked({**self.declared, **changed})
        except ConfigError as error:
            logger.warning("Backhaul lends what there was before: %s", error)
        else:
            self.pools.declare(declared)
            self.declared = declared
            self.groups = groups_of(declared)
            self._requests.clear()
        self._totals = dict(total)

    def _lend(self, ts: Any, needs: Needs) -> bool:
        if needs.cpu < 1 and self.beside >= self.beside_max:
            return False
        inputs: dict[str, list[int]] = {}
        if needs.affinity and self.made_on:
            for dependency in ts.dependencies:
                for name, units in self.made_on.get(dependency.key, {}).items():
                    inputs.setdefault(name, []).extend(units)
        number = self._take(needs, inputs)
        if number is None:
            return False
        self.held[ts.key] = Lease(needs, number, self.pools.held(number), self.groups)
        self._threads += needs.cpu
        if needs.cpu < 1:
            self.beside += 1
            if self._executor is not None:
                self._executor.grow(self.beside)
        return True

    def _take(self, needs: Needs, inputs: Mapping[str, list[int]]) -> int | None:
        request = self._requests.get(needs)
        if request is None:
            request = self._requests[needs] = self._fitted(needs)
        try:
            return self.pools.take(request, inputs)
        except ValueError:
            # There is less than when it was sent here. It waits, as upstream has it, for more.
            return None

    def _fitted(self, needs: Needs) -> ResourceRequest:
        """Round up what is more than one of something that Dask counts, and we do by ids."""
        amounts = dict(needs.request.needs)
        for name, units in amounts.items():
            if units > 1 and name not in self.groups and self.pools.units(name) is not None:
                amounts[name] = math.ceil(units)
        affinity = [name for name in needs.affinity if self.pools.units(name) is not None]
        return ResourceRequest(amounts, affinity)


class _Constrained(HeapSet[Any]):
    """Tasks that wait for resources: upstream's set of them, which ours look into."""

    __slots__ = ("slots",)

    def __init__(self, slots: WorkerSlots) -> None:
        super().__init__(key=_by_priority)
        self.slots = slots

    def add(self, value: Any) -> None:
        """Note a task, with the others that ask for the same."""
        super().add(value)
        needs = self.slots.needs_of(value)
        assert needs is not None
        self.slots.add(value, needs)

    def discard(self, value: Any) -> None:
        """Forget a task."""
        if value in self._data:
            super().discard(value)
            self.slots.discard(value)


class _Ready(HeapSet[Any]):
    """Tasks that wait for a thread: upstream's set of them, with plain tasks apart."""

    __slots__ = ("_plain", "slots")

    def __init__(self, slots: WorkerSlots) -> None:
        super().__init__(key=_by_priority)
        self.slots = slots
        #: Whether only plain tasks were added since it was empty
        self._plain: HeapSet[Any] | None = None

    def add(self, value: Any) -> None:
        """Note a task; one that asks for something, with those that ask for the same."""
        super().add(value)
        needs = self.slots.needs_of(value)
        if needs is not None:
            if self._plain is None:
                self._split()
            self._plain.discard(value)  # type: ignore[union-attr]
            self.slots.add(value, needs)
        elif self._plain is not None:
            self._plain.add(value)

    def discard(self, value: Any) -> None:
        """Forget a task."""
        if value in self._data:
            super().discard(value)
            if self._plain is not None:
                if value in self._plain:
                    self._plain.discard(value)
                else:
                    self.slots.discard(value)
                if not self._data:
                    self._plain = None

    def pop(self) -> Any:
        """Give the first task, and forget it."""
        if self._plain is None:
            return super().pop()
        value = self.peek()
        self.discard(value)
        return value

    def peek_plain(self) -> Any | None:
        """Give the first task that asks for nothing but a thread; None if there is none."""
        tasks = self if self._plain is None else self._plain
        return tasks.peek() if tasks else None

    def _split(self) -> None:
        """Keep plain tasks apart from now on, until there are none of any kind."""
        self._plain = HeapSet(key=_by_priority)
        for value in self.sorted():
            if self.slots.needs_of(value) is None:
                self._plain.add(value)


class SlottedWorkerState(WorkerStateMachine):
    """A worker's state machine that starts tasks by slots."""

    __slots__ = ()

    constrained: _Constrained
    ready: _Ready

    def _ensure_computing(self) -> Any:
        slots = self.constrained.slots
        if slots.is_idle:
            return super()._ensure_computing()
        if not self.running:
            return {}, []
        return slots.start(self), []

    def _release_resources(self, ts: Any) -> None:
        super()._release_resources(ts)
        slots = self.constrained.slots
        if slots.held:
            slots.give_back(ts)

    def _purge_state(self, ts: Any) -> None:
        made_on = self.constrained.slots.made_on
        if made_on:
            made_on.pop(ts.key, None)
        super()._purge_state(ts)

    def _give_back_early(self, ts: Any) -> None:
        """Have back what a task holds that goes on without a slot."""
        if ts.key in self.constrained.slots.held:
            self._release_resources(ts)
            # Given back once: upstream does it again when the task ends.
            ts.resource_restrictions = {}

    def _long_running(self, ts: Any, *args: Any, stimulus_id: str) -> Any:
        self._give_back_early(ts)
        return WorkerStateMachine._transition_executing_long_running(
            self, ts, *args, stimulus_id=stimulus_id
        )

    def _still_long_running(self, ts: Any, *args: Any, stimulus_id: str) -> Any:
        self._give_back_early(ts)
        return WorkerStateMachine._transition_cancelled_or_resumed_long_running(
            self, ts, *args, stimulus_id=stimulus_id
        )

    _TRANSITIONS_TABLE: ClassVar[Mapping[Any, Callable[..., Any]]] = {
        **WorkerStateMachine._TRANSITIONS_TABLE,
        ("executing", "long-running"): _long_running,
        ("cancelled", "long-running"): _still_long_running,
        ("resumed", "long-running"): _still_long_running,
    }
