"""Random events for the state machine of a worker, as a scheduler, peers and threads cause them.

The next event depends on upstream's state machine: only an executing task ends, only a fetched
result arrives. Now and then an impossible event comes; then both have to refuse it alike.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from distributed.protocol.serialize import Serialize
from distributed.worker_state_machine import (
    AcquireReplicasEvent,
    CancelComputeEvent,
    ComputeTaskEvent,
    Execute,
    ExecuteFailureEvent,
    ExecuteSuccessEvent,
    FindMissingEvent,
    FreeKeysEvent,
    GatherDep,
    GatherDepBusyEvent,
    GatherDepFailureEvent,
    GatherDepNetworkFailureEvent,
    GatherDepSuccessEvent,
    PauseEvent,
    RefreshWhoHasEvent,
    RemoveReplicasEvent,
    RemoveWorkerEvent,
    RescheduleEvent,
    RetryBusyWorkerEvent,
    SecedeEvent,
    StealRequestEvent,
    UnpauseEvent,
    UpdateDataEvent,
    WorkerState,
)

ADDRESS = "tcp://10.0.0.1:1"
PEERS = ("tcp://10.0.0.1:2", "tcp://10.0.0.2:1", "tcp://10.0.0.3:1")


@dataclass(frozen=True)
class Event:
    """An event that can be made again for each of both state machines."""

    kind: type
    fields: dict[str, Any]

    def make(self) -> Any:
        """Make it, with containers of its own."""
        return self.kind(**{name: _copied(value) for name, value in self.fields.items()})


def _copied(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    return list(value) if type(value) is list else value


def is_map(seed: int) -> bool:
    """Tell whether hardly anything but plain tasks comes, so that much is noted, and forgotten."""
    return seed % 11 == 5


class WholeTask:
    """Stands for a task that has come and ended at once: its fields are those of both events."""


class Stream:
    """Makes events from a seed.

    Parameters
    ----------
    seed : int
        Seed of the stream.
    wild : bool
        Whether events come that no scheduler sends.
    """

    def __init__(self, seed: int, *, wild: bool) -> None:
        self.rng = rng = random.Random(seed)
        self.wild = wild
        count = rng.choice((4, 8, 16))
        self.keys = [f"{rng.choice(('inc', 'sum'))}-{number}" for number in range(count)]
        width = rng.choice((0, 0, 1, 3))
        self.dependencies = {
            key: rng.sample(self.keys[:number], min(number, rng.randint(0, width)))
            for number, key in enumerate(self.keys)
        }
        #: Instructions of upstream's state machine to the worker whose end has not come yet
        self.executing: list[Any] = []
        self.gathering: list[GatherDep] = []
        self.count = 0
        #: Chains, where tasks end before their start is handled
        self.share_of_whole = self.share_of_freed = rng.choice((0.2, 0.2, 0.7))
        #: Whether inputs that are here are nowhere else
        self.are_alone = rng.random() < 0.5
        #: Maps, where tasks are plain: their share
        self.plainness = rng.choice((0.1, 0.5, 0.9))
        self.is_map = is_map(seed)
        if self.is_map:
            self.share_of_whole, self.share_of_freed, self.are_alone = 0.6, 0.97, True

    def told(self, instructions: list[Any]) -> None:
        """Note what upstream's wants to be done."""
        for each in instructions:
            if type(each) is Execute:
                self.executing.append(each.key)
            elif type(each) is GatherDep:
                self.gathering.append(each)

    def next(self, state: WorkerState) -> list[Event]:
        """Make events that are handled together."""
        if self.rng.random() < self.share_of_whole:
            return [self._whole(state)]
        if self.rng.random() < self.share_of_freed:
            return [self._free(state)]
        events: list[Event] = []
        for _ in range(self.rng.choice((1, 1, 1, 2, 5))):
            events.append(self._one(state))
            if events[-1].kind is PauseEvent:
                break
        return events

    def _one(self, state: WorkerState) -> Event:
        rng = self.rng
        self.count += 1
        if rng.random() < self.plainness:
            plain = [self._compute, self._success, self._success, self._free]
            return rng.choice(plain)(state)
        return rng.choice(
            [
                self._compute,
                self._compute,
                self._success,
                self._end,
                self._free,
                self._gathered,
                self._gathered,
                self._replicas,
                self._scheduler_asks,
                self._worker_says,
            ]
        )(state)

    def _event(self, kind: type, **fields: Any) -> Event:
        return Event(kind, {**fields, "stimulus_id": f"{kind.__name__}-{self.count}"})

    def _who_has(self, state: WorkerState, key: str) -> list[str]:
        found = self.rng.sample(PEERS, self.rng.randint(1, 2))
        task = state.tasks.get(key)
        if task is not None and task.state == "memory":
            if self.are_alone:
                return [ADDRESS]
            found.append(ADDRESS)
        return found

    def _compute(self, state: WorkerState) -> Event:
        rng = self.rng
        key = rng.choice(self.keys)
        dependencies = self.dependencies[key]
        is_odd = rng.random() < 0.1 and not self.is_map
        return self._event(
            ComputeTaskEvent,
            key=key,
            run_id=self.count,
            who_has={each: self._who_has(state, each) for each in dependencies},
            nbytes={each: rng.randint(1, 100) for each in dependencies},
            priority=[0, rng.randint(0, 5)] if rng.random() < 0.2 else (0, rng.randint(0, 5)),
            run_spec=("spec", key),
            resource_restrictions={"R": rng.randint(1, 2)} if is_odd else {},
            actor=rng.random() < 0.01,
            annotations={"priority": 3} if rng.random() < 0.1 and not self.is_map else {},
            span_id=rng.choice((None, "span")),
        )

    def _whole(self, state: WorkerState) -> Event:
        """Make a task that a thread has begun and ended before the state machine handles it."""
        self.count += 1
        # Tasks that would be executed immediately, most of all
        compute = self._compute(state).fields
        for _ in range(4):
            if compute["key"] not in state.tasks and all(
                each in state.tasks and state.tasks[each].state == "memory"
                for each in compute["who_has"]
            ):
                break
            compute = self._compute(state).fields
        value: Any = self.rng.choice((1, "text", None, (1, 2), Refused()))
        done = {
            "key": compute["key"],
            "run_id": compute["run_id"],
            "value": value,
            "start": float(self.count),
            "stop": self.count + 0.5,
            "nbytes": self.rng.randint(0, 50),
            "type": type(value) if value is not None else None,
            "stimulus_id": f"told-{self.count}",
        }
        return Event(WholeTask, {"compute": compute, "done": done})

    def _success(self, state: WorkerState) -> Event:
        if not self.executing:
            return self._compute(state)
        key = self._ended()
        value: Any = self.rng.choice((1, "text", None, (1, 2), Refused()))
        return self._event(
            ExecuteSuccessEvent,
            key=key,
            run_id=self._run_id(state, key),
            value=value,
            start=float(self.count),
            stop=self.count + 0.5,
            nbytes=self.rng.randint(0, 50),
            type=type(value) if value is not None else None,
        )

    def _ended(self) -> Any:
        return self.executing.pop(self.rng.randrange(len(self.executing)))

    def _run_id(self, state: WorkerState, key: Any) -> int:
        task = state.tasks.get(key)
        return 1 if task is None else task.run_id

    def _end(self, state: WorkerState) -> Event:
        if not self.executing:
            return self._compute(state)
        if self.rng.random() < 0.3:
            return self._event(
                SecedeEvent, key=self.rng.choice(self.executing), compute_duration=0.25
            )
        key = self._ended()
        if self.rng.random() < 0.4:
            return self._event(RescheduleEvent, key=key)
        return self._event(
            ExecuteFailureEvent,
            key=key,
            run_id=self._run_id(state, key),
            start=self.rng.choice((None, 1.0)),
            stop=2.0,
            exception=Serialize(ValueError("odd")),
            traceback=None,
            exception_text="odd",
            traceback_text="",
        )

    def _free(self, state: WorkerState) -> Event:
        # Tasks that are there, most of all, in the scheduler's order
        count = self.rng.randint(1, 3)
        known = [key for key in self.keys if key in state.tasks] or self.keys
        keys = [self.rng.choice(known) for _ in range(count)]
        if self.rng.random() < 0.2:
            keys.append(self.rng.choice(self.keys))
        if self.is_map:
            # As of a client that releases each once
            keys = list(dict.fromkeys(keys))
        return self._event(FreeKeysEvent, keys=keys)

    def _gathered(self, state: WorkerState) -> Event:
        if not self.gathering:
            return self._compute(state)
        rng = self.rng
        done = self.gathering.pop(rng.randrange(len(self.gathering)))
        fields: dict[str, Any] = {"worker": done.worker, "total_nbytes": done.total_nbytes}
        kind = rng.choice(
            (
                GatherDepSuccessEvent,
                GatherDepSuccessEvent,
                GatherDepSuccessEvent,
                GatherDepBusyEvent,
                GatherDepNetworkFailureEvent,
                GatherDepFailureEvent,
            )
        )
        if kind is GatherDepSuccessEvent:
            # In one order for both: it is a set there.
            fields["data"] = {key: 7 for key in sorted(done.to_gather) if rng.random() < 0.8}
        elif kind is GatherDepFailureEvent:
            fields["exception"] = Serialize(ValueError("torn"))
            fields["traceback"] = None
            fields["exception_text"] = "torn"
            fields["traceback_text"] = ""
        return self._event(kind, **fields)

    def _replicas(self, state: WorkerState) -> Event:
        rng = self.rng
        keys = rng.sample(self.keys, rng.randint(1, 3))
        kind = rng.choice((RefreshWhoHasEvent, AcquireReplicasEvent, RemoveReplicasEvent))
        if kind is RemoveReplicasEvent:
            return self._event(kind, keys=keys)
        who_has = {key: self._who_has(state, key) for key in keys}
        if kind is RefreshWhoHasEvent:
            if rng.random() < 0.3:
                who_has[keys[0]] = []
            return self._event(kind, who_has=who_has)
        return self._event(kind, who_has=who_has, nbytes=dict.fromkeys(keys, 10))

    def _scheduler_asks(self, state: WorkerState) -> Event:
        key = self.rng.choice(self.keys)
        kind = self.rng.choice((StealRequestEvent, CancelComputeEvent, UpdateDataEvent))
        task = state.tasks.get(key)
        if kind is UpdateDataEvent:
            # While it computes, upstream's is known to misbehave.
            if task is not None and task.state not in ("memory", "released") and not self.wild:
                return self._event(StealRequestEvent, key=key)
            return self._event(kind, data={key: 5})
        if kind is CancelComputeEvent and task is not None and task.dependents and not self.wild:
            return self._event(StealRequestEvent, key=key)
        return self._event(kind, key=key)

    def _worker_says(self, state: WorkerState) -> Event:
        kind = self.rng.choice(
            (PauseEvent, UnpauseEvent, UnpauseEvent, FindMissingEvent, RetryBusyWorkerEvent)
        )
        if kind is RetryBusyWorkerEvent:
            if self.rng.random() < 0.3:
                return self._event(RemoveWorkerEvent, worker=self.rng.choice(PEERS))
            return self._event(kind, worker=self.rng.choice(PEERS))
        return self._event(kind)


class Refused:
    """A value that a worker may be unable to store, and that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")
