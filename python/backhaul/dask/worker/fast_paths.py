"""Fast paths of a worker: small steps of every task, done with less.

Each does what Dask's does, without the general machinery around it: a `singledispatchmethod` that
makes a function object for every event, a copy by the pickle protocol, contexts around a look-up, a
pickle of the same class for each result.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeAlias

from backhaul.dask.comm.already_sent import ToldStimulus, told
from backhaul.dask.compat.names import (
    StateMachineEvent,
    TaskFinishedMsg,
    WorkerStateMachine,
)
from backhaul.dask.worker.inline_results import CarryingTaskFinishedMsg, carried_value, carrying

__all__ = [
    "add_copy",
    "described_class",
    "direct_handle_event",
    "quick_finished_message",
]


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


#: Pickles and names of classes for which they are always the same: those that are compiled into a
#: module
_described: dict[type, tuple[bytes, str]] = {}
_DESCRIBED_MAX = 1000
#: ``Py_TPFLAGS_HEAPTYPE``: the class was made while the program ran.
_MADE_AT_RUN_TIME = 1 << 9


def described_class(kind: Any) -> tuple[bytes, str] | None:
    """Give the pickle and the name of a class as Dask sends them; None if they are not known."""
    return _described.get(kind)


def quick_finished_message(original: Callable[..., TaskFinishedMsg]) -> Callable[..., Any]:
    """Make a `_get_task_finished_msg` that pickles a class like `int` once."""

    def _get_task_finished_msg(
        self: WorkerStateMachine, ts: Any, run_id: int, stimulus_id: str
    ) -> TaskFinishedMsg:
        is_told = type(stimulus_id) is ToldStimulus and stimulus_id.key == ts.key
        kind = ts.type
        described = None if self.validate else _described.get(kind)
        if described is None:
            message = original(self, ts, run_id=run_id, stimulus_id=stimulus_id)
            if (
                type(kind) is type
                and not kind.__flags__ & _MADE_AT_RUN_TIME
                and len(_described) < _DESCRIBED_MAX
            ):
                _described[kind] = message.type, message.typename
            return told(message) if is_told else carrying(self, ts, message)
        assert ts.nbytes is not None
        value = None if is_told else carried_value(self, ts, ts.nbytes)
        message = object.__new__(TaskFinishedMsg if value is None else CarryingTaskFinishedMsg)
        message.key = key = ts.key
        message.run_id = run_id
        message.nbytes = ts.nbytes
        message.type, message.typename = described
        message.metadata = ts.metadata
        message.thread = self.threads.get(key)
        message.startstops = ts.startstops
        message.stimulus_id = stimulus_id
        if value is not None:
            message.value = value  # type: ignore[attr-defined]
        return told(message) if is_told else message

    return _get_task_finished_msg
