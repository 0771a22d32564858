"""Dask's state machine of a worker and ours, whose state is in Rust; see `differential`.

Rust takes over whenever it may, with tasks under way, too, and Python at each look: so that all of
the state is compared, and goes both ways. Dependencies of a task are listed in the order in which
they came, by both: upstream's sets list them by addresses, so in any order. Sets of the state
machine itself, whose order decides nothing, are compared without it.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from distributed.collections import HeapSet
from distributed.worker_state_machine import (
    ComputeTaskEvent,
    Execute,
    ExecuteSuccessEvent,
    TaskFinishedMsg,
    TaskState,
    WorkerState,
)

from backhaul.dask.compat.process_patches import PATCHES
from backhaul.dask.resource_pools.worker_slots import WorkerSlots
from backhaul.dask.resource_pools.worker_state import give_slots
from backhaul.dask.worker import lazy_collections
from backhaul.dask.worker.core.dask_instructions import made
from backhaul.dask.worker.core.ownership import StateOwner

from .attributes import LOGS, difference, dump
from .stream import ADDRESS, Event, Refused, WholeTask

#: State is compared after one step of so many, at random, unless after every one.
LOOKS_ONE_IN = 16

_LINKS = ("dependencies", "dependents", "waiting_for_data", "waiters")


class Clock:
    """Time that passes between events only."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class RefusingDict(dict[Any, object]):
    """Stores everything but what cannot be pickled, as a full worker that spills."""

    def __setitem__(self, key: Any, value: object) -> None:
        if type(value) is Refused:
            raise TypeError(f"cannot store {key}")
        super().__setitem__(key, value)


class Patches:
    """Replacements of functions of Dask, which are put there for a moment.

    Parameters
    ----------
    unread : bool
        Whether the sources of Dask may be others than those that were read.
    """

    def __init__(self, *, unread: bool) -> None:
        (patch,) = (patch for patch in PATCHES if patch.switch == "hot-path.execution")
        assert unread or patch.refusal() is None, patch.refusal()
        self._both = []
        for function, replacement in zip(patch.functions, patch.install(), strict=True):
            if function.place is WorkerState:
                both = replacement.ours, replacement.original
                self._both.append((WorkerState, function.name, *both))
            assert replacement.take_back()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        for owner, name, ours, _ in self._both:
            setattr(owner, name, ours)
        try:
            yield
        finally:
            for owner, name, _, original in self._both:
                setattr(owner, name, original)


class InOrder(set[Any]):
    """A set that lists its members in the order in which they came."""

    __slots__ = ("_order",)

    def __init__(self, members: Any = ()) -> None:
        super().__init__()
        self._order: dict[Any, None] = {}
        self.update(members)

    def add(self, member: Any) -> None:
        super().add(member)
        self._order[member] = None

    def update(self, *others: Any) -> None:
        for members in others:
            for member in members:
                self.add(member)

    def discard(self, member: Any) -> None:
        super().discard(member)
        self._order.pop(member, None)

    def remove(self, member: Any) -> None:
        super().remove(member)
        del self._order[member]

    def clear(self) -> None:
        super().clear()
        self._order.clear()

    def __iter__(self) -> Any:
        return iter(self._order)


def keep_order() -> None:
    """Make tasks that are created from now on list their dependencies in the order of arrival.

    And heaps their members as they would be taken: upstream's list those by addresses, too.
    """
    own = TaskState.__post_init__

    def __post_init__(self: TaskState) -> None:
        own(self)
        for name in _LINKS:
            setattr(self, name, InOrder(getattr(self, name)))

    TaskState.__post_init__ = __post_init__  # type: ignore[method-assign]
    HeapSet.__iter__ = _by_places  # type: ignore[method-assign]


def _by_places(heap: HeapSet[Any]) -> Any:
    """List the members of a heap in the order in which they would be taken."""
    places = sorted((key, number, ref()) for key, number, ref in heap._heap if ref() in heap._data)
    return iter(dict.fromkeys(task for _, _, task in places))


