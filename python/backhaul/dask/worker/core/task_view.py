"""View of a task of a state machine in Rust, as Dask's `TaskState`.

A view is a `TaskState` whose class is `CoreTask` while Rust has the state: a read of an attribute
gets the value from the core. The export to Python gives the object Dask's class again and fills it;
the import into Rust turns Python's tasks into views. So a task is always the same object, and
references to it stay valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any, Final, Protocol

from backhaul._native import WorkerCore
from backhaul.dask.compat.names import WorkerTaskState

__all__ = [
    "CoreTask",
    "Holder",
    "become_task",
    "become_view",
    "forgotten",
    "inputs_of",
    "is_needed",
    "new_view",
]

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

#: Slots of a view that hold something else meanwhile: who has the state
_HOLDER: Final = WorkerTaskState.__dict__["run_spec"]

#: All slots but that, the key and the times, which are a view's own
_OTHERS: Final = (*_OF_RUST, *_LINKS, *_OF_PYTHON, "startstops")


class Holder(Protocol):
    """The object that moves the state between Rust and Python."""

    core: WorkerCore | None

    @property
    def lock(self) -> Any:
        """The lock of the state."""

    def export_state(self) -> None:
        """Export the state to Python."""

    def task(self, key: Any) -> Any:
        """Return a task, or a view of it; None if there is none."""


class CoreTask(WorkerTaskState):
    """One task while Rust has the state; its key and times of its run are its own."""

    __slots__ = ()

    __hash__ = WorkerTaskState.__hash__

    def __reduce_ex__(self, protocol: Any) -> Any:
        return taken_over(self).__reduce_ex__(protocol)


class _Links(Set[Any]):
    """A set of tasks that a task is linked to; a change of the set exports the state to Python."""

    def __init__(self, view: Any, name: str) -> None:
        self._view = view
        self._name = name

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> Any:
        return set(it)

    def __len__(self) -> int:
        return len(_told(self._view, self._name))

    def __iter__(self) -> Iterator[Any]:
        holder = _holder_of(self._view)
        if holder is None:
            yield from getattr(self._view, self._name)
            return
        for key in _told(self._view, self._name):
            task = holder.task(key)
            if task is not None:
                yield task

    def __contains__(self, task: object) -> bool:
        return any(task is each for each in self)

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(taken_over(self._view), self._name), name)


class _Times(list[Any]):
    """Times of a task, to which more may be added."""

    def __init__(self, view: Any) -> None:
        super().__init__(_told(view, "startstops"))
        self._view = view

    def append(self, times: dict[str, Any]) -> None:
        super().append(times)
        view, holder = self._view, _holder_of(self._view)
        if holder is None:
            view.startstops.append(times)
            return
        with holder.lock:
            if type(view) is CoreTask and holder.core is not None:
                holder.core.add_time(view.key, times)
            else:
                view.startstops.append(times)


def new_view(holder: Holder, key: Any) -> Any:
    """Make the view of a task that has none yet."""
    view: Any = object.__new__(CoreTask)
    view.key = key
    view.start_time = view.stop_time = None
    _HOLDER.__set__(view, holder)
    return view


def become_view(task: Any, holder: Holder) -> None:
    """Make a view of one of Python's tasks, which Rust has now."""
    for slot in _SLOTS:
        slot.__set__(task, None)
    _HOLDER.__set__(task, holder)
    task.__class__ = CoreTask


def become_task(view: Any) -> None:
    """Make one of Python's tasks of a view; its attributes are those of a new one then."""
    started = view.start_time, view.stop_time
    view.__class__ = WorkerTaskState
    view.__init__(view.key)
    view.start_time, view.stop_time = started


def forgotten(view: Any) -> None:
    """Turn the view of a forgotten task into a plain object in state ``forgotten``."""
    become_task(view)
    view.state = "forgotten"


def taken_over(view: Any) -> Any:
    """Export the state to Python, and return the task there."""
    holder = _holder_of(view)
    if holder is not None:
        holder.export_state()
        if type(view) is CoreTask:
            # The state that had this task is gone.
            forgotten(view)
    return view


def _holder_of(view: Any) -> Any:
    return _HOLDER.__get__(view) if type(view) is CoreTask else None


def _told(view: Any, name: str) -> Any:
    """Return an attribute from Rust, or from the task once Python has the state."""
    holder = _holder_of(view)
    if holder is None:
        return getattr(view, name)
    with holder.lock:
        if type(view) is CoreTask:
            core = holder.core
            if core is not None:
                return core.task_attribute(view.key, name)
            forgotten(view)
    return getattr(view, name)


def inputs_of(task: Any) -> list[tuple[Any, int | None]]:
    """Return keys and bytes of the dependencies of a task, for a view or a `TaskState`."""
    if type(task) is CoreTask:
        holder = _holder_of(task)
        with holder.lock:
            if type(task) is CoreTask and holder.core is not None:
                inputs: list[tuple[Any, int | None]] = holder.core.task_attribute(
                    task.key, "inputs"
                )
                return inputs
    return [(dependency.key, dependency.nbytes) for dependency in task.dependencies]


def is_needed(task: Any) -> bool:
    """Tell whether other tasks depend on a task, a view or a `TaskState`."""
    return bool(task.dependents)


def _of_rust(name: str) -> property:
    def get(self: CoreTask) -> Any:
        return _told(self, name)

    return property(get, _put(name))


def _link(name: str) -> property:
    def get(self: CoreTask) -> Any:
        return _Links(self, name)

    return property(get, _put(name))


def _of_python(name: str) -> property:
    def get(self: CoreTask) -> Any:
        return getattr(taken_over(self), name)

    return property(get, _put(name))


def _put(name: str) -> Callable[[CoreTask, Any], None]:
    def put(self: CoreTask, value: Any) -> None:
        setattr(taken_over(self), name, value)

    return put


_SLOTS: Final = tuple(WorkerTaskState.__dict__[name] for name in _OTHERS)

for _names, _made in ((_OF_RUST, _of_rust), (_LINKS, _link), (_OF_PYTHON, _of_python)):
    for _name in _names:
        setattr(CoreTask, _name, _made(_name))
setattr(CoreTask, "startstops", property(_Times, _put("startstops")))  # noqa: B010
