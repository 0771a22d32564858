"""The events of a task that meets nothing unusual: computed, done, freed.

What each costs in Dask is told apart by the machinery around it: a copy for the log of stimuli by
the pickle protocol, a dispatch by class, and `plain_steps`, which this goes through. Everything
else, and every state machine that validates, counts its transitions, has plugins that hear of them
or is of a class of somebody else's, is Dask's own functions'.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from distributed import WorkerPlugin

from backhaul.dask.compat.names import (
    ComputeTaskEvent,
    ExecuteSuccessEvent,
    FindMissingEvent,
    FreeKeysEvent,
    StateMachineEvent,
    WorkerStateMachine,
    WorkerTaskState,
    time,
)
from backhaul.dask.resource_pools.worker_state import SlottedWorkerState
from backhaul.dask.worker.plain_inputs import found_inputs, link_inputs, note_holders
from backhaul.dask.worker.plain_steps import (
    Instructions,
    Recommendations,
    execute,
    remember,
    started,
    take_on,
    threads_suffice,
    work_off,
)

__all__ = [
    "compute_task_event",
    "execute_success_event",
    "free_keys",
    "is_plain",
    "logged_compute_task",
    "logged_success",
    "no_plugin_hears_of_transitions",
    "nobody_looks_on",
    "stepping_handle_stimulus",
]

#: Dask's own log; what it says of each task at its lowest level is left to Dask
_logger = logging.getLogger("distributed.worker.state_machine")


def stepping_handle_stimulus(original: Callable[..., Instructions]) -> Callable[..., Instructions]:
    """Make a `WorkerState.handle_stimulus` with a short way for the events of plain tasks."""

    def handle_stimulus(self: WorkerStateMachine, *stims: StateMachineEvent) -> Instructions:
        if not is_plain(self):
            return original(self, *stims)
        instructions: Instructions = []
        handled_s = time()
        log_stimulus = self.stimulus_log.append
        for stim in stims:
            kind = type(stim)
            #: What tasks were before they went on
            initial: dict[Any, str] = {}
            if kind is ComputeTaskEvent:
                log_stimulus(logged_compute_task(stim, handled_s))
                recommendations = _compute_task(self, stim, instructions, initial)
            elif kind is ExecuteSuccessEvent:
                log_stimulus(logged_success(stim, handled_s))
                recommendations = _execute_success(self, stim, instructions, initial)
            elif kind is FreeKeysEvent:
                stim.handled = handled_s
                log_stimulus(stim)
                recommendations = _free_keys(self, stim)
            else:
                if kind is not FindMissingEvent:
                    log_stimulus(stim.to_loggable(handled=handled_s))
                recommendations = _handle(self, stim, instructions)
            work_off(self, recommendations, stim.stimulus_id, instructions, initial)
        return instructions

    return handle_stimulus


def is_plain(state: WorkerStateMachine) -> bool:
    """Tell whether nobody sees more of a state machine than its state, log and instructions."""
    kind = type(state)
    return (kind is WorkerStateMachine or kind is SlottedWorkerState) and nobody_looks_on(state)


def nobody_looks_on(state: WorkerStateMachine) -> bool:
    """Tell whether steps of a state machine of a known class are neither checked nor told."""
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


def _handle(
    state: WorkerStateMachine, event: StateMachineEvent, instructions: Instructions
) -> Recommendations:
    """Have Dask handle an event."""
    recommendations, more = state._handle_event(event)
    instructions += more
    return recommendations.copy()


def _compute_task(
    state: WorkerStateMachine, event: Any, instructions: Instructions, initial: dict[Any, str]
) -> Recommendations:
    """Take on a task that is new here."""
    key = event.key
    if key in state.tasks or event.actor:
        return _handle(state, event, instructions)
    now_s = time()
    state.tasks[key] = ts = WorkerTaskState(key)
    state.task_counter._new_tasks.add(ts)
    state.log.append((key, "compute-task", "released", event.stimulus_id, now_s))
    ts.run_id = event.run_id
    ts.run_spec = event.run_spec
    ts.priority = (*event.priority, state.generation)
    state.generation -= 1
    ts.annotations = event.annotations
    ts.span_id = event.span_id
    ts.resource_restrictions = event.resource_restrictions
    if event.nbytes or event.who_has:
        link_inputs(state, ts, found_inputs(state, event.nbytes), event.stimulus_id, now_s)
        note_holders(state, event.who_has)
        return {ts: "waiting"}
    if event.resource_restrictions:
        return {ts: "waiting"}
    initial[ts] = "released"
    return take_on(state, ts, event.stimulus_id)


def _execute_success(
    state: WorkerStateMachine, event: Any, instructions: Instructions, initial: dict[Any, str]
) -> Recommendations:
    """Note that a task has succeeded, and start the next."""
    ts = state.tasks.get(event.key)
    if (
        ts is None
        or ts.state != "executing"
        or ts.resource_restrictions
        or not threads_suffice(state)
    ):
        return _handle(state, event, instructions)
    ts.done = True
    state.executed_count += 1
    state.executing.discard(ts)
    if state.long_running:
        state.long_running.discard(ts)
    starts = started(state)
    ts.startstops.append({"action": "compute", "start": event.start, "stop": event.stop})
    ts.nbytes = event.nbytes
    ts.type = event.type
    stimulus_id = event.stimulus_id
    initial[ts] = "executing"
    more = remember(state, ts, event.value, event.run_id, stimulus_id, instructions)
    if more or any(each.resource_restrictions for each in starts):
        return {**dict.fromkeys(starts, "executing"), **more}
    # The last first, as in Dask.
    for each in reversed(starts):
        initial[each] = "ready"
        execute(state, each, stimulus_id, instructions)
    return {}


def _free_keys(state: WorkerStateMachine, event: Any) -> Recommendations:
    """Let go of what the scheduler no longer needs."""
    keys = event.keys
    state.log.append(("free-keys", keys, event.stimulus_id, time()))
    tasks = state.tasks
    return {tasks[key]: "released" for key in keys if key in tasks}


def free_keys(state: WorkerStateMachine, event: Any) -> Instructions:
    """Handle a `FreeKeysEvent` of plain tasks that is in the log of stimuli already."""
    instructions: Instructions = []
    work_off(state, _free_keys(state, event), event.stimulus_id, instructions, {})
    return instructions


def compute_task_event(
    *,
    stimulus_id: str,
    key: Any,
    run_id: int,
    who_has: Any,
    nbytes: Any,
    priority: Any,
    run_spec: Any,
    resource_restrictions: Any,
    actor: bool,
    annotations: Any,
    span_id: str | None,
) -> Any:
    """Make a `ComputeTaskEvent` of the fields of its message, as the class does."""
    event = object.__new__(ComputeTaskEvent)
    event.stimulus_id = stimulus_id
    event.handled = None
    event.key = key
    event.run_id = run_id
    event.who_has = who_has
    event.nbytes = nbytes
    event.priority = tuple(priority) if isinstance(priority, list) else priority
    event.run_spec = run_spec
    event.resource_restrictions = resource_restrictions
    event.actor = actor
    event.annotations = annotations
    event.span_id = span_id
    return event


def execute_success_event(
    key: Any,
    run_id: int,
    value: object,
    start_s: float,
    stop_s: float,
    nbytes: int,
    kind: type | None,
    stimulus_id: str | None = None,
) -> Any:
    """Make an `ExecuteSuccessEvent` of now, as the class does; or of when it was told."""
    event = object.__new__(ExecuteSuccessEvent)
    event.stimulus_id = f"task-finished-{time()}" if stimulus_id is None else stimulus_id
    event.handled = None
    event.key = key
    event.run_id = run_id
    event.value = value
    event.start = start_s
    event.stop = stop_s
    event.nbytes = nbytes
    event.type = kind
    return event


def logged_compute_task(event: Any, handled_s: float) -> Any:
    """Copy an event without its task, as `ComputeTaskEvent.to_loggable`."""
    logged = object.__new__(ComputeTaskEvent)
    logged.stimulus_id = event.stimulus_id
    logged.handled = handled_s
    logged.key = event.key
    logged.run_id = event.run_id
    logged.who_has = event.who_has
    logged.nbytes = event.nbytes
    logged.priority = event.priority
    logged.run_spec = None
    logged.resource_restrictions = event.resource_restrictions
    logged.actor = event.actor
    logged.annotations = event.annotations
    logged.span_id = event.span_id
    return logged


def logged_success(event: Any, handled_s: float) -> Any:
    """Copy an event without its value, as `ExecuteSuccessEvent.to_loggable`."""
    logged = object.__new__(ExecuteSuccessEvent)
    logged.stimulus_id = event.stimulus_id
    logged.handled = handled_s
    logged.key = event.key
    logged.run_id = event.run_id
    logged.value = None
    logged.start = event.start
    logged.stop = event.stop
    logged.nbytes = event.nbytes
    logged.type = event.type
    return logged
