"""A task of a state machine in Rust, as Dask's `TaskState` for whoever looks at one.

Attributes are looked up when they are asked for. Once the state machine is Python's, the view is
that of the task there; what is set on it before has Python take it over first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from backhaul._native import WorkerCore
from backhaul.dask.private import WorkerTaskState

__all__ = ["CoreTask", "input_keys", "is_needed"]

#: Attributes that the state has
_OF_THE_STATE: Final = (
    "state",
    "previous",
    "next",
    "done",
    "run_id",
    "nbytes",
    "prefix",
    "run_spec",
    "annotations",
    "span_id",
    "type",
)

#: Those that Python's state machine has alone: it takes over if they are looked at
_OF_PYTHON: Final = (
    "coming_from",
    "dependencies",
    "dependents",
    "exception",
    "exception_text",
    "metadata",
    "priority",
    "resource_restrictions",
    "suspicious_count",
    "traceback",
    "traceback_text",
    "waiters",
    "waiting_for_data",
    "who_has",
)


class CoreTask(WorkerTaskState):
    """One task; made by the state machine, once for each.

    Attributes
    ----------
    real : distributed.worker_state_machine.TaskState or None
        The task in Python's state machine, once it is there.
    """

    __slots__ = ("_core", "_take_over", "real")

    def __init__(self, core: WorkerCore, key: Any, take_over: Callable[[], None]) -> None:
        self._core = core
        self._take_over = take_over
        self.key = key
        self.real: Any = None
        # Python's own until it takes over, and given to the task there
        self.start_time = None
        self.stop_time = None

    __hash__ = WorkerTaskState.__hash__

    @property  # type: ignore[override]
    def startstops(self) -> Any:
        if self.real is not None:
            return self.real.startstops
        return _Times(self._core, self.key)


class _Times(list[Any]):
    """Times of a task, to which more may be added."""

    def __init__(self, core: WorkerCore, key: Any) -> None:
        super().__init__(core.task_attribute(key, "startstops"))
        self._core = core
        self._key = key

    def append(self, times: dict[str, Any]) -> None:
        super().append(times)
        self._core.add_time(self._key, times["action"], times["start"], times["stop"])


def input_keys(task: Any) -> list[Any]:
    """Give the keys of what a task depends on, of a view as of a `TaskState`."""
    if type(task) is CoreTask and task.real is None:
        keys: list[Any] = task._core.task_attribute(task.key, "dependency_keys")
        return keys
    return [dependency.key for dependency in task.dependencies]


def is_needed(task: Any) -> bool:
    """Tell whether other tasks depend on a task, a view or a `TaskState`."""
    if type(task) is CoreTask and task.real is None:
        try:
            has_dependents: bool = task._core.task_attribute(task.key, "has_dependents")
        except KeyError:
            return False
        return has_dependents
    return bool(task.dependents)


def _of_the_state(name: str) -> property:
    def get(self: CoreTask) -> Any:
        if self.real is not None:
            return getattr(self.real, name)
        try:
            return self._core.task_attribute(self.key, name)
        except KeyError:
            return _OF_THE_FORGOTTEN.get(name)

    return property(get, _set(name))


def _of_python(name: str) -> property:
    def get(self: CoreTask) -> Any:
        if self.real is None:
            self._take_over()
        return getattr(self.real, name)

    return property(get, _set(name))


def _set(name: str) -> Callable[[CoreTask, Any], None]:
    def put(self: CoreTask, value: Any) -> None:
        if self.real is None:
            self._take_over()
        setattr(self.real, name, value)

    return put


#: What a task has that is not known any more
_OF_THE_FORGOTTEN: Final[dict[str, Any]] = {"state": "forgotten", "done": False, "run_id": -1}

for _name in _OF_THE_STATE:
    setattr(CoreTask, _name, _of_the_state(_name))
for _name in _OF_PYTHON:
    setattr(CoreTask, _name, _of_python(_name))
