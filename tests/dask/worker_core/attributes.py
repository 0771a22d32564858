"""All that can be seen of a worker's state machine, as values that can be compared."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from distributed.collections import HeapSet
from distributed.worker_state_machine import (
    Instruction,
    StateMachineEvent,
    TaskCounter,
    TaskState,
    WorkerState,
)

from backhaul.dask.resource_pools.worker_slots import WorkerSlots

__all__ = ["LOGS", "difference", "dump"]

#: Logs that only grow, and are compared where they grew
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
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind not in _forms:
        _forms[kind] = next((form for base, form in _FORMS.items() if issubclass(kind, base)), None)
    form = _forms[kind]
    if form is _task and not deep:
        return ("task", value.key)
    return value if form is None else form(value)


def _task(task: Any) -> Any:
    return fields(task, "__weakref__")


def _state(state: Any) -> Any:
    found = fields(state, "tasks", "plugins", "waiting", *LOGS)
    # No code depends on their order.
    found["waiting"] = sorted(task.key for task in state.waiting)
    found["tasks"] = [(key, dump(task)) for key, task in state.tasks.items()]
    return found


def _named_fields(value: Any) -> Any:
    return (type(value).__name__, fields(value))


def _heap(heap: Any) -> Any:
    # Entries of tasks that have left stay until they are met, for as long as something holds the
    # task.
    entries = [
        (key, count, dump(task, deep=False) if task in heap._data else None)
        for key, count, task in ((key, count, ref()) for key, count, ref in heap._heap)
    ]
    return ("heap", entries, heap._inc, heap._sorted, [dump(each, deep=False) for each in heap])


def _slots(slots: Any) -> Any:
    return (dump(slots.waiting), sorted(slots.held), slots.beside, sorted(slots.made_on))


def _items(value: Any) -> Any:
    return [(dump(key, deep=False), dump(each, deep=False)) for key, each in value.items()]


def _members(value: Any) -> Any:
    return (type(value).__name__, [dump(each, deep=False) for each in value])


#: How a value of a class is given; the first that fits
_FORMS: dict[type, Callable[[Any], Any]] = {
    TaskState: _task,
    WorkerState: _state,
    StateMachineEvent: _named_fields,
    Instruction: _named_fields,
    TaskCounter: _named_fields,
    # Before what can be gone through
    HeapSet: _heap,
    WorkerSlots: _slots,
    random.Random: random.Random.getstate,
    dict: _items,
    list: _members,
    tuple: _members,
    deque: _members,
    set: _members,
    frozenset: _members,
}

_forms: dict[type, Callable[[Any], Any] | None] = {}


def fields(value: Any, *but: str) -> dict[str, Any]:
    found = {}
    for name in slots_of(type(value)):
        if name not in but:
            each = getattr(value, name, "not set")
            found[name] = each if type(each) in PLAIN else dump(each, deep=False)
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
