"""Fast paths of a worker: small steps of every task, done with less.

Each does what Dask's does, without the general machinery around it: a `singledispatchmethod` that
makes a function object for every event, a copy by the pickle protocol, contexts around a look-up, a
pickle of the same class for each result.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeAlias

from dask.utils import typename

from backhaul.dask.private import (
    SpillBuffer,
    StateMachineEvent,
    TaskFinishedMsg,
    WorkerStateMachine,
    context_meter,
)
from backhaul.dask.small_results import carrying

__all__ = ["add_copy", "direct_handle_event", "quick_finished_message", "quick_getitem"]


def direct_handle_event(original: Any) -> Callable[..., Any]:
    """Make a `_handle_event` that remembers the handler of each class of events."""
    dispatch = original.dispatcher.dispatch
    handlers: dict[type, Callable[..., Any]] = {}

    def _handle_event(self: WorkerStateMachine, ev: StateMachineEvent) -> Any:
        kind = type(ev)
        handler = handlers.get(kind)
        if handler is None:
            handler = handlers[kind] = dispatch(kind)
        return handler(self, ev)

    return _handle_event


_Slots: TypeAlias = tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]

_slots_of: dict[type, _Slots] = {}


def _slots(kind: type) -> _Slots:
    """Give the names of the slots of a class, and what gets them all."""
    if kind not in _slots_of:
        names = tuple(slot for base in kind.__mro__ for slot in getattr(base, "__slots__", ()))
        _slots_of[kind] = names, attrgetter(*names)
    return _slots_of[kind]


def add_copy(_: None) -> Callable[[StateMachineEvent], StateMachineEvent]:
    """Make a `__copy__` that copies an event slot by slot."""

    def __copy__(self: StateMachineEvent) -> StateMachineEvent:
        kind = type(self)
        copied: StateMachineEvent = object.__new__(kind)
        names, values_of = _slots(kind)
        try:
            values = values_of(self)
        except AttributeError:
            names = tuple(name for name in names if hasattr(self, name))
            values = tuple(getattr(self, name) for name in names)
        for name, value in zip(names, values, strict=True):
            setattr(copied, name, value)
        return copied

    return __copy__


#: Pickles of classes that are always the same: those that are compiled into a module.
_pickled: dict[type, bytes] = {}
_PICKLED_MAX = 1000
#: ``Py_TPFLAGS_HEAPTYPE``: the class was made while the program ran.
_MADE_AT_RUN_TIME = 1 << 9


def quick_finished_message(original: Callable[..., TaskFinishedMsg]) -> Callable[..., Any]:
    """Make a `_get_task_finished_msg` that pickles a class like `int` once."""

    def _get_task_finished_msg(
        self: WorkerStateMachine, ts: Any, run_id: int, stimulus_id: str
    ) -> TaskFinishedMsg:
        kind = ts.type
        if self.validate or type(kind) is not type or kind.__flags__ & _MADE_AT_RUN_TIME:
            message = original(self, ts, run_id=run_id, stimulus_id=stimulus_id)
            return carrying(self, ts, message)
        pickled = _pickled.get(kind)
        if pickled is None:
            message = original(self, ts, run_id=run_id, stimulus_id=stimulus_id)
            if len(_pickled) < _PICKLED_MAX:
                _pickled[kind] = message.type
            return carrying(self, ts, message)
        assert ts.nbytes is not None
        message = TaskFinishedMsg(
            key=ts.key,
            run_id=run_id,
            nbytes=ts.nbytes,
            type=pickled,
            typename=typename(kind),
            metadata=ts.metadata,
            thread=self.threads.get(ts.key),
            startstops=ts.startstops,
            stimulus_id=stimulus_id,
        )
        return carrying(self, ts, message)

    return _get_task_finished_msg


def quick_getitem(original: Callable[[SpillBuffer, Any], object]) -> Callable[..., object]:
    """Make a `__getitem__` without contexts for what is in memory."""

    def __getitem__(self: SpillBuffer, key: Any) -> object:
        fast = self.fast
        if key not in fast:
            return original(self, key)
        nbytes = fast.weights[key]
        totals = self.cumulative_metrics
        totals["memory-read", "count"] += 1
        totals["memory-read", "bytes"] += nbytes
        context_meter.digest_metric("memory-read", 1, "count")
        context_meter.digest_metric("memory-read", nbytes, "bytes")
        return fast[key]

    return __getitem__
