"""Conditions under which a worker's state machine does what its state says and nothing else.

Rust may have the state only then, and threads may take tasks by themselves.
"""

from __future__ import annotations

import logging

from distributed import WorkerPlugin

from backhaul.dask.compat.names import WorkerStateMachine
from backhaul.dask.resource_pools.worker_state import SlottedWorkerState

__all__ = ["is_plain", "no_plugin_hears_of_transitions", "nobody_looks_on", "threads_suffice"]

#: Dask's own log; each task is in it at its lowest level
_logger = logging.getLogger("distributed.worker.state_machine")


def is_plain(state: WorkerStateMachine) -> bool:
    """Tell whether a state machine is of a known class, and no program follows its steps."""
    kind = type(state)
    return (kind is WorkerStateMachine or kind is SlottedWorkerState) and nobody_looks_on(state)


def nobody_looks_on(state: WorkerStateMachine) -> bool:
    """Tell whether no program checks or follows the steps of a state machine."""
    return (
        not state.validate
        and not state.transition_counter_max
        and not _logger.isEnabledFor(logging.DEBUG)
        and no_plugin_hears_of_transitions(state)
    )


def no_plugin_hears_of_transitions(state: WorkerStateMachine) -> bool:
    """Tell whether there is no plugin with a method `transition` of its own."""
    # At once, as threads look, too, while the event loop may be given one
    for plugin in tuple(state.plugins.values()):
        # On a plugin that is no `WorkerPlugin` too, or put on the object
        method = getattr(plugin, "transition", None)
        if getattr(method, "__func__", method) not in (None, WorkerPlugin.transition):
            return False
    return True


def threads_suffice(state: WorkerStateMachine) -> bool:
    """Tell whether no task waits for, or holds, more than a thread."""
    return not state.constrained._data and (
        type(state) is not SlottedWorkerState or state.constrained.slots.is_idle
    )
