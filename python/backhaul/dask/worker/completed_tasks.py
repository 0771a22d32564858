"""A plain task that has come and ended before the state machine hears of it: all of it in one step.

A thread has run the task and told the scheduler (`backhaul.dask.worker.early_execution`). What the
state machine goes through then is certain: released, waiting, ready, executing, memory, and nobody
is to do anything for it. Written out here in one function, over the same objects, are the two
events, five transitions and seven entries of the log that `plain_events` and `plain_steps` make of
that. If anything is not as it has to be, nothing is done, and they handle the two events.
"""

from __future__ import annotations

from typing import Any

from backhaul.dask.compat.names import WorkerStateMachine, WorkerTaskState, time
from backhaul.dask.worker.plain_events import is_plain, logged_compute_task, logged_success
from backhaul.dask.worker.plain_inputs import link_inputs, note_holders
from backhaul.dask.worker.plain_steps import Instructions, threads_suffice, work_off
from backhaul.dask.worker.task_counts import count_executed

__all__ = ["live_through", "pass_through"]


def live_through(
    state: WorkerStateMachine, event: Any, done: Any, started_s: float | None
) -> Instructions | None:
    """Take a task that has ended well from its beginning to memory.

    Parameters
    ----------
    state : distributed.worker_state_machine.WorkerState
        The state machine.
    event : ComputeTaskEvent
        That there is such a task.
    done : ExecuteSuccessEvent
        That it has succeeded. The scheduler has been told.
    started_s : float, optional
        When it began.

    Returns
    -------
    list of Instruction or None
        What is to be done, nothing as a rule; None if the state machine has to be told of the two
        events one after the other, and nothing has changed.
    """
    dependencies = _dependencies(state, event)
    if dependencies is None:
        return None
    return pass_through(state, event, done, started_s, dependencies)


def pass_through(
    state: WorkerStateMachine,
    event: Any,
    done: Any,
    started_s: float | None,
    dependencies: list[Any],
) -> Instructions:
    """Do what `live_through` does, of a task that is certain to be executed at once.

    Parameters
    ----------
    state : distributed.worker_state_machine.WorkerState
        The state machine.
    event : ComputeTaskEvent
        That there is such a task.
    done : ExecuteSuccessEvent
        That it has succeeded.
    started_s : float, optional
        When it began.
    dependencies : list of TaskState
        What it depends on, all in memory.

    Returns
    -------
    list of Instruction
        What is to be done.
    """
    key, stimulus_id = event.key, event.stimulus_id
    now_s = time()
    log = state.log.append
    state.stimulus_log.append(logged_compute_task(event, now_s))
    state.tasks[key] = ts = WorkerTaskState(key)
    log((key, "compute-task", "released", stimulus_id, now_s))
    ts.run_id = event.run_id
    ts.run_spec = event.run_spec
    ts.priority = (*event.priority, state.generation)
    state.generation -= 1
    ts.annotations = event.annotations
    ts.span_id = event.span_id
    ts.resource_restrictions = event.resource_restrictions
    if dependencies:
        link_inputs(state, ts, dependencies, stimulus_id, now_s)
        note_holders(state, event.who_has)
    log((key, "released", "waiting", "waiting", {key: "ready"}, stimulus_id, now_s))
    log((key, "waiting", "ready", "ready", {key: "executing"}, stimulus_id, now_s))
    log((key, "ready", "executing", "executing", {}, stimulus_id, now_s))
    # It would have been there; in what order a set lists its members hangs on what it once had.
    state.ready._inc += 1
    state.executing.add(ts)
    state.executing.discard(ts)
    state.transition_counter += 4
    ts.start_time = started_s
    ts.state = "executing"
    now_s = time()
    state.stimulus_log.append(logged_success(done, now_s))
    ts.done = True
    state.executed_count += 1
    ts.startstops.append({"action": "compute", "start": done.start, "stop": done.stop})
    ts.nbytes = done.nbytes
    ts.type = done.type
    stimulus_id = done.stimulus_id
    # As if nobody were to be told.
    more, _ = state._transition_to_memory(
        ts, done.value, False, run_id=done.run_id, stimulus_id=stimulus_id
    )
    if not more:
        log((key, "executing", "memory", "memory", {}, stimulus_id, now_s))
        count_executed(state.task_counter, ts.prefix, "memory")
        return []
    # The value cannot be stored.
    found = {each.key: new[0] for each, new in more.items()}
    log((key, "executing", "memory", "executing", found, stimulus_id, now_s))
    count_executed(state.task_counter, ts.prefix, "executing")
    instructions: Instructions = []
    work_off(state, more, stimulus_id, instructions, {ts: "executing"})
    return instructions


def _dependencies(state: WorkerStateMachine, event: Any) -> list[Any] | None:
    """Give what a task depends on; None unless it would be executed at once."""
    tasks = state.tasks
    if (
        event.key in tasks
        or event.actor
        or event.annotations
        or event.resource_restrictions
        or not state.running
        or state.ready._data
        or len(state.executing) >= state.nthreads
        or state.data_needed
        or state.task_counter._new_tasks
        or not is_plain(state)
        or not threads_suffice(state)
    ):
        return None
    found = []
    who_has = event.who_has
    for key in event.nbytes:
        ts = tasks.get(key)
        if ts is None or ts.state != "memory" or key not in who_has:
            return None
        found.append(ts)
    return found if len(found) == len(who_has) else None