class Pair:
    """Both state machines, with the settings that a seed gives.

    Parameters
    ----------
    seed : int
        Seed of settings and looks.
    patches : Patches
        Replacements of functions of Dask for our state machine.
    clock : Clock
        The time of both.
    every : bool
        Whether state is compared after every step. Otherwise it is after some, at random, and the
        caller asks for the last time.
    """

    def __init__(self, seed: int, patches: Patches, clock: Clock, every: bool = True) -> None:
        self.every = every
        self._glances = random.Random(f"looks of {seed}")
        self.looks = 0
        self._patches = patches
        self._clock = clock
        clock.now_s = 100.0
        self.theirs, self.ours = (self._state(seed, seed % 2 == 1) for _ in range(2))
        self._compared = dict.fromkeys(LOGS, 0)
        self.lived_through = self.taken_over = 0
        #: Whether both have refused an event
        self._is_over = False
        lazy_collections.install(self.ours)
        self._state_owner = StateOwner(self.ours, threading.RLock(), rests=False)

    @staticmethod
    def _state(seed: int, slotted: bool) -> WorkerState:
        state = WorkerState(
            nthreads=(1, 1, 2, 3)[seed // 2 % 4],
            address=ADDRESS,
            data=RefusingDict() if seed % 5 == 0 else {},
            threads={},
            resources={"R": 2},
            transfer_incoming_count_limit=(9999, 1)[seed // 3 % 2],
            validate=False,
            transfer_message_bytes_limit=50 if seed % 7 == 0 else float("inf"),
        )
        # Short ones, so that what is noted is forgotten
        places = (None, 6)[seed // 4 % 2]
        state.log, state.stimulus_log = deque(maxlen=places), deque(maxlen=places)
        if slotted:
            give_slots(state, WorkerSlots({"R": 2}, beside_max=1))
        return state

    def apply(self, batch: list[Event]) -> tuple[str | None, list[Any] | None]:
        self._clock.now_s += 0.25
        had_it = self._state_owner.core is not None
        with self._patches.installed():
            if self._state_owner.import_state() and not had_it:
                self.taken_over += 1
        if batch[0].kind is WholeTask:
            theirs, ours = self._whole(batch[0])
            theirs_seen, ours_seen = _seen(theirs), _seen(ours)
        else:
            theirs, theirs_seen = _each(self.theirs.handle_stimulus, batch)
            with self._patches.installed():
                ours, ours_seen = _each(self.ours.handle_stimulus, batch)
        if isinstance(theirs, Exception) or isinstance(ours, Exception):
            if isinstance(theirs, (AssertionError, KeyError)) and isinstance(ours, AssertionError):
                # Theirs does not say what is wrong.
                self._is_over = True
                return None, None
            # Either state is then as it was in the middle of the event.
            self._is_over = True
            return difference(_shown(theirs), _shown(ours), "refused"), None
        found = difference(theirs_seen, ours_seen, "instructions")
        found = found or self._numbers()
        if self.every or self._glances.randrange(LOOKS_ONE_IN) == 0:
            found = found or self.finish()
        return found, theirs

    def _whole(self, event: Event) -> tuple[Any, Any]:
        compute = Event(ComputeTaskEvent, event.fields["compute"])
        done = Event(ExecuteSuccessEvent, event.fields["done"])
        theirs = _one_by_one(self.theirs, compute, done)
        message = {
            name: list(value) if type(value) is list else value
            for name, value in event.fields["compute"].items()
        }
        fields = event.fields["done"]
        ended = tuple(
            fields[name] for name in ("value", "nbytes", "type", "start", "stop", "stimulus_id")
        )
        with self._patches.installed():
            try:
                answer = self._state_owner.apply_completed_task(message, ended)
            except Exception as error:
                return theirs, error
            if answer is None:
                self._state_owner.export_state()
                return theirs, _one_by_one(self.ours, compute, done)
            lived, told = answer
            ours = made(self.ours, told)
        self.lived_through += bool(lived)
        return (_without(theirs, fields["key"]) if lived else theirs), ours

    def _numbers(self) -> str | None:
        """Compare the numbers that can be read without a transfer of the state."""
        found = None
        for name in (
            "generation",
            "nbytes",
            "executed_count",
            "transition_counter",
            "executing_count",
            "in_flight_tasks_count",
            "transfer_incoming_count",
            "transfer_incoming_bytes",
            "running",
            "data",
        ):
            theirs, ours = getattr(self.theirs, name), getattr(self.ours, name)
            found = found or difference(dump(theirs), dump(ours), f"/{name}")
        theirs, ours = (
            sorted(state.task_counter.current_count().items()) for state in (self.theirs, self.ours)
        )
        return found or difference(theirs, ours, "/counts")

    def _new_entries(self, name: str) -> str | None:
        """Say what differs in what a log has gained."""
        # A full log has lost its first entries.
        begin = self._compared[name] if getattr(self.theirs, name).maxlen is None else 0
        theirs, ours = (
            dump(list(itertools.islice(getattr(state, name), begin, None)))
            for state in (self.theirs, self.ours)
        )
        self._compared[name] = len(getattr(self.theirs, name))
        return difference(theirs, ours, f"/{name}")

    def finish(self) -> str | None:
        found = None
        if self._is_over:
            return None
        with self._patches.installed():
            self._state_owner.export_state()
        for name in LOGS:
            found = found or self._new_entries(name)
        return found or self.compare_state()

    def compare_state(self) -> str | None:
        self.looks += 1
        return difference(_loose(dump(self.theirs)), _loose(dump(self.ours)))


def _each(handle: Any, batch: list[Event]) -> tuple[Any, Any]:
    """Handle events; gives instructions and what they say, at once, or what was raised.

    Upstream's instructions contain the lists of its tasks, which later events of a batch change.
    """
    told: list[Any] = []
    seen: list[Any] = []
    for event in batch:
        more = _handled(handle, [event])
        if isinstance(more, Exception):
            return more, None
        told += more
        seen.append(_seen(more))
    return told, seen


def _seen(told: Any) -> Any:
    return None if isinstance(told, Exception) else _loose(dump(told))


def _loose(dumped: Any) -> Any:
    """Leave out of a dump what nothing hangs on."""
    if isinstance(dumped, dict):
        found = {name: _loose(value) for name, value in dumped.items()}
        if "cannot store" in str(found.get("exception_text")):
            # The code that stored it
            for name in ("exception", "traceback", "traceback_text"):
                found.pop(name, None)
        if "has_what" in found:
            found["has_what"] = sorted(each for each in found["has_what"] if each[1][1])
            found["in_flight_workers"] = sorted(found["in_flight_workers"])
        return found
    if isinstance(dumped, list):
        return [_loose(each) for each in dumped]
    if not isinstance(dumped, tuple):
        return dumped
    if dumped and dumped[0] == "heap":
        # As they will be met: of which priority, and the how manieth.
        entries = sorted(each for each in dumped[1] if each[2] is not None)
        return ("heap", entries, dumped[2])
    if dumped and dumped[0] == "RequestRefreshWhoHasMsg":
        return (
            "RequestRefreshWhoHasMsg",
            dumped[1]["stimulus_id"],
            sorted(map(repr, dumped[1]["keys"][1])),
        )
    if dumped and dumped[0] == "set":
        return ("set", sorted(map(repr, dumped[1])))
    if dumped and dumped[0] == "TaskCounter":
        counted = dumped[1].items()
        return {
            name: sorted(map(repr, value)) if isinstance(value, list) else value
            for name, value in counted
        }
    return tuple(_loose(each) for each in dumped)


def _without(theirs: Any, key: Any) -> Any:
    """Leave out what a thread has done: it has run the task and told the scheduler."""
    if isinstance(theirs, Exception):
        return theirs
    return [
        each for each in theirs if type(each) not in (Execute, TaskFinishedMsg) or each.key != key
    ]


def _handled(handle: Callable[..., Any], batch: list[Event]) -> Any:
    try:
        return handle(*(event.make() for event in batch))
    except Exception as error:
        return error


def _one_by_one(state: WorkerState, compute: Event, done: Event) -> Any:
    """Give a state machine a task, and the end of the task if the machine wants to execute it."""
    told = _handled(state.handle_stimulus, [compute])
    key = done.fields["key"]
    if isinstance(told, Exception) or not any(
        type(each) is Execute and each.key == key for each in told
    ):
        return told
    more = _handled(state.handle_stimulus, [done])
    if isinstance(more, Exception):
        return more
    return [each for each in told if type(each) is not Execute or each.key != key] + more


def _shown(outcome: Any) -> str:
    return f"{type(outcome).__name__}: {outcome}" if isinstance(outcome, Exception) else "nothing"
