"""The transitions that every task of a worker goes through, each with the one that follows it.

Dask's `WorkerState._transitions` works off recommendations through a function that looks each
transition up, calls it, tells plugins, merges what it recommends and writes the log: four calls and
as many containers for a step that sets two attributes. The steps of a task that meets nothing
unusual are written out here, and what is recommended next for the same task follows at once, as it
is the next that Dask would take. State, log, counters, instructions and their order are those of
Dask's functions; any other transition is left to them.

Nothing here looks whether a state machine is one that this holds for: `plain_events` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from backhaul.dask.compat.names import (
    WorkerStateMachine,
    instructions,
    time,
)
from backhaul.dask.resource_pools.worker_state import SlottedWorkerState
from backhaul.dask.worker.plain_inputs import ask_dask, go_on_fetching, start_fetching
from backhaul.dask.worker.task_counts import count_transitions

__all__ = [
    "Instructions",
    "Recommendations",
    "execute",
    "recommended_starts",
    "remember",
    "started",
    "take_on",
    "threads_suffice",
    "work_off",
]

#: States by task: what is to become of it
Recommendations: TypeAlias = dict[Any, Any]
Instructions: TypeAlias = list[Any]

#: States of dependencies that are not released with the last task that needs them
_UNRELEASABLE: Final = frozenset(instructions.READY | instructions.PROCESSING | {"memory"})

_Execute = instructions.Execute
_ReleaseWorkerDataMsg = instructions.ReleaseWorkerDataMsg


def work_off(
    state: WorkerStateMachine,
    recommendations: Recommendations,
    stimulus_id: str,
    instructions: Instructions,
    initial: dict[Any, str],
) -> None:
    """Do what is recommended, and what follows from it; stands for `WorkerState._transitions`.

    Parameters
    ----------
    state : distributed.worker_state_machine.WorkerState
        The state machine. Nothing is validated, and no plugin is told.
    recommendations : dict
        Changed.
    stimulus_id : str
        The event that they come from.
    instructions : list
        Gains what the worker is to do.
    initial : dict of TaskState to str
        What tasks were that have gone on since the event came. Changed.
    """
    if recommendations:
        _work_off(state, recommendations, stimulus_id, instructions, initial)
    if state.data_needed:
        more, fetches = state._ensure_communicating(stimulus_id=stimulus_id)
        instructions += fetches
        _work_off(state, more, stimulus_id, instructions, initial)
    count_transitions(state.task_counter, initial)


def take_on(state: WorkerStateMachine, ts: Any, stimulus_id: str) -> Recommendations:
    """Bring a new task that depends on nothing from released to ready.

    Returns
    -------
    dict
        What is recommended then.
    """
    key = ts.key
    log = state.log.append
    state.transition_counter += 2
    log((key, "released", "waiting", "waiting", {key: "ready"}, stimulus_id, time()))
    ts.state = "ready"
    state.ready.add(ts)
    starts = recommended_starts(state)
    found = {each.key: finish for each, finish in starts.items()} if starts else {}
    log((key, "waiting", "ready", "ready", found, stimulus_id, time()))
    return starts


def remember(
    state: WorkerStateMachine,
    ts: Any,
    value: object,
    run_id: int,
    stimulus_id: str,
    instructions: Instructions,
) -> Recommendations:
    """Bring a task that executes to memory.

    Returns
    -------
    dict
        What is recommended then.
    """
    state.transition_counter += 1
    more, reports = state._transition_to_memory(
        ts, value, "task-finished", run_id=run_id, stimulus_id=stimulus_id
    )
    # Where the value cannot be stored, it is an error's.
    found = (
        {each.key: new if type(new) is str else new[0] for each, new in more.items()}
        if more
        else {}
    )
    state.log.append((ts.key, "executing", "memory", ts.state, found, stimulus_id, time()))
    instructions += reports
    return more


def _work_off(
    state: WorkerStateMachine,
    recommendations: Recommendations,
    stimulus_id: str,
    instructions: Instructions,
    initial: dict[Any, str],
) -> None:
    while recommendations:
        # The last, as in Dask.
        ts, finish = recommendations.popitem()
        start = ts.state
        if ts not in initial:
            initial[ts] = start
        target = finish if type(finish) is str else finish[0]
        if start == target:
            # As often with what a released task depended on
            continue
        step = _STEPS.get((start, target))
        if step is None or ts.resource_restrictions:
            step = ask_dask
        step(state, ts, finish, stimulus_id, recommendations, instructions)


def recommended_starts(state: WorkerStateMachine) -> Recommendations:
    """Recommend tasks to be executed, as `WorkerState._ensure_computing`."""
    if threads_suffice(state):
        return dict.fromkeys(started(state), "executing")
    recommendations: Recommendations = state._ensure_computing()[0]
    return recommendations


def threads_suffice(state: WorkerStateMachine) -> bool:
    """Tell whether no task waits for, or holds, more than a thread."""
    return not state.constrained._data and (
        type(state) is not SlottedWorkerState or state.constrained.slots.is_idle
    )


def started(state: WorkerStateMachine) -> list[Any]:
    """Take tasks that are to be executed from those that are ready, where threads suffice.

    Returns
    -------
    list of TaskState
        In order.
    """
    starts: list[Any] = []
    if state.running:
        executing, ready = state.executing, state.ready
        while len(executing) < state.nthreads and ready._data:
            ts = ready.pop()
            starts.append(ts)
            executing.add(ts)
    return starts


def _wait(
    state: WorkerStateMachine,
    ts: Any,
    finish: Any,
    stimulus_id: str,
    recommendations: Recommendations,
    instructions: Instructions,
) -> None:
    """Go from released to waiting, and on to ready where it waits for nothing."""
    state.transition_counter += 1
    ts.waiting_for_data.clear()
    fetched: Recommendations = {}
    for dependency in ts.dependencies:
        if dependency.state != "memory":
            ts.waiting_for_data.add(dependency)
            dependency.waiters.add(ts)
            fetched[dependency] = "fetch"
    ts.state = "waiting"
    state.waiting.add(ts)
    key = ts.key
    found = {dependency.key: "fetch" for dependency in fetched} if fetched else {key: "ready"}
    state.log.append((key, "released", "waiting", "waiting", found, stimulus_id, time()))
    if fetched:
        recommendations.update(fetched)
    else:
        _become_ready(state, ts, finish, stimulus_id, recommendations, instructions)


def _become_ready(
    state: WorkerStateMachine,
    ts: Any,
    _: Any,
    stimulus_id: str,
    recommendations: Recommendations,
    __: Instructions,
) -> None:
    """Go from waiting to ready."""
    state.transition_counter += 1
    ts.state = "ready"
    assert ts.priority is not None
    state.waiting.remove(ts)
    state.ready.add(ts)
    starts = recommended_starts(state)
    found = {each.key: finish for each, finish in starts.items()} if starts else {}
    state.log.append((ts.key, "waiting", "ready", "ready", found, stimulus_id, time()))
    if starts:
        recommendations.update(starts)


def _execute(
    state: WorkerStateMachine,
    ts: Any,
    _: Any,
    stimulus_id: str,
    __: Recommendations,
    instructions: Instructions,
) -> None:
    """Go from ready to executing."""
    execute(state, ts, stimulus_id, instructions)


def execute(
    state: WorkerStateMachine, ts: Any, stimulus_id: str, instructions: Instructions
) -> None:
    """Bring a task that is ready to be executed."""
    state.transition_counter += 1
    ts.state = "executing"
    key = ts.key
    instructions.append(_Execute(stimulus_id, key))
    state.log.append((key, "ready", "executing", "executing", {}, stimulus_id, time()))


def _remember(
    state: WorkerStateMachine,
    ts: Any,
    finish: tuple[str, Any, int],
    stimulus_id: str,
    recommendations: Recommendations,
    instructions: Instructions,
) -> None:
    """Go from executing to memory."""
    _memory, value, run_id = finish
    recommendations.update(remember(state, ts, value, run_id, stimulus_id, instructions))


def _release(
    state: WorkerStateMachine,
    ts: Any,
    finish: Any,
    stimulus_id: str,
    recommendations: Recommendations,
    instructions: Instructions,
) -> None:
    """Go from memory to released, and on to forgotten if nothing depends on it."""
    state.transition_counter += 1
    assert ts.nbytes is not None
    state.nbytes -= ts.nbytes
    _purge(state, ts)
    released = {
        dependency: "released"
        for dependency in ts.dependencies
        if not dependency.waiters and dependency.state not in _UNRELEASABLE
    }
    ts.state = "released"
    key = ts.key
    found = {dependency.key: "released" for dependency in released} if released else {}
    is_forgotten = not ts.dependents
    if is_forgotten:
        found[key] = "forgotten"
    instructions.append(_ReleaseWorkerDataMsg(stimulus_id, key))
    state.log.append((key, "memory", "released", "released", found, stimulus_id, time()))
    if released:
        recommendations.update(released)
    if is_forgotten:
        _forget(state, ts, finish, stimulus_id, recommendations, instructions, is_purged=True)


def _forget(
    state: WorkerStateMachine,
    ts: Any,
    _: Any,
    stimulus_id: str,
    recommendations: Recommendations,
    __: Instructions,
    *,
    is_purged: bool = False,
) -> None:
    """Go from released to forgotten."""
    state.transition_counter += 1
    forgotten: Recommendations = {}
    for dependency in ts.dependencies:
        dependency.dependents.discard(ts)
        if dependency.state == "released" and not dependency.dependents:
            forgotten[dependency] = "forgotten"
    if not is_purged:
        # Whatever has come to it since it was released
        _purge(state, ts)
    ts.state = "forgotten"
    key = ts.key
    state.tasks.pop(key, None)
    found = {dependency.key: "forgotten" for dependency in forgotten} if forgotten else {}
    state.log.append((key, "released", "forgotten", "forgotten", found, stimulus_id, time()))
    if forgotten:
        recommendations.update(forgotten)


def _purge(state: WorkerStateMachine, ts: Any) -> None:
    """Stand for `WorkerState._purge_state`: only what is there is taken away."""
    key = ts.key
    if type(state) is SlottedWorkerState:
        made_on = state.constrained.slots.made_on
        if made_on:
            made_on.pop(key, None)
    if key in state.data:
        del state.data[key]
    if state.actors:
        state.actors.pop(key, None)
    state.threads.pop(key, None)
    for worker in ts.who_has:
        state.has_what[worker].discard(key)
        state.data_needed[worker].discard(ts)
    ts.who_has.clear()
    for dependency in ts.dependencies:
        # To hash a task is a call.
        if dependency.waiters:
            dependency.waiters.discard(ts)
    if ts.waiting_for_data:
        ts.waiting_for_data.clear()
    ts.nbytes = None
    ts.previous = None
    ts.next = None
    ts.done = False
    ts.coming_from = None
    ts.exception = None
    ts.traceback = None
    ts.traceback_text = ""
    for tasks in (
        state.missing_dep_flight,
        state.executing,
        state.long_running,
        state.in_flight_tasks,
        state.waiting,
    ):
        if tasks:
            tasks.discard(ts)
    for heap in (state.ready, state.constrained):
        if heap._data:
            heap.discard(ts)


_Step: TypeAlias = Callable[
    [WorkerStateMachine, Any, Any, str, Recommendations, Instructions], None
]

#: By what a task is, and what it is to become
_STEPS: Final[dict[tuple[str, str], _Step]] = {
    ("released", "waiting"): _wait,
    ("released", "fetch"): start_fetching,
    ("flight", "fetch"): go_on_fetching,
    ("waiting", "ready"): _become_ready,
    ("ready", "executing"): _execute,
    ("executing", "memory"): _remember,
    ("memory", "released"): _release,
    ("released", "forgotten"): _forget,
}
