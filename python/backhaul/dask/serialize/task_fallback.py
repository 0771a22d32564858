"""Tasks that the native codec cannot write, pickled whole: small ones only.

A task with an array, a method of an object, or an object of a class that is not the interpreter's
or Dask's, is the pickler's. As long as it is small that is all there is to do, and it goes in a
compact message as others do (`backhaul.dask.client.submit`, `backhaul.dask.client.graph`); what
is large, Dask sends apart from its pickle.

No process opens such a pickle before the worker, which may not be able to: it lacks a module, say.
In Dask the scheduler would have met that, and said so to the future. So the pickle is one of a call
that gives a task all the same, which fails with what Dask says.
"""

from __future__ import annotations

import pickle
from typing import Any, Final

import cloudpickle

from backhaul.dask.compat.names import DaskPickler, Task, TaskRef
from backhaul.dask.compat.names import pickle as dask_pickle
from backhaul.dask.serialize.pickled_task import Unloadable

__all__ = ["PICKLE_BYTES_MAX", "load_whole", "pickle_whole"]

#: Most bytes of one: from there on, Dask's way costs little more
PICKLE_BYTES_MAX: Final = 64 << 10

#: Where a pickle says that it has a future, which is bound where it is loaded
_FUTURES: Final = b"distributed.client"


class _TooLong(Exception):
    """A pickle has got too long."""


class _Sink:
    """Takes the parts of a pickle, and no more than may be."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.left = PICKLE_BYTES_MAX

    def write(self, part: Any) -> None:
        self.left -= len(part)
        if self.left < 0:
            raise _TooLong
        self.parts.append(bytes(part))

    def take(self, buffer: pickle.PickleBuffer) -> bool:
        """Tell whether a buffer is pickled with the rest: all are, as far as they may be."""
        if buffer.raw().nbytes > self.left:
            raise _TooLong
        return True


class _Whole:
    """An object that is pickled as a call of `load_whole`."""

    __slots__ = ("_pickled", "_task")

    def __init__(self, task: Any, pickled: bytes) -> None:
        self._task = task
        self._pickled = pickled

    def __reduce__(self) -> Any:
        task = self._task
        return load_whole, (task.key, self._pickled, tuple(task.dependencies))


def load_whole(key: Any, pickled: bytes, dependencies: tuple[Any, ...]) -> Any:
    """Make a task of its pickle by `pickle_whole`; one that fails, if it cannot be loaded here."""
    try:
        return dask_pickle.loads(pickled)
    except BaseException as error:
        # Any exception would end this worker, and the next one to get the task.
        return Task(key, Unloadable(error), *map(TaskRef, dependencies))


def pickle_whole(task: Any) -> bytes | None:
    """Pickle a task, as Dask pickles it.

    Returns None if it takes more than `PICKLE_BYTES_MAX`, has a future, which is bound where it is
    loaded, or cannot be pickled, which is Dask's to say.
    """
    try:
        pickled = _pickled(pickle.Pickler, task) or _pickled(DaskPickler, task)
        if pickled is None or b"__main__" in pickled:
            pickled = _pickled(cloudpickle.Pickler, task)
    except _TooLong:
        return None
    if pickled is None or _FUTURES in pickled:
        return None
    return pickle.dumps(_Whole(task, pickled), dask_pickle.HIGHEST_PROTOCOL)


def _pickled(kind: Any, task: Any) -> bytes | None:
    """Pickle a task; None if that pickler cannot."""
    sink = _Sink()
    try:
        kind(sink, protocol=dask_pickle.HIGHEST_PROTOCOL, buffer_callback=sink.take).dump(task)
    except _TooLong:
        raise
    except Exception:
        return None
    return b"".join(sink.parts)
