"""Guarded classes of a worker's state machine, and of its collections, while Rust has the state.

The core answers reads of counts and of single tasks; any other access exports the state to Python
first.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Protocol

from backhaul._native import WorkerCore
from backhaul.dask.compat.names import WorkerStateMachine
from backhaul.dask.worker.core import state_transfer
from backhaul.dask.worker.core.dask_instructions import made
from backhaul.dask.worker.core.events import Told
from backhaul.dask.worker.lazy_collections import LazyLog, LazyTasks, caught_up_methods

__all__ = ["CoreLines", "CoreLog", "CoreTasks", "Owner", "make_guarded_class", "ready_count"]

#: Attributes whose reads export the state to Python
_LOOKS: Final = (
    "waiting",
    "has_what",
    "data_needed",
    "in_flight_workers",
    "busy_workers",
    "missing_dep_flight",
    "ready",
    "executing",
    "in_flight_tasks",
    "long_running",
)

#: Properties of Dask's class that are numbers
_COUNTS: Final = ("executing_count", "in_flight_tasks_count", "transfer_incoming_count")


class Owner(Protocol):
    """The object that moves the state between Rust and Python."""

    core: WorkerCore | None
    #: The lock of the state
    lock: Any

    def handle(self, events: tuple[Any, ...]) -> tuple[Told, int]:
        """Handle events in Rust up to the first that Python has to handle."""

    def export_state(self) -> None:
        """Export the state to Python."""

    def catch_up(self) -> None:
        """Report ended tasks to the state, before a read of it."""

    def sync_and_export(self) -> None:
        """Catch up, then export the state, before a read that the core does not answer."""

    def task(self, key: Any) -> Any:
        """Return a task, or a view of it; None if there is none."""

    def knows(self, key: Any) -> bool:
        """Tell whether there is a task of a key."""


def ready_count(state: WorkerStateMachine) -> int:
    """Return the number of tasks that wait for a thread, from Rust or Python."""
    count: int | None = getattr(state, "ready_count", None)
    return len(state.ready) if count is None else count


def make_guarded_class(kind: type, owner: Owner) -> type:
    """Make the class of one state machine while Rust has its state.

    Parameters
    ----------
    kind : type
        Its class while Python has the state.
    owner : Owner
        Moves the state.
    """

    def handle_stimulus(self: Any, *stims: Any) -> list[Any]:
        with owner.lock:
            told, number = owner.handle(stims)
            wanted = made(self, told)
            if number < len(stims):
                wanted += self.handle_stimulus(*stims[number:])
            return wanted

    def put(self: Any, name: str, value: Any) -> None:
        if name != "__class__":
            owner.sync_and_export()
        object.__setattr__(self, name, value)

    members: dict[str, Any] = {
        "__slots__": (),
        "__module__": kind.__module__,
        "__setattr__": put,
        "is_backed_by_rust": True,
        "core_owner": owner,
        "handle_stimulus": handle_stimulus,
        "running": _told("running", owner, bool),
        "task_counter": _task_counter(owner),
    }
    for name in (*state_transfer.NUMBERS, *_COUNTS):
        members[name] = _told(name, owner, int)
    members["ready_count"] = property(lambda _: _counted(owner, "ready_count"))
    for name in _LOOKS:
        members[name] = _look(name, owner)

    return type(kind.__name__, (kind,), members)


def _told(name: str, owner: Owner, form: type) -> property:
    own = WorkerStateMachine.__dict__[name]

    def get(self: Any) -> Any:
        owner.catch_up()
        with owner.lock:
            core = owner.core
            return own.__get__(self) if core is None else form(core.number(name))

    return property(get)


def _counted(owner: Owner, name: str) -> int | None:
    with owner.lock:
        return None if owner.core is None else owner.core.number(name)


def _look(name: str, owner: Owner) -> property:
    slot = WorkerStateMachine.__dict__[name]

    def get(self: Any) -> Any:
        owner.sync_and_export()
        return slot.__get__(self)

    return property(get)


def _task_counter(owner: Owner) -> property:
    slot = WorkerStateMachine.__dict__["task_counter"]

    def get(self: Any) -> Any:
        owner.catch_up()
        with owner.lock:
            counter = slot.__get__(self)
            core = owner.core
            return counter if core is None else state_transfer.counted(core, counter)

    return property(get)


class CoreLog(LazyLog):
    """A log while Rust has the state: a read exports the state to Python."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]


class CoreLines(CoreLog):
    """The log of transitions while Rust has the state: Rust keeps the lines that others append."""

    __slots__ = ()
    __hash__ = None

    def append(self, line: Any) -> None:
        with self.owner.lock:
            core = self.owner.core
            if core is None:
                # The class may be Dask's by now.
                deque.append(self, line)
            else:
                core.add_line(line)


class CoreTasks(LazyTasks):
    """`LazyTasks` while Rust has the state: a read of more than a single task exports the state."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, key: Any) -> bool:
        self.owner.catch_up()
        return bool(self.owner.knows(key))

    def __len__(self) -> int:
        owner = self.owner
        owner.catch_up()
        with owner.lock:
            return dict.__len__(self) if owner.core is None else len(owner.core)

    def __getitem__(self, key: Any) -> Any:
        self.owner.catch_up()
        task = self.owner.task(key)
        if task is None:
            raise KeyError(key)
        return task

    def get(self, key: Any, default: Any = None) -> Any:
        self.owner.catch_up()
        task = self.owner.task(key)
        return default if task is None else task


for _kind in (CoreTasks, CoreLog):
    caught_up_methods(_kind, lambda kept: kept.owner.sync_and_export())
