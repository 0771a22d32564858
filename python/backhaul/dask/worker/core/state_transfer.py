"""All that a state machine has, from Rust to Python and back."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, cast

from backhaul._native import WorkerCore
from backhaul.dask.compat.names import (
    FreeKeysEvent,
    HeapSet,
    TaskCounter,
    WorkerStateMachine,
    WorkerTaskState,
)
from backhaul.dask.worker.core.task_view import Holder, become_task, become_view
from backhaul.dask.worker.event_makers import compute_task_event, execute_success_event
from backhaul.dask.worker.lazy_collections import LOGS

__all__ = ["NUMBERS", "counted", "give_to_python", "let_go", "own", "take_from_python"]

#: Attributes that are numbers
NUMBERS: Final = (
    "generation",
    "nbytes",
    "executed_count",
    "transition_counter",
    "fetch_count",
    "transfer_incoming_bytes",
    "transfer_incoming_count_total",
)

_PLAIN: Final = (
    "run_id",
    "run_spec",
    "annotations",
    "span_id",
    "type",
    "state",
    "previous",
    "next",
    "done",
    "nbytes",
    "coming_from",
    "startstops",
)
_LINKS: Final = ("dependencies", "dependents", "waiting_for_data", "waiters")
_ERROR: Final = ("exception", "traceback", "exception_text", "traceback_text")
#: Attributes that contain tasks, or depend on them
_CONTAINERS: Final = (
    "ready",
    "data_needed",
    "in_flight_workers",
    "missing_dep_flight",
    "busy_workers",
    "executing",
    "long_running",
    "in_flight_tasks",
    "waiting",
    "has_what",
)
_SETS_BY_FLAG: Final = (
    ("executes", "executing"),
    ("runs_long", "long_running"),
    ("in_flight", "in_flight_tasks"),
    ("waits", "waiting"),
)


def give_to_python(core: WorkerCore, state: WorkerStateMachine) -> None:
    """Export the state of a state machine in Rust to Python's.

    The caller changes the class of the state machine afterwards; until then no other thread reads
    the exported state. This function writes attributes by the descriptors of Dask's class.

    Parameters
    ----------
    core : WorkerCore
        The state; unusable afterwards.
    state : distributed.worker_state_machine.WorkerState
        A state machine without tasks.

    Raises
    ------
    RuntimeError
        If an event is at work on the core; nothing has changed.
    """
    numbers = {name: core.number(name) for name in NUMBERS}
    counted(core, own(state, "task_counter"))
    found = core.take_out()
    for name, number in numbers.items():
        put(state, name, number)
    put(state, "running", found["running"])
    tasks = _tasks(state, found["tasks"])
    _fill_heap(own(state, "ready"), found["ready"], tasks)
    needed = own(state, "data_needed")
    for peer, heap in found["data_needed"].items():
        _fill_heap(needed[peer], heap, tasks)
    own(state, "in_flight_workers").update(found["in_flight_workers"])
    own(state, "busy_workers").update(found["busy_workers"])
    own(state, "missing_dep_flight").update(tasks[key] for key in found["missing"])
    deque.extend(own(state, "log"), found["log"])
    deque.extend(own(state, "stimulus_log"), map(_event, found["stimulus_log"]))


def own(state: WorkerStateMachine, name: str) -> Any:
    """Read an attribute by the descriptor of Dask's class, whatever the class is now."""
    return WorkerStateMachine.__dict__[name].__get__(state)


def put(state: WorkerStateMachine, name: str, value: Any) -> None:
    """Write an attribute by the descriptor of Dask's class, whatever the class is now."""
    WorkerStateMachine.__dict__[name].__set__(state, value)


def _tasks(state: WorkerStateMachine, said: list[dict[str, Any]]) -> dict[Any, Any]:
    tasks: dict[Any, Any] = {}
    for each in said:
        view = each["view"]
        if view is None:
            view = WorkerTaskState(each["key"])
        else:
            become_task(view)
        tasks[each["key"]] = view
    dict.update(own(state, "tasks"), tasks)
    has_what = own(state, "has_what")
    for each in said:
        ts = tasks[each["key"]]
        for name in _PLAIN:
            setattr(ts, name, each[name])
        if each["priority"] is not None:
            ts.priority = _whole(each["priority"])
        ts.who_has.update(each["who_has"])
        for peer in each["who_has"]:
            has_what[peer].add(ts.key)
        for name in _LINKS:
            getattr(ts, name).update(tasks[key] for key in each[name])
        for flag, name in _SETS_BY_FLAG:
            if each[flag]:
                own(state, name).add(ts)
        if each["error"] is not None:
            for name, value in zip(_ERROR, each["error"], strict=True):
                setattr(ts, name, value)
    return tasks


