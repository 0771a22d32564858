"""Task counts and seconds by prefix and state, as a worker's metrics show them.

Dask adds up the time of all groups for each event, so that a task costs as much as there are
prefixes of tasks on the worker. Where there are many groups, the time of a group is booked when
its count changes: a group of `n` tasks has ``_cumulative_elapsed + n * (t - _previous_ts)`` seconds
at the time `t`, which is also the sum that Dask's own methods compute. So for each task that comes,
the seconds since `_previous_ts` are subtracted, and added for each task that goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from backhaul.dask.compat.names import TaskCounter, monotonic

__all__ = [
    "Change",
    "count_changes",
    "count_executed",
    "count_transitions",
    "quick_transitions",
]


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
    current, ahead_s = _count_time(counter)
    counts: dict[Any, int] = {}
    for ts, before in initial.items():
        prefix = ts.prefix
        after = ts.state
        if after != "forgotten":
            _add_one(current, (prefix, after), counts)
        if new_tasks and ts in new_tasks:
            new_tasks.discard(ts)
            continue
        _take_one(current, (prefix, before), counts)
    for ts in new_tasks:
        _add_one(current, (ts.prefix, ts.state), counts)
    # Even where it is empty: in what order a set lists its members hangs on what it once had.
    new_tasks.clear()
    _book(counter, counts, ahead_s)


def quick_transitions(_: Any) -> Callable[[TaskCounter, dict[Any, str]], None]:
    """Make `TaskCounter.transitions` for the events that Dask's own functions handle."""

    def transitions(self: TaskCounter, prev_states: dict[Any, str]) -> None:
        count_transitions(self, prev_states)

    return transitions


def count_changes(counter: TaskCounter, changes: Iterable[Change]) -> None:
    """Count tasks that have gone on together.

    Parameters
    ----------
    counter : distributed.worker_state_machine.TaskCounter
        The counter of a state machine.
    changes : iterable of Change
        What has become of each.
    """
    current, ahead_s = _count_time(counter)
    counts: dict[Any, int] = {}
    for prefix, before, after in changes:
        if after is not None:
            _add_one(current, (prefix, after), counts)
        _take_one(current, (prefix, before), counts)
    _book(counter, counts, ahead_s)


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
    current, ahead_s = _count_time(counter)
    if state != "executing":
        counter._cumulative_elapsed[prefix, "executing"] += 0.0
    counts: dict[Any, int] = {}
    _add_one(current, (prefix, state), counts)
    _book(counter, counts, ahead_s)


def _count_time(counter: TaskCounter) -> tuple[Any, float]:
    """Count the time until now, unless there are many groups.

    Returns
    -------
    tuple of Counter and float
        Tasks of each group; and the seconds since the time was counted.
    """
    now = monotonic()
    current: Any = counter._current_count
    if current:
        assert counter._previous_ts is not None
        elapsed_s = now - counter._previous_ts
        if len(current) > _COUNTED_EACH_MAX and elapsed_s < _COUNTED_WITHIN_S:
            return current, elapsed_s
        cumulative = counter._cumulative_elapsed
        for name, count in current.items():
            cumulative[name] += elapsed_s * count
    counter._previous_ts = now
    return current, 0.0


def _book(counter: TaskCounter, counts: dict[Any, int], ahead_s: float) -> None:
    """Book the seconds of groups that have changed; `counts` has their tasks of before."""
    current: Any = counter._current_count
    if ahead_s or len(current) > _COUNTED_EACH_MAX:
        cumulative = counter._cumulative_elapsed
        for name, count in counts.items():
            cumulative[name] -= (current.get(name, 0) - count) * ahead_s


def _add_one(current: Any, name: tuple[str, str], counts: dict[Any, int]) -> None:
    count = current.get(name, 0)
    counts.setdefault(name, count)
    current[name] = count + 1


def _take_one(current: Any, name: tuple[str, str], counts: dict[Any, int]) -> None:
    count = current[name]
    before = counts.setdefault(name, count)
    if count > 1:
        current[name] = count - 1
        return
    assert count == 1
    # The method of `Counter` that deletes items is written in Python.
    current.pop(name)
    if not before:
        # A group that has come and gone in one event has no time.
        del counts[name]


#: Up to this many groups, the time of all is counted for each event, as Dask does
_COUNTED_EACH_MAX: Final = 64
#: Seconds after which the time of all groups is counted, so that products stay small, and with them
#: the error of their sums
_COUNTED_WITHIN_S: Final = 1.0
