"""All that can be seen of a worker's state machine, as values that can be compared."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from typing import Any

from distributed.collections import HeapSet
from distributed.worker_state_machine import (
    Instruction,
    StateMachineEvent,
    TaskCounter,
    TaskState,
    WorkerState,
)

from backhaul.dask.worker_slots import WorkerSlots

__all__ = ["LOGS", "difference", "dump"]

#: What only grows, and is compared where it grew
LOGS = ("log", "stimulus_log")

PLAIN = frozenset({str, int, float, bool, type(None)})

_names: dict[type, list[str]] = {}


def slots_of(kind: type) -> list[str]:
    if kind not in _names:
        found: list[str] = []
        for base in kind.__mro__:
            names = getattr(base, "__slots__", ())
            found += (names,) if isinstance(names, str) else names
        _names[kind] = found
    return _names[kind]


def dump(value: Any, *, deep: bool = True) -> Any:
    """Give a value that is equal for equal states; tasks by their keys, but for those of a state.

    Dictionaries are compared with their order, sets with theirs: what comes first may decide.
    """
    if type(value) in PLAIN:
        return value
    if isinstance(value, TaskState):
        return fields(value, "__weakref__") if deep else ("task", value.key)
    if isinstance(value, WorkerState):
        found = fields(value, "tasks", "plugins", "waiting", *LOGS)
        # Nobody looks in what order they are there.
        found["waiting"] = sorted(task.key for task in value.waiting)
        found["tasks"] = [(key, dump(task)) for key, task in value.tasks.items()]
        return found
    if isinstance(value, (StateMachineEvent, Instruction, TaskCounter)):
        return (type(value).__name__, fields(value))
    if isinstance(value, HeapSet):
        # Those that have left stay until they are met, for as long as something holds the task.
        heap = [
            (key, count, dump(task, deep=False) if task in value._data else None)
            for key, count, task in ((key, count, ref()) for key, count, ref in value._heap)
        ]
        return ("heap", heap, value._inc, value._sorted, [dump(each, deep=False) for each in value])
    if isinstance(value, WorkerSlots):
        return (dump(value.waiting), sorted(value.held), value.beside, sorted(value.made_on))
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, (dict, Counter, defaultdict)):
        return [(dump(key, deep=False), dump(each, deep=False)) for key, each in value.items()]
    if isinstance(value, (list, tuple, deque, set, frozenset)):
        return (type(value).__name__, [dump(each, deep=False) for each in value])
    return value


def fields(value: Any, *but: str) -> dict[str, Any]:
    found = {}
    for name in slots_of(type(value)):
        if name not in but:
            found[name] = dump(getattr(value, name, "not set"), deep=False)
    return found


def difference(theirs: Any, ours: Any, place: str = "") -> str | None:
    """Say where two dumps differ first; None if they are equal."""
    if theirs == ours:
        return None
    if type(theirs) is not type(ours):
        return f"{place}: upstream has {theirs!r}, ours {ours!r}"
    if isinstance(theirs, dict):
        for name in theirs:
            found = difference(theirs[name], ours.get(name), f"{place}/{name}")
            if found:
                return found
        return None
    if isinstance(theirs, (list, tuple)) and len(theirs) == len(ours):
        for number, (a, b) in enumerate(zip(theirs, ours, strict=True)):
            found = difference(a, b, f"{place}/{number}")
            if found:
                return found
        return None
    return f"{place}: upstream has {theirs!r}, ours {ours!r}"
