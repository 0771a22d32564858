"""Tasks that stay pickles until a program reads them: run specs of `Client.submit` on a scheduler.

A scheduler has no use for the function and the arguments of a task: it reads the key and what the
task depends on, and sends the rest on. So it keeps the pickle as it came, and the native codec
writes it to a worker as it is. A plugin, a page of the dashboard, a dump of the cluster or a client
that wants to run the task by itself finds a `Task` like any other: the first look at any other
part of it makes it one.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import cloudpickle

from backhaul._native import TaskGraph
from backhaul.dask.compat.names import Task

__all__ = ["PickledTask", "Unloadable", "keep", "tasks_of"]

#: Message when a function cannot be loaded, as Dask's scheduler has it
_UNLOADABLE = """\
Error during deserialization of the task graph. This frequently
occurs if the Scheduler and Client have different environments.
For more information, see
https://docs.dask.org/en/stable/deployment-considerations.html#consistent-software-environments
"""


class PickledTask(Task):
    """A task of which only `key`, `dependencies` and `data_producer` are there; made by `keep`.

    Notes
    -----
    The pickle is in the slot ``_repr``, where the native codec finds it, too; all other slots are
    not set, so reading one ends in `__getattr__`, which turns the object into a `Task`. What Dask
    reads without reading a slot first, or together with the class, is overridden.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        kept: Any = self._repr
        slots = Task.get_all_slots()
        if isinstance(kept, bytes) and name in slots:
            task = pickle.loads(kept)
            for slot in slots:
                if slot != "_repr":
                    setattr(self, slot, getattr(task, slot))
            # Last, for the sake of another thread that comes here meanwhile.
            self._repr = None
            self.__class__ = Task  # type: ignore[assignment]
        return object.__getattribute__(self, name)

    def _load(self) -> Task:
        """Become a `Task`."""
        _ = self.func
        return self

    def __repr__(self) -> str:
        return repr(self._load())

    def __eq__(self, other: object) -> bool:
        return self._load() == other

    def __hash__(self) -> int:
        return hash(self._load())

    def copy(self) -> Any:
        return self._load().copy()

    def substitute(self, *args: Any, **kwargs: Any) -> Any:
        return self._load().substitute(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The caller is another codec, and writes to a process that may not have this module.
        return self._load().__reduce_ex__(protocol)


def keep(
    key: Any, kept: bytes, dependencies: Iterable[Any], *, is_producer: bool = False
) -> PickledTask:
    """Make a task of its pickle by ``Codec.encode_task``, without looking into it.

    A producer of data is one to Dask's order and scheduler. `TypeError` if `kept` is no bytes.
    """
    if type(kept) is not bytes:
        raise TypeError(f"the pickle of task {key!r} must be bytes, got {type(kept).__name__}")
    spec: PickledTask = object.__new__(PickledTask)
    spec.key = key
    spec._dependencies = frozenset(dependencies)
    spec._data_producer = is_producer
    spec._repr = kept  # type: ignore[assignment]
    return spec


def tasks_of(
    graph: TaskGraph, keys: Sequence[Any]
) -> tuple[dict[Any, Any], dict[Any, int], set[Any]]:
    """Make tasks of a graph that a client sent, with the keys that its numbers stand for.

    Returns the tasks by key, those that are calls not looked into; their places in the order; the
    keys that are wanted.
    """
    tasks: dict[Any, Any] = {}
    order: dict[Any, int] = {}
    for key, (pickled, needs, place, is_call, is_producer) in zip(
        keys, graph.tasks(), strict=False
    ):
        if is_call:
            needed = [keys[number] for number in needs]
            task: Any = keep(key, pickled, needed, is_producer=is_producer)
        else:
            task = pickle.loads(pickled)
        tasks[key] = task
        order[key] = place
    return tasks, order, {keys[number] for number in graph.wanted()}


class Unloadable:
    """Function that could not be loaded; a call raises the error that Dask's scheduler raises.

    It has to be pickled, as what a task raises is: the error itself if it survives that, else one
    with what it says.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return Unloadable, (_portable(self.error),)

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raise.

        Raises
        ------
        RuntimeError
            Always.
        """
        raise RuntimeError(_UNLOADABLE) from _portable(self.error)


def _portable(error: BaseException) -> BaseException:
    """Give an error that can be pickled, the same if it can."""
    try:
        survives = isinstance(pickle.loads(cloudpickle.dumps(error)), Exception)
    except Exception:
        survives = False
    return error if survives else RuntimeError(_said(error))


def _said(error: BaseException) -> str:
    """Say what an error says, if it can say it."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
