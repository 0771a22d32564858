"""Conditions under which a core may have the state of a scheduler, and the core's settings."""

from __future__ import annotations

from typing import Any

from dask.utils import parse_timedelta
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.diagnostics.progress import MultiProgress, Progress
from distributed.diagnostics.task_stream import TaskStreamPlugin

import dask
from backhaul.dask.compat.names import (
    DEFAULT_DATA_SIZE,
    ShuffleSchedulerPlugin,
    Status,
    WorkStealing,
)
from backhaul.dask.placement.link_placement import LinkPlacement
from backhaul.dask.resource_pools.scheduler_slots import slots_of
from backhaul.dask.scheduler.core.handler_overrides import program_handler, program_method
from backhaul.dask.scheduler.core.import_state import are_amounts, obstacle

__all__ = ["WATCHERS", "WATCHERS_OF_ENDS", "may_stay", "refusal", "settings_of"]

#: Plugins for transitions or graphs whose work the core or its caller does
_UNDERSTOOD = (LinkPlacement, WorkStealing, ShuffleSchedulerPlugin)

#: Plugins that need to be notified of ended runs and of tasks that fail or are forgotten
WATCHERS_OF_ENDS = (Progress, MultiProgress)

#: Plugins that need to be notified only of ends, and may be notified later; no user's classes
WATCHERS = (TaskStreamPlugin, *WATCHERS_OF_ENDS)

#: States of a scheduler that will have no more tasks
_ENDED = (Status.closing, Status.closed, Status.failed)

#: Number of transitions that the core keeps if Dask keeps all
_TRANSITIONS_KEPT = 100_000


def refusal(scheduler: Any) -> str | None:
    """Return why a core may not have the state of a scheduler now; None if it may."""
    reason = obstacle(scheduler)
    if reason is not None:
        return reason
    if scheduler.status in _ENDED:
        return "the scheduler closes"
    if scheduler.unrunnable and any(map(_is_joining, scheduler.stream_comms.values())):
        # The core can send the waiting tasks only to a worker that joins while it has the state.
        return "a worker joins, and tasks wait for one"
    if scheduler.transition_counter_max:
        return "transitions are counted"
    if scheduler.no_workers_timeout == 0:
        # Dask's timer raises then, each time.
        return "distributed.scheduler.no-workers-timeout is zero"
    if not all(are_amounts(ws.resources) for ws in scheduler.workers.values()):
        return "resources are no numbers"
    for plugin in scheduler.plugins.values():
        if isinstance(plugin, LinkPlacement) and scheduler.tasks:
            # A core does not take over promises and plans.
            return "tasks are placed by what links cost"
        if isinstance(plugin, ShuffleSchedulerPlugin) and plugin.active_shuffles:
            return "a shuffle is active"
        if not may_stay(plugin):
            return f"the plugin {type(plugin).__name__} listens"
    operation = program_handler(scheduler)
    if operation is not None:
        return f"a program handles {operation} by itself"
    method = program_method(scheduler)
    if method is not None:
        return f"a program has replaced the method {method}"
    return None


def _is_joining(stream: Any) -> bool:
    return stream.comm is None


def may_stay(plugin: Any) -> bool:
    """Tell whether a plugin has all that it asks for while a core has the state."""
    return isinstance(plugin, _UNDERSTOOD) or type(plugin) in WATCHERS or not _listens(plugin)


def _listens(plugin: Any) -> bool:
    if getattr(plugin, "transition", None) is not None:
        own = getattr(type(plugin), "transition", None)
        if own is not SchedulerPlugin.transition:
            return True
    own = getattr(type(plugin), "update_graph", None)
    return own is not None and own is not SchedulerPlugin.update_graph


def settings_of(scheduler: Any) -> dict[str, Any]:
    """Return the user's settings of a scheduler's decisions, in the form for a core."""
    durations = dask.config.get("distributed.scheduler.default-task-durations")
    kept = scheduler.transition_log.maxlen
    slots = slots_of(scheduler)
    return {
        "recent_transitions_max": _TRANSITIONS_KEPT if kept is None else kept,
        "beside_tasks_max": None if slots is None else slots.beside_max,
        "worker_saturation": float(scheduler.WORKER_SATURATION),
        "rootish_dependencies": scheduler.rootish_tg_threshold,
        "rootish_dependency_tasks": scheduler.rootish_tg_dependencies_threshold,
        "unknown_duration_s": scheduler.UNKNOWN_TASK_DURATION,
        "known_durations_s": [(name, parse_timedelta(s)) for name, s in durations.items()],
        "allowed_failures": scheduler.allowed_failures,
        "no_workers_timeout_s": scheduler.no_workers_timeout,
        "bandwidth_bytes_per_s": float(scheduler.bandwidth),
        "default_data_bytes": DEFAULT_DATA_SIZE,
        "refuse_over_memory": bool(dask.config.get("distributed.worker.memory.terminate")),
    }
