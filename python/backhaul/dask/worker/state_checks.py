"""Conditions under which a worker's state machine has no other effects than those on its state.

Rust may have the state, and threads may take tasks without the event loop, only then.
"""

from __future__ import annotations

import logging
from typing import Any

from distributed import Status, WorkerPlugin

from backhaul.dask.compat.names import Worker, WorkerStateMachine
from backhaul.dask.resource_pools.worker_state import SlottedWorkerState, slots_of

__all__ = [
    "is_plain",
    "is_unobserved",
    "no_plugin_has_transition",
    "starts_by_order",
    "threads_suffice",
]

#: Dask's own log; each task is in it at its lowest level
_logger = logging.getLogger("distributed.worker.state_machine")


def is_plain(state: WorkerStateMachine) -> bool:
    """Tell whether a state machine is of a known class, and no program follows its steps."""
    kind = type(state)
    return (kind is WorkerStateMachine or kind is SlottedWorkerState) and is_unobserved(state)


def is_unobserved(state: WorkerStateMachine) -> bool:
    """Tell whether no program checks or follows the steps of a state machine."""
    return (
        not state.validate
        and not state.transition_counter_max
        and not _logger.isEnabledFor(logging.DEBUG)
        and no_plugin_has_transition(state)
    )


def no_plugin_has_transition(state: WorkerStateMachine) -> bool:
    """Tell whether no plugin overrides the method `transition`."""
    # A copy, because threads call this, too, while the event loop may add a plugin
    for plugin in tuple(state.plugins.values()):
        # The plugin may be no `WorkerPlugin`, or have the method on the object
        method = getattr(plugin, "transition", None)
        if getattr(method, "__func__", method) not in (None, WorkerPlugin.transition):
            return False
    return True


def threads_suffice(state: WorkerStateMachine) -> bool:
    """Tell whether no task waits for, or holds, more than a thread."""
    return not state.constrained._data and (
        type(state) is not SlottedWorkerState or state.constrained.slots.is_idle
    )


def starts_by_order(worker: Worker) -> bool:
    """Tell whether the state machine starts tasks by their order alone, and no plugin watches."""
    state = worker.state
    if (
        not state.running
        or worker.status is not Status.running
        or state.constrained
        or state.actors
        or not _is_known_class(type(state))
    ):
        return False
    slots = slots_of(state)
    if slots is not None and not slots.is_idle:
        return False
    # A plugin with `transition` is notified of each task when it starts.
    return no_plugin_has_transition(state)


def _is_known_class(kind: Any) -> bool:
    """Tell whether a state machine has Dask's class, or one of Backhaul's, guarded or not."""
    if hasattr(kind, "is_backed_by_rust"):
        kind = kind.__base__
    return kind is WorkerStateMachine or kind is SlottedWorkerState
