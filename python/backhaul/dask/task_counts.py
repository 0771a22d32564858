"""How many tasks of a worker are in each state, and for how long: what its metrics show."""

from __future__ import annotations

from typing import Any

from backhaul.dask.private import TaskCounter, monotonic

__all__ = ["count_transitions"]


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
    now = monotonic()
    current: Any = counter._current_count
    if current:
        assert counter._previous_ts is not None
        elapsed_s = now - counter._previous_ts
        cumulative = counter._cumulative_elapsed
        for name, count in current.items():
            cumulative[name] += elapsed_s * count
    counter._previous_ts = now
    for ts, before in initial.items():
        prefix = ts.prefix
        after = ts.state
        if after != "forgotten":
            name = prefix, after
            current[name] = current.get(name, 0) + 1
        if new_tasks and ts in new_tasks:
            new_tasks.discard(ts)
            continue
        name = prefix, before
        left = current[name] - 1
        if left > 0:
            current[name] = left
        else:
            assert left == 0
            # What deletes items of a Counter is written in Python.
            current.pop(name)
    for ts in new_tasks:
        current[ts.prefix, ts.state] += 1
    # Even where it is empty: in what order a set lists its members hangs on what it once had.
    new_tasks.clear()
