"""A worker of Dask's whose tasks wait in slots: what takes the place of its state machine.

`backhaul.dask.resource_pools.worker_slots` decides; this module reports to it all that becomes
ready and all that ends, by sub-classes of the sets in which Dask's state machine keeps tasks, and
one of that itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from distributed import Worker

import dask
from backhaul.dask.compat.installed import is_installed
from backhaul.dask.compat.names import (
    HeapSet,
    SecedeEvent,
    StateMachineEvent,
    ThreadPoolExecutor,
    UnpauseEvent,
    WorkerStateMachine,
)
from backhaul.dask.compat.operations import RESOURCES
from backhaul.dask.compat.resource_patches import OVERFLOW_POOL, WORKER_SLOTS, WORKER_STATE
from backhaul.dask.config.settings import beside_tasks_max
from backhaul.dask.resource_pools.declarations import Declared, checked, totals
from backhaul.dask.resource_pools.lease_context import holding_execute
from backhaul.dask.resource_pools.leases import Lease
from backhaul.dask.resource_pools.machine_pools import coupled_here, resolved
from backhaul.dask.resource_pools.overflow_pool import OverflowThreadPoolExecutor
from backhaul.dask.resource_pools.rejoin import RejoinLock
from backhaul.dask.resource_pools.requests import CPU
from backhaul.dask.resource_pools.start_tasks import start_more
from backhaul.dask.resource_pools.worker_slots import WorkerSlots, by_priority

__all__ = [
    "SlottedWorkerState",
    "declared_here",
    "give_slots",
    "install",
    "lease_of",
    "slots_of",
]


def install(worker: Worker) -> None:
    """Give a worker that has not joined its scheduler slots by request; again costs nothing.

    Reads ``backhaul.resources``, and adds to Dask's own resources of the worker what is declared
    there.

    Raises
    ------
    ConfigError
        If the configuration makes no sense.
    """
    beside_max = beside_tasks_max()
    state = worker.state
    # A class of another package keeps its own behaviour.
    if beside_max is None or type(state) is not WorkerStateMachine:
        return
    declared = declared_here(state.total_resources)
    executor = OverflowThreadPoolExecutor()
    default: Any = worker.executors["default"]
    ours: dict[str, Any] = {
        f"executors[{OVERFLOW_POOL}]": executor,
        f"startup_information[{RESOURCES}]": _declared_by,
        "set_resources": _setting(worker, worker.set_resources),
    }
    if isinstance(default, ThreadPoolExecutor):
        ours["executors[default]._rejoin_lock"] = RejoinLock(default._rejoin_lock)
    if not _executes_directly():
        ours["execute"] = holding_execute(worker, worker.execute, lease_of)
    # Tasks that wait there already would have to move.
    if state.ready or state.constrained:
        return
    if not (WORKER_STATE.fits_on(state) and WORKER_SLOTS.fits_on(worker, *ours)):
        return
    for name, total in totals(declared).items():
        state.total_resources[name] = total
        state.available_resources.setdefault(name, total)
    slots = WorkerSlots(
        declared,
        couple=coupled_here,
        beside_max=beside_max,
        executor=executor,
        # Not immediately: the state machine is in the middle of something.
        wake=partial(worker.loop.add_callback, start_more, worker),
    )
    give_slots(state, slots)
    WORKER_SLOTS.install(worker, ours)


def give_slots(state: WorkerStateMachine, slots: WorkerSlots) -> None:
    """Make a state machine, that has no tasks yet, start them by slots."""
    ours = {
        "constrained": Constrained(slots),
        "ready": Ready(slots),
        "__class__": SlottedWorkerState,
    }
    WORKER_STATE.install(state, ours)


def declared_here(given: Mapping[str, float]) -> Declared:
    """Say what a worker has: what it was given, and what ``backhaul.resources`` says besides.

    The configuration wins where both have a name and count alike, as it may name ids; where they
    count otherwise, what the worker was given does.
    """
    configured = resolved(checked(dask.config.get("backhaul.resources", None)))
    counted = totals(configured)
    own = {name: total for name, total in given.items() if counted.get(name) != total}
    # Dask counts threads of workers; local schedulers may declare another number.
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
    """Tell whether tasks of this process are started by `backhaul.dask.worker.task_start`."""
    return is_installed("worker.task_start.direct_start")


def _setting(worker: Worker, original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Worker.set_resources` after which tasks start that waited for what there is now."""

    async def set_resources(**resources: float) -> None:
        await original(**resources)
        start_more(worker)

    return set_resources


def _declared_by(worker: Worker) -> Declared:
    slots = slots_of(worker.state)
    return {} if slots is None else slots.declared


class Constrained(HeapSet[Any]):
    """Tasks that wait for resources: upstream's set of them, which ours look into."""

    __slots__ = ("slots",)

    def __init__(self, slots: WorkerSlots) -> None:
        super().__init__(key=by_priority)
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


class Ready(HeapSet[Any]):
    """Tasks that wait for a thread: upstream's set of them, with plain tasks apart."""

    __slots__ = ("_plain", "slots")

    def __init__(self, slots: WorkerSlots) -> None:
        super().__init__(key=by_priority)
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
        self._plain = HeapSet(key=by_priority)
        for value in self.sorted():
            if self.slots.needs_of(value) is None:
                self._plain.add(value)


class SlottedWorkerState(WorkerStateMachine):
    """A worker's state machine that starts tasks by slots."""

    __slots__ = ()

    constrained: Constrained
    ready: Ready

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

    def _handle_event(self, ev: StateMachineEvent) -> Any:
        if type(ev) is SecedeEvent:
            ts = self.tasks.get(ev.key)
            slots = self.constrained.slots
            # Again, after it has rejoined: to upstream it has been long-running all the time.
            if ts is not None and ts.state == "long-running" and ts.key in slots.held:
                slots.give_back(ts)
                return self._ensure_computing()
        elif type(ev) is UnpauseEvent:
            self.constrained.slots.hear_who_asks()
        return super()._handle_event(ev)

    def _give_back_early(self, ts: Any) -> None:
        """Take back the units of a task that goes on without a slot."""
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
