"""What a worker's state machine notes of the inputs of a task, written out for those with many.

For each input of each task that comes, Dask calls a function that looks whether the input is known,
one that notes who has it, and one that tries to fetch it although it is on its way. Of fifty tasks
that each need the same fifty results the worker does that 2,500 times. The same is done here in a
loop each. State, log, counters and their order are those of Dask's functions.

Nothing here looks whether a state machine is one that this holds for: `plain_events` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from backhaul.dask.compat.names import WorkerStateMachine, WorkerTaskState, time

__all__ = [
    "ask_dask",
    "found_inputs",
    "go_on_fetching",
    "link_inputs",
    "note_holders",
    "start_fetching",
]


def found_inputs(state: WorkerStateMachine, nbytes: Mapping[Any, int]) -> list[Any]:
    """Give the inputs of a task that has come; those that are new here are made."""
    tasks, is_new = state.tasks, state.task_counter._new_tasks.add
    found = []
    for key, size_bytes in nbytes.items():
        ts = tasks.get(key)
        if ts is None:
            tasks[key] = ts = WorkerTaskState(key)
            is_new(ts)
        if ts.state != "memory":
            ts.nbytes = size_bytes
        found.append(ts)
    return found


def link_inputs(
    state: WorkerStateMachine, ts: Any, inputs: Iterable[Any], stimulus_id: str, now_s: float
) -> None:
    """Note that a task depends on its inputs, as `WorkerState._ensure_task_exists` and its caller.

    Parameters
    ----------
    state : distributed.worker_state_machine.WorkerState
        The state machine.
    ts : TaskState
        The task; it has its priority.
    inputs : iterable of TaskState
        In the order of the message.
    stimulus_id : str
        The event that it came with.
    now_s : float
        When that is.
    """
    log, needs, priority = state.log.append, ts.dependencies.add, ts.priority
    for each in inputs:
        if not each.priority:
            each.priority = priority
        log((each.key, "ensure-task-exists", each.state, stimulus_id, now_s))
        needs(each)
        each.dependents.add(ts)


def note_holders(state: WorkerStateMachine, who_has: Mapping[Any, Collection[str]]) -> None:
    """Note which other workers have inputs, as `WorkerState._update_who_has`."""
    tasks, address = state.tasks, state.address
    for key, workers in who_has.items():
        ts = tasks.get(key)
        if ts is None:
            continue
        known = ts.who_has
        if len(workers) == 1:
            # Nearly always what it was
            (worker,) = workers
            if (not known) if worker == address else (len(known) == 1 and worker in known):
                continue
        others = set(workers)
        others.discard(address)
        if known == others:
            continue
        for worker in known - others:
            state.has_what[worker].remove(key)
            if ts.state == "fetch":
                state.data_needed[worker].remove(ts)
        for worker in others - known:
            state.has_what[worker].add(key)
            if ts.state == "fetch":
                state.data_needed[worker].add(ts)
        ts.who_has = others


def start_fetching(
    state: WorkerStateMachine,
    ts: Any,
    finish: Any,
    stimulus_id: str,
    recommendations: dict[Any, Any],
    instructions: list[Any],
) -> None:
    """Go from released to fetch."""
    if not ts.who_has:
        ask_dask(state, ts, finish, stimulus_id, recommendations, instructions)
        return
    state.transition_counter += 1
    ts.state = "fetch"
    ts.done = False
    state.fetch_count += 1
    for worker in ts.who_has:
        state.data_needed[worker].add(ts)
    state.log.append((ts.key, "released", "fetch", "fetch", {}, stimulus_id, time()))


def go_on_fetching(
    state: WorkerStateMachine,
    ts: Any,
    finish: Any,
    stimulus_id: str,
    recommendations: dict[Any, Any],
    instructions: list[Any],
) -> None:
    """Stay in flight, as what is on its way does when another task needs it."""
    if ts.done:
        ask_dask(state, ts, finish, stimulus_id, recommendations, instructions)
        return
    state.transition_counter += 1
    state.log.append((ts.key, "flight", "fetch", "flight", {}, stimulus_id, time()))


def ask_dask(
    state: WorkerStateMachine,
    ts: Any,
    finish: Any,
    stimulus_id: str,
    recommendations: dict[Any, Any],
    instructions: list[Any],
) -> None:
    """Leave a transition to Dask's function."""
    more, more_instructions = state._transition(ts, finish, stimulus_id=stimulus_id)
    recommendations.update(more)
    instructions += more_instructions
