"""How many tasks of a worker are in each state, and for how long: what its metrics show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from backhaul.dask.private import TaskCounter, monotonic

__all__ = ["Change", "count_changes", "count_executed", "count_transitions"]


#: The prefix of a task's key, what it was, and what it is now; None if it is forgotten
Change: TypeAlias = tuple[str, str, str | None]


def count_transitions(counter: TaskCounter, initial: dict[Any, str]) -> None:
    """Count tasks and time by prefix and state; stands for `TaskCounter.transitions`.

    Parameters
    ----------
    counter : distributed.worker_state_machine.TaskCounter
        The counter of a state machine.
    initial : dict of TaskState to str
        The tasks that have gone on, and what they were before.
    """
    new_tasks = counter._new_tasks
    if not initial and not new_tasks:
        return
    current = _count_time(counter)
    for ts, before in initial.items():
        prefix = ts.prefix
        after = ts.state
        if after != "forgotten":
            name = prefix, after
            current[name] = current.get(name, 0) + 1
        if new_tasks and ts in new_tasks:
            new_tasks.discard(ts)
            continue
        _take_one(current, (prefix, before))
    for ts in new_tasks:
        current[ts.prefix, ts.state] += 1
    # Even where it is empty: in what order a set lists its members hangs on what it once had.
    new_tasks.clear()


def count_changes(counter: TaskCounter, changes: Iterable[Change]) -> None:
    """Count tasks that have gone on together.

    Parameters
    ----------
    counter : distributed.worker_state_machine.TaskCounter
        The counter of a state machine.
    changes : iterable of Change
        What has become of each.
    """
    current = _count_time(counter)
    for prefix, before, after in changes:
        if after is not None:
            name = prefix, after
            current[name] = current.get(name, 0) + 1
        _take_one(current, (prefix, before))


def count_executed(counter: TaskCounter, prefix: str, state: str) -> None:
    """Count a new task that was executed, for no time, and what it is now.

    Parameters
    ----------
    counter : distributed.worker_state_machine.TaskCounter
        The counter of a state machine.
    prefix : str
        Of the task's key.
    state : str
        What it is now. If it executes still, it has not been.
    """
    current = _count_time(counter)
    if state != "executing":
        counter._cumulative_elapsed[prefix, "executing"] += 0.0
    name = prefix, state
    current[name] = current.get(name, 0) + 1


def _count_time(counter: TaskCounter) -> Any:
    """Count the time until now; gives how many tasks there are of each name."""
    now = monotonic()
    current: Any = counter._current_count
    if current:
        assert counter._previous_ts is not None
        elapsed_s = now - counter._previous_ts
        cumulative = counter._cumulative_elapsed
        for name, count in current.items():
            cumulative[name] += elapsed_s * count
    counter._previous_ts = now
    return current


def _take_one(current: Any, name: tuple[str, str]) -> None:
    left = current[name] - 1
    if left > 0:
        current[name] = left
    else:
        assert left == 0
        # What deletes items of a Counter is written in Python.
        current.pop(name)
