"""Three small things that a worker does for every task, done with less.

Each does what Dask's does, without the generic machinery around it: a `singledispatchmethod` that
makes a function object for every event, a copy by the pickle protocol, contexts around a look-up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backhaul.dask.private import (
    SpillBuffer,
    StateMachineEvent,
    WorkerStateMachine,
    context_meter,
)

__all__ = ["add_copy", "direct_handle_event", "quick_getitem"]


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


_slots_of: dict[type, tuple[str, ...]] = {}


def _slots(kind: type) -> tuple[str, ...]:
    if kind not in _slots_of:
        _slots_of[kind] = tuple(
            slot for base in kind.__mro__ for slot in getattr(base, "__slots__", ())
        )
    return _slots_of[kind]


def add_copy(_: None) -> Callable[[StateMachineEvent], StateMachineEvent]:
    """Make a `__copy__` that copies an event slot by slot."""

    def __copy__(self: StateMachineEvent) -> StateMachineEvent:
        copied: StateMachineEvent = object.__new__(type(self))
        for slot in _slots(type(self)):
            if hasattr(self, slot):
                setattr(copied, slot, getattr(self, slot))
        return copied

    return __copy__


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