def _whole(numbers: Iterable[float]) -> tuple[Any, ...]:
    return tuple(int(number) if number.is_integer() else number for number in numbers)


def _fill_heap(heap: HeapSet[Any], said: tuple[list[Any], int], tasks: dict[Any, Any]) -> None:
    places, added = said
    heap._heap[:] = [
        (_whole(priority), number, weakref.ref(tasks[key])) for priority, number, key, _ in places
    ]
    heap._data.update(tasks[key] for _, _, key, is_member in places if is_member)
    heap._inc = added
    heap._sorted = True


def _event(said: tuple[str, Any, float | None]) -> Any:
    kind, what, handled_s = said
    if kind == "event":
        return what
    event: Any
    if kind == "compute-task":
        event = compute_task_event(**what)
    elif kind == "success":
        key, run_id, start_s, stop_s, nbytes, of_class, stimulus_id = what
        event = execute_success_event(
            key, run_id, None, start_s, stop_s, nbytes, of_class, stimulus_id
        )
    else:
        keys, stimulus_id = what
        event = FreeKeysEvent(keys=keys, stimulus_id=stimulus_id)
    event.handled = handled_s
    return event


def counted(core: WorkerCore, counter: TaskCounter) -> TaskCounter:
    """Return Python's counter with the counts of Rust, which has the state.

    Costs as much as there are tasks and changes, however many prefixes there have been.
    """
    counter._previous_ts = core.write_counts(
        cast(Any, counter._current_count), cast(Any, counter._cumulative_elapsed)
    )
    return counter


def take_from_python(core: WorkerCore, state: WorkerStateMachine) -> None:
    """Import the state of Python's state machine, which keeps its state until `let_go`.

    Parameters
    ----------
    core : WorkerCore
        A new core.
    state : distributed.worker_state_machine.WorkerState
        Of Dask's class. None of its tasks requests resources or belongs to an actor.

    Raises
    ------
    KeyError, TypeError, ValueError, OverflowError
        If the state refers to a missing object, or has a value that Rust cannot represent.
    """
    flags = [(flag, getattr(state, name)) for flag, name in _SETS_BY_FLAG]
    core.put_in(
        {
            "tasks": [_said(ts, flags) for ts in dict.values(state.tasks)],
            "ready": _said_heap(state.ready),
            "data_needed": {peer: _said_heap(heap) for peer, heap in state.data_needed.items()},
            "in_flight_workers": dict(state.in_flight_workers),
            "missing": [ts.key for ts in state.missing_dep_flight],
            "busy_workers": list(state.busy_workers),
            "running": state.running,
            "counters": {name: getattr(state, name) for name in NUMBERS},
            "counts": _said_counts(state.task_counter),
            "log": list(state.log),
            "stimulus_log": list(state.stimulus_log),
        }
    )


def let_go(core: WorkerCore, state: WorkerStateMachine, holder: Holder) -> None:
    """Clear the state of Python's state machine after an import, and turn its tasks into views.

    Parameters
    ----------
    core : WorkerCore
        Has the state.
    state : distributed.worker_state_machine.WorkerState
        The state machine, of its guarded class.
    holder : Holder
        Moves the state.
    """
    tasks = own(state, "tasks")
    for key, ts in dict.items(tasks):
        become_view(ts, holder)
        core.set_view(key, ts)
    dict.clear(tasks)
    for log in LOGS:
        deque.clear(own(state, log))
    for name in _CONTAINERS:
        own(state, name).clear()


def _said(ts: Any, flags: list[tuple[str, Any]]) -> dict[str, Any]:
    said = {name: getattr(ts, name) for name in (*_PLAIN, "key", "prefix", "priority")}
    said["who_has"] = list(ts.who_has)
    for name in _LINKS:
        said[name] = [each.key for each in getattr(ts, name)]
    for flag, tasks in flags:
        said[flag] = ts in tasks
    error = tuple(getattr(ts, name, "") for name in _ERROR)
    said["error"] = error if any(error) else None
    return said


def _said_heap(heap: HeapSet[Any]) -> tuple[list[Any], int]:
    places = [
        (priority, number, ts.key, ts in heap._data)
        for priority, number, ref in sorted(heap._heap, key=_place)
        if (ts := ref()) is not None and ts.state != "forgotten"
    ]
    return places, heap._inc


def _place(entry: tuple[Any, int, Any]) -> tuple[Any, int]:
    return entry[0], entry[1]


def _said_counts(counter: TaskCounter) -> tuple[Any, list[Any]]:
    seconds = counter._cumulative_elapsed.get
    groups = [(name, tasks, seconds(name)) for name, tasks in counter._current_count.items()]
    return counter._previous_ts, groups
