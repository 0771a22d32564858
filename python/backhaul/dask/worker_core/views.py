"""A task of a state machine in Rust, as Dask's `TaskState` for whoever looks at one.

Attributes are looked up when they are asked for. Once the state machine is Python's, the view is
that of the task there; what is set on it before has Python take it over first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import Any, Final, Protocol

from backhaul._native import WorkerCore
from backhaul.dask.private import WorkerTaskState

__all__ = ["CoreTask", "Holder", "inputs_of", "is_needed", "real"]

#: Attributes that Rust has
_OF_RUST: Final = (
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

_LINKS: Final = ("dependencies", "dependents", "waiting_for_data", "waiters")

#: Those for which Python takes over
_OF_PYTHON: Final = (
    "coming_from",
    "exception",
    "exception_text",
    "metadata",
    "priority",
    "resource_restrictions",
    "suspicious_count",
    "traceback",
    "traceback_text",
    "who_has",
)

#: What a task has that is not known any more
_OF_THE_FORGOTTEN: Final[dict[str, Any]] = {
    "state": "forgotten",
    "done": False,
    "run_id": -1,
    "startstops": (),
    "inputs": (),
    "is_needed": False,
    **dict.fromkeys(_LINKS, ()),
}


class Holder(Protocol):
    """Who has the state change hands."""

    core: WorkerCore | None
    lock: Any

    def give_back(self) -> None:
        """Have Python take over."""

    def task(self, key: Any) -> Any:
        """Give a task, or a view of it; None if there is none."""


class CoreTask(WorkerTaskState):
    """One task; made by who has the state change hands, once for each.

    Attributes
    ----------
    real : distributed.worker_state_machine.TaskState or None
        The task in Python's state machine, once it is there.
    started : tuple of float or None
        When it began and ended, which Rust does not know.
    """

    __slots__ = ("_core", "_holder", "real", "started")

    def __init__(self, core: WorkerCore, holder: Holder, key: Any) -> None:
        self._core = core
        self._holder = holder
        self.key = key
        self.real: Any = None
        self.started: list[Any] = [None, None]

    __hash__ = WorkerTaskState.__hash__

    def told(self, name: str) -> Any:
        """Give what Rust has under a name, while it has the state."""
        with self._holder.lock:
            if self._holder.core is self._core:
                try:
                    return self._core.task_attribute(self.key, name)
                except KeyError:
                    pass
            return _OF_THE_FORGOTTEN.get(name)

    def taken_over(self) -> Any:
        """Have Python take over, and give the task there; one that is nowhere as a new one."""
        if self.real is None:
            self._holder.give_back()
            if self.real is None:
                self.real = WorkerTaskState(self.key, run_id=-1, state="forgotten")
        return self.real

    def times_of(self) -> Any:
        """Give the list of its times, to which more may be added."""
        return _Times(self)

    def linked(self, name: str) -> Any:
        """Give tasks that it is linked to."""
        return _Links(self, name)

    def task_of(self, key: Any) -> Any:
        """Give another task of the same state machine."""
        return self._holder.task(key)

    def add_time(self, times: dict[str, Any]) -> None:
        """Note what took its time."""
        with self._holder.lock:
            if self.real is not None:
                self.real.startstops.append(times)
            elif self._holder.core is self._core:
                self._core.add_time(self.key, times)


class _Times(list[Any]):
    """Times of a task, to which more may be added."""

    def __init__(self, view: CoreTask) -> None:
        super().__init__(view.told("startstops"))
        self._view = view

    def append(self, times: dict[str, Any]) -> None:
        super().append(times)
        self._view.add_time(times)


class _Links(Set[Any]):
    """Tasks that a task is linked to; for who changes it Python takes over."""

    def __init__(self, view: CoreTask, name: str) -> None:
        self._view = view
        self._name = name

    def __len__(self) -> int:
        return len(self._view.told(self._name))

    def __iter__(self) -> Iterator[Any]:
        for key in self._view.told(self._name):
            task = self._view.task_of(key)
            if task is not None:
                yield task

    def __contains__(self, task: object) -> bool:
        return any(task is each for each in self)

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self._view.taken_over(), self._name), name)


def real(task: Any) -> Any:
    """Give the task in Python's state machine, if it is there, for a view of it."""
    return task.real if type(task) is CoreTask and task.real is not None else task


def inputs_of(task: Any) -> list[tuple[Any, int | None]]:
    """Give keys and bytes of what a task depends on, of a view as of a `TaskState`."""
    if type(task) is CoreTask and task.real is None:
        inputs: list[tuple[Any, int | None]] = task.told("inputs")
        return inputs
    return [(dependency.key, dependency.nbytes) for dependency in task.dependencies]


def is_needed(task: Any) -> bool:
    """Tell whether other tasks depend on a task, a view or a `TaskState`."""
    if type(task) is CoreTask and task.real is None:
        return bool(task.told("is_needed"))
    return bool(task.dependents)


def _of_rust(name: str) -> property:
    def get(self: CoreTask) -> Any:
        return self.told(name) if self.real is None else getattr(self.real, name)

    return property(get, _put(name))


def _link(name: str) -> property:
    def get(self: CoreTask) -> Any:
        return self.linked(name) if self.real is None else getattr(self.real, name)

    return property(get, _put(name))


def _of_python(name: str) -> property:
    def get(self: CoreTask) -> Any:
        return getattr(self.taken_over(), name)

    return property(get, _put(name))


def _put(name: str) -> Callable[[CoreTask, Any], None]:
    def put(self: CoreTask, value: Any) -> None:
        setattr(self.taken_over(), name, value)

    return put


def _moment(name: str, place: int) -> property:
    def get(self: CoreTask) -> Any:
        return self.started[place] if self.real is None else getattr(self.real, name)

    def put(self: CoreTask, value: Any) -> None:
        if self.real is None:
            self.started[place] = value
        else:
            setattr(self.real, name, value)

    return property(get, put)


def _startstops(self: CoreTask) -> Any:
    return self.times_of() if self.real is None else self.real.startstops


for _names, _made in ((_OF_RUST, _of_rust), (_LINKS, _link), (_OF_PYTHON, _of_python)):
    for _name in _names:
        setattr(CoreTask, _name, _made(_name))
setattr(CoreTask, "startstops", property(_startstops, _put("startstops")))  # noqa: B010
setattr(CoreTask, "start_time", _moment("start_time", 0))  # noqa: B010
setattr(CoreTask, "stop_time", _moment("stop_time", 1))  # noqa: B010
