"""Both state machines, where the state of ours is in Rust; see `differential`.

Rust takes over whenever it may, with tasks under way, too, and Python at each look: so that all of
the state is compared, and goes both ways. What a task depends on is listed in the order in which
that came, by both: upstream's sets list it by addresses, so in any order. Sets of the state machine
itself, whose order nothing hangs on, are compared without it.
"""

from __future__ import annotations

import random
import threading
from typing import Any

from distributed.collections import HeapSet
from distributed.worker_state_machine import (
    ComputeTaskEvent,
    ExecuteSuccessEvent,
    TaskState,
)

from backhaul.dask.worker import lazy_collections
from backhaul.dask.worker.core.dask_instructions import made
from backhaul.dask.worker.core.ownership import Keeper

from .attributes import LOGS, difference, dump
from .differential import (
    LOOKS_ONE_IN,
    Clock,
    Pair,
    Patches,
    _handled,
    _one_by_one,
    _shown,
    _without,
)
from .stream import Event, WholeTask

_LINKS = ("dependencies", "dependents", "waiting_for_data", "waiters")


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
    """Have tasks that are made from now on list what they depend on in the order it came.

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


class CorePair(Pair):
    """A `Pair` whose second state is in Rust."""

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
        self._keeper = Keeper(self.ours, threading.RLock(), rests=False)

    def counted(self) -> dict[str, int]:
        return {"taken over": self.taken_over}

    def apply(self, batch: list[Event]) -> tuple[str | None, list[Any] | None]:
        self._clock.now_s += 0.25
        had_it = self._keeper.core is not None
        with self._patches.installed():
            if self._keeper.take_over() and not had_it:
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
            # What either has then is what it had in the midst of the event.
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
                answer = self._keeper.live_through(message, ended)
            except Exception as error:
                return theirs, error
            if answer is None:
                self._keeper.give_back()
                return theirs, _one_by_one(self.ours, compute, done)
            lived, told = answer
            ours = made(self.ours, told)
        self.lived_through += bool(lived)
        return (_without(theirs, fields["key"]) if lived else theirs), ours

    def _numbers(self) -> str | None:
        """Say what differs in what can be told without a look."""
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

    def finish(self) -> str | None:
        found = None
        if self._is_over:
            return None
        with self._patches.installed():
            self._keeper.give_back()
        for name in LOGS:
            found = found or self._new_entries(name)
        return found or self.compare_state()

    def compare_state(self) -> str | None:
        self.looks += 1
        return difference(_loose(dump(self.theirs)), _loose(dump(self.ours)))


def _each(handle: Any, batch: list[Event]) -> tuple[Any, Any]:
    """Handle events; gives instructions and what they say, at once, or what was raised.

    What upstream tells has the lists of its tasks in it, which later events of a batch change.
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
            # By whom it was stored
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
