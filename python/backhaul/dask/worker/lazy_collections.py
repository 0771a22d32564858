"""``WorkerState.tasks`` and its logs as objects that are up to date for programs that kept them.

While Rust has the state (`backhaul.dask.worker.core`), Dask's dictionary and its logs are empty. If
a program reads the tasks of the state machine, Python takes the state over. A program may have kept
the dictionary instead. So the dictionary and the logs have classes that make Python take over, too.

A worker gets them before it joins its scheduler (`install`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from backhaul.dask.compat.names import Worker, WorkerStateMachine

__all__ = [
    "LOGS",
    "LazyLog",
    "LazyTasks",
    "caught_up_methods",
    "data_of",
    "install",
    "is_known",
    "known_task",
]

#: The logs of a state machine
LOGS: Final = ("log", "stimulus_log")

_tasks_of: Final = WorkerStateMachine.__dict__["tasks"].__get__
_data_of: Final = WorkerStateMachine.__dict__["data"].__get__

#: All of a dictionary, and of a deque, that reads or changes it
_OF_A_DICT: Final = (
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
_OF_A_DEQUE: Final = (
    "__add__",
    "__contains__",
    "__copy__",
    "__delitem__",
    "__eq__",
    "__getitem__",
    "__iadd__",
    "__iter__",
    "__len__",
    "__mul__",
    "__ne__",
    "__repr__",
    "__reversed__",
    "__setitem__",
    "append",
    "appendleft",
    "clear",
    "copy",
    "count",
    "extend",
    "extendleft",
    "index",
    "insert",
    "pop",
    "popleft",
    "remove",
    "reverse",
    "rotate",
)


class LazyTasks(dict[Any, Any]):
    """Tasks of a state machine, as Dask has them.

    Attributes
    ----------
    owner : object
        Owner of the tasks while Rust has the state (`backhaul.dask.worker.core`), which sets it.
    """

    __slots__ = ("owner",)

    owner: Any

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


class LazyLog(deque[Any]):
    """A log of a state machine, as Dask has it.

    Attributes
    ----------
    owner : object
        Has the lines while Rust has the state; the owner sets this attribute.
    """

    __slots__ = ("owner",)

    owner: Any

    def __reduce_ex__(self, protocol: Any) -> Any:
        return deque, (list(self), self.maxlen)


def install(state: WorkerStateMachine) -> None:
    """Give a state machine such tasks and logs, if it has had no task yet; again costs nothing."""
    if type(state.tasks) is dict and not state.tasks:
        state.tasks = LazyTasks()
        for name in LOGS:
            log = getattr(state, name)
            if type(log) is deque:
                setattr(state, name, LazyLog(log, log.maxlen))


def install_for_worker(worker: Worker) -> None:
    """Give the state machine of a worker such tasks and logs, as `install`."""
    install(worker.state)


Kept: TypeAlias = LazyTasks | LazyLog


def data_of(worker: Worker) -> Any:
    """Return the results of a worker, without catching up with the reports of threads."""
    return _data_of(worker.state)


def known_task(state: WorkerStateMachine, key: Any) -> Any:
    """Return a task of Dask's state machine, or None."""
    return dict.get(_tasks_of(state), key)


def is_known(state: WorkerStateMachine, key: Any) -> bool:
    """Tell whether a state machine has a task, in Python or in Rust."""
    tasks = _tasks_of(state)
    if dict.__contains__(tasks, key):
        return True
    owner = getattr(tasks, "owner", None)
    return owner is not None and bool(owner.knows(key))


def caught_up_methods(kind: type[Kept], catch_up: Callable[[Any], None]) -> None:
    """Give a class what a dictionary or a deque can do, but for what it has itself: it catches up.

    Parameters
    ----------
    kind : type
        The class, of tasks or of a log.
    catch_up : callable
        Is given the object before it is read or changed.
    """
    own, names = (dict, _OF_A_DICT) if issubclass(kind, dict) else (deque, _OF_A_DEQUE)
    for name in names:
        if name not in vars(kind):
            setattr(kind, name, _caught_up(getattr(own, name), catch_up))


def _caught_up(own: Any, catch_up: Callable[[Any], None]) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        catch_up(self)
        return own(self, *args, **kwargs)

    return method
