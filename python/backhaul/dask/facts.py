"""What must hold of a release of ``distributed`` before we reach into its scheduler.

``distributed`` is pinned, but an installed release may be another one. What is checked here is
what no import would show: a name that has gone, a method with other arguments, a method that is no
longer called. A part of ours whose facts do not hold stays out, and Dask works as it comes.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import distributed.stealing
from distributed import Scheduler

from backhaul.dask.private import SchedulerState, TaskFinishedMsg, TaskState, WorkerState
from backhaul.dask.recall import GIVEN_UP

__all__ = ["heartbeat_difference", "queue_difference"]

_FINISHED_PARAMETERS = ("self", "key", "worker", "stimulus_id", "msg")
_TRANSITIONS_PARAMETERS = (
    "self",
    "recommendations",
    "client_msgs",
    "worker_msgs",
    "stimulus_id",
)
_WORKER_NAMES = frozenset(
    {"executing", "long_running", "metrics", "nbytes", "processing", "task_prefix_count"}
)


def queue_difference(scheduler: Scheduler) -> str | None:
    """Find what the scheduler has otherwise than `backhaul.dask.work_in_hand` expects.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.

    Returns
    -------
    str or None
        The first difference, in words; None if there is none.
    """
    for holds, difference in _queue_facts(scheduler):
        try:
            if not holds():
                return difference
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return f"{difference} ({error!r})"
    return None


def heartbeat_difference(scheduler: Scheduler) -> str | None:
    """Find what the scheduler has otherwise than `backhaul.dask.transfers` expects.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.

    Returns
    -------
    str or None
        The difference, in words; None if there is none.
    """
    handler = scheduler.handlers.get("heartbeat_worker")
    if handler is None:
        return "no handler of heartbeats"
    parameters = inspect.signature(handler).parameters
    by_name = {name for name, found in parameters.items() if found.kind is found.KEYWORD_ONLY}
    if len(by_name) < len(parameters) or not {"address", "metrics"} <= by_name:
        return "another handler of heartbeats"
    return None


def _queue_facts(scheduler: Scheduler) -> list[tuple[Callable[[], object], str]]:
    table: Any = SchedulerState._TRANSITIONS_TABLE
    decide = "decide_worker_rootish_queuing_enabled"
    return [
        (
            lambda: (
                _parameters(Scheduler.handle_task_finished) == _FINISHED_PARAMETERS
                and "task-finished" in scheduler.stream_handlers
            ),
            "another handler of task-finished",
        ),
        (
            lambda: (
                {"nbytes", "startstops"}
                <= {field.name for field in dataclasses.fields(TaskFinishedMsg)}
            ),
            "other fields in task-finished",
        ),
        (
            lambda: (
                _parameters(getattr(Scheduler, decide)) == ("self",)
                and decide in table["queued", "processing"].__code__.co_names
            ),
            "another way to choose a worker for a queued task",
        ),
        (
            lambda: (
                _parameters(Scheduler.transitions) == ("self", "recommendations", "stimulus_id")
                and _parameters(Scheduler._transitions) == _TRANSITIONS_PARAMETERS
                and _parameters(Scheduler.send_all) == ("self", "client_msgs", "worker_msgs")
            ),
            "another way to make several transitions",
        ),
        (
            lambda: (
                "stimulus_queue_slots_maybe_opened"
                in Scheduler.handle_task_finished.__code__.co_names
            ),
            "another moment at which the queue is looked at",
        ),
        (
            lambda: callable(scheduler.queued.peek) and len(scheduler.queued) >= 0,
            "another kind of queue",
        ),
        (
            lambda: (
                set(WorkerState.__slots__) >= _WORKER_NAMES
                and {"_queueable", "processing_on", "run_id"} <= set(TaskState.__slots__)
            ),
            "other fields of a task or worker",
        ),
        (
            lambda: distributed.stealing._WORKER_STATE_CONFIRM == GIVEN_UP,
            "other answers to a steal-request",
        ),
    ]


def _parameters(function: Callable[..., object]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)
