"""``WorkerState.tasks`` as one dictionary that is up to date for whoever kept it.

While there is a backlog (`backhaul.dask.backlog`), Dask's dictionary lacks what is noted. Who asks
the state machine for its tasks has that worked off; who has kept the dictionary asks nobody. So the
dictionary itself is of a class that has it worked off, while there is any.

A worker gets it before it joins its scheduler (`install`). The backlog comes with the first task
that a thread takes: who has kept another dictionary by then would never see what comes later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from backhaul.dask.private import WorkerStateMachine

__all__ = ["KeptTasks", "TasksBehind", "caught_up_methods", "install", "is_known", "known_task"]

_tasks_of: Final = WorkerStateMachine.__dict__["tasks"].__get__

#: All of a dictionary that reads or changes it
_METHODS: Final = (
    "__contains__",
    "__delitem__",
    "__eq__",
    "__getitem__",
    "__ior__",
    "__iter__",
    "__len__",
    "__ne__",
    "__or__",
    "__repr__",
    "__reversed__",
    "__ror__",
    "__setitem__",
    "clear",
    "copy",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
)


class KeptTasks(dict[Any, Any]):
    """Tasks of a state machine, as Dask has them.

    Attributes
    ----------
    work_off : callable
        Has the state machine go through what it has yet to go through. Whoever makes it of the
        class `TasksBehind` sets it.
    owner : object
        Who has the tasks while Rust has the state (`backhaul.dask.worker_core`), and sets it.
    """

    __slots__ = ("owner", "work_off")

    owner: Any
    work_off: Callable[[], None]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


def install(state: WorkerStateMachine) -> None:
    """Give a state machine such tasks, if it has had none yet; again costs nothing."""
    if type(state.tasks) is dict and not state.tasks:
        state.tasks = KeptTasks()


def known_task(state: WorkerStateMachine, key: Any) -> Any:
    """Give a task, or None, as a state machine has it: nothing is worked off."""
    return dict.get(_tasks_of(state), key)


def is_known(state: WorkerStateMachine, key: Any) -> bool:
    """Tell whether a state machine has a task, Python or Rust: nothing is worked off."""
    tasks = _tasks_of(state)
    if dict.__contains__(tasks, key):
        return True
    owner = getattr(tasks, "owner", None)
    return owner is not None and bool(owner.knows(key))


class TasksBehind(KeptTasks):
    """`KeptTasks` while some are missing: whoever looks has them worked off."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]


def caught_up_methods(kind: type[KeptTasks], catch_up: Callable[[Any], None]) -> None:
    """Give a class what a dictionary can do, but for what it has itself: it catches up first.

    Parameters
    ----------
    kind : type
        The class.
    catch_up : callable
        Is given the dictionary before it is read or changed.
    """
    for name in _METHODS:
        if name not in vars(kind):
            setattr(kind, name, _caught_up(name, catch_up))


def _caught_up(name: str, catch_up: Callable[[Any], None]) -> Any:
    own = getattr(dict, name)

    def method(self: KeptTasks, *args: Any, **kwargs: Any) -> Any:
        catch_up(self)
        return own(self, *args, **kwargs)

    return method


caught_up_methods(TasksBehind, lambda tasks: tasks.work_off())
