"""Slots of a worker under random work, on Dask's real state machine: checked after every event."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from distributed.worker_state_machine import (
    ComputeTaskEvent,
    Execute,
    ExecuteFailureEvent,
    ExecuteSuccessEvent,
    FreeKeysEvent,
    PauseEvent,
    RescheduleEvent,
    SecedeEvent,
    StealRequestEvent,
    UnpauseEvent,
    WorkerState,
)

from backhaul._native import ResourcePools
from backhaul.dask.resource_pools import worker_slots
from backhaul.dask.resource_pools.declarations import checked
from backhaul.dask.resource_pools.leases import Lease
from backhaul.dask.resource_pools.requests import ANNOTATION
from backhaul.dask.resource_pools.worker_slots import WorkerSlots
from backhaul.dask.resource_pools.worker_state import give_slots, slots_of
from tests.dask.slots_checks import PASSES_MAX, check_slots

ISLANDS = {"GPU": [[0, 1], [2, 3]], "MEMORY": 8.0}
REQUESTS = [
    ({}, 1.0),
    ({"GPU": 1.0}, 0.0),
    ({"GPU": 2.0}, 0.0),
    ({"GPU": 0.5}, 0.5),
    ({"GPU": 1.0, "MEMORY": 3.0}, 1.0),
    ({"MEMORY": 5.0}, 0.0),
    ({}, 2.0),
    ({}, 0.0),
]


#: Kinds of events, and how often they occur
KINDS = {
    "compute": 10, "end": 8, "error": 1, "reschedule": 1, "secede": 2, "rejoin": 2, "free": 2,
    "steal": 2, "pause": 1, "again": 1,
}  # fmt: skip


class SlottedState:
    """A worker without a network, that looks again when its slots ask for it."""

    def __init__(self, declared: dict[str, Any], *, nthreads: int, beside_max: int = 8) -> None:
        found = checked(declared)
        self.slots = WorkerSlots(found, beside_max=beside_max, wake=self._wake)
        totals = {name: total for name, (total, _) in self.slots.pools.amounts().items()}
        self.state: Any = WorkerState(nthreads=nthreads, resources=totals, validate=True)
        give_slots(self.state, self.slots)
        assert slots_of(self.state) is self.slots
        self.slots._totals = totals
        self._woken = False
        self._number = 0
        self._run_ids: dict[str, int] = {}
        #: Leases of tasks that have seceded
        self.left: dict[str, Lease] = {}
        #: Keys in the order in which they began
        self.begun: list[str] = []

    def _wake(self) -> None:
        self._woken = True

    def handle(self, kind: Any, *args: Any, **kwargs: Any) -> None:
        """Handle an event, then what follows from it, and check."""
        self._number += 1
        make = getattr(kind, "dummy", kind)
        event = make(*args, **kwargs, stimulus_id=f"event-{self._number}")
        for instruction in self.state.handle_stimulus(event):
            if isinstance(instruction, Execute):
                self.begun.append(str(instruction.key))
        if self._woken:
            self._woken = False
            if self.state.running:
                self.handle(UnpauseEvent)
        check_slots(self.state)

    def compute(self, key: str, amounts: dict[str, float], cpu: float, priority: int) -> None:
        annotations = {ANNOTATION: {"CPU": cpu, "affinity": []}} if cpu != 1 else {}
        self._run_ids[key] = self._number
        self.handle(
            ComputeTaskEvent,
            key,
            run_id=self._number,
            priority=(priority,),
            resource_restrictions=dict(amounts),
            annotations=annotations,
        )

    def running(self) -> list[str]:
        """List the tasks that may end, whatever became of them meanwhile."""
        tasks = (*self.state.executing, *self.state.long_running)
        waiting = self.slots._asking.keys() | self.slots._returning.keys()
        return sorted(ts.key for ts in tasks if ts.key not in waiting)

    def secede(self, key: str) -> None:
        if key in self.slots.held:
            self.left[key] = self.slots.held[key]
        self.handle(SecedeEvent, key=key, compute_duration=1.0)

    def rejoin(self, key: str) -> None:
        """As the thread of a task does that has seceded."""
        self.slots.take_again(self.state.tasks[key], self.left.pop(key), lambda: None)
        if self.state.running:
            self.handle(UnpauseEvent)

    def succeed(self, key: str) -> None:
        self.handle(ExecuteSuccessEvent, key, value=1, run_id=self._run_ids[key])


def random_life(seed: int, steps: int) -> None:
    """Give a worker tasks of all kinds, and have them end in all ways."""
    chosen = random.Random(seed)
    worker = SlottedState(ISLANDS, nthreads=chosen.choice([1, 2, 4]))
    state = worker.state
    requests = [(amounts, cpu) for amounts, cpu in REQUESTS if cpu <= state.nthreads]
    submitted: dict[str, tuple[dict[str, float], float]] = {}
    for step in range(steps):
        running = worker.running()
        known = sorted(ts.key for ts in state.tasks.values())
        kind = chosen.choices([*KINDS], [*KINDS.values()])[0]
        if kind == "compute":
            key = f"task-{step}"
            submitted[key] = chosen.choice(requests)
            worker.compute(key, *submitted[key], chosen.randrange(100))
        elif kind == "again" and submitted:
            # Wanted again after it was cancelled, sent away, or has ended
            key = chosen.choice(list(submitted))
            worker.compute(key, *submitted[key], step)
        elif kind == "pause":
            worker.handle(PauseEvent if state.running else UnpauseEvent)
        elif kind in ("free", "steal") and known:
            key = chosen.choice(known)
            if kind == "free":
                worker.handle(FreeKeysEvent, keys=[key])
            else:
                worker.handle(StealRequestEvent, key=key)
        elif running:
            key = chosen.choice(running)
            if kind in ("end", "error", "reschedule"):
                worker.left.pop(key, None)
            if kind == "end":
                worker.succeed(key)
            elif kind == "error":
                worker.handle(ExecuteFailureEvent, key, run_id=worker._run_ids[key])
            elif kind == "reschedule":
                worker.handle(RescheduleEvent, key)
            elif kind == "secede" and state.tasks[key] in state.executing:
                worker.secede(key)
            elif kind == "rejoin" and worker.left.keys() & set(running):
                worker.rejoin(chosen.choice(sorted(worker.left.keys() & set(running))))
    # All that is there comes to its end.
    if not state.running:
        worker.handle(UnpauseEvent)
    while running := worker.running():
        worker.succeed(chosen.choice(running))
    assert not state.ready
    assert not state.constrained
    assert not worker.slots.held
    assert not worker.slots._asking
    assert not worker.slots._returning
    assert worker.slots.pools.leases == 0
    assert all(total == free for total, free in worker.slots.pools.amounts().values())


@pytest.mark.parametrize("seed", range(12))
def test_no_unit_is_lost_and_no_task_waits_for_a_free_unit(seed: int) -> None:
    random_life(seed, 300)


def staggered(worker: SlottedState, singles: int) -> Iterator[list[str]]:
    """Let one single unit get free at a time, and be wanted by the next single task at once."""
    for number in range(2):
        worker.compute(f"single-{number}", {"GPU": 1.0}, 0.0, number)
    worker.compute("pair", {"GPU": 2.0}, 0.0, 2)
    for number in range(2, singles):
        worker.compute(f"single-{number}", {"GPU": 1.0}, 0.0, number + 1)
        worker.succeed(f"single-{number - 2}" if number > 2 else "single-0")
        yield worker.begun


def begins_after(worker: SlottedState, singles: int) -> int | None:
    """Count the tasks that begin before the one that wants both units."""
    for begun in staggered(worker, singles):
        if "pair" in begun:
            return begun.index("pair")
    return None


def test_a_whole_group_is_had_after_a_bounded_number_of_others() -> None:
    found = begins_after(SlottedState({"GPU": [[0, 1]]}, nthreads=1), 200)
    assert found is not None
    assert found <= 2 + PASSES_MAX + 1


def test_without_turns_single_units_are_taken_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_slots, "ResourcePools", partial(ResourcePools, passes_max=1000))
    assert begins_after(SlottedState({"GPU": [[0, 1]]}, nthreads=1), 200) is None


def test_a_task_of_higher_priority_overtakes_no_request() -> None:
    worker = SlottedState({"GPU": [[0, 1]]}, nthreads=1)
    for number in range(2):
        worker.compute(f"single-{number}", {"GPU": 1.0}, 0.0, 0)
    worker.compute("pair", {"GPU": 2.0}, 0.0, 50)
    for number in range(2, 40):
        worker.compute(f"single-{number}", {"GPU": 1.0}, 0.0, number)
        worker.succeed(worker.running()[0])
    assert "pair" not in worker.begun
    assert not worker.slots.pools.keeps


def test_units_reserved_for_an_unwanted_task_are_lent_again() -> None:
    worker = SlottedState({"GPU": [[0, 1]]}, nthreads=1)
    for _ in staggered(worker, 200):
        if worker.slots.pools.keeps:
            break
    # One unit is free by now, and kept; the other one is held.
    worker.succeed(worker.running()[0])
    worker.compute("late", {"GPU": 1.0}, 0.0, 500)
    assert "late" not in worker.begun
    worker.handle(FreeKeysEvent, keys=["pair"])
    assert "late" in worker.begun


def test_threads_that_were_left_to_a_task_are_used_when_it_is_cancelled() -> None:
    worker = SlottedState({"GPU": 1}, nthreads=2)
    worker.compute("runs", {}, 1.0, 0)
    worker.compute("wants-two", {}, 2.0, 1)
    worker.compute("plain", {}, 1.0, 2)
    assert worker.begun == ["runs"]
    worker.handle(FreeKeysEvent, keys=["wants-two"])
    assert worker.begun == ["runs", "plain"]
