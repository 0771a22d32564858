"""Events of Dask's state machine of a worker, made field by field.

The constructors of Dask's classes do the same in more time, for each task.
"""

from __future__ import annotations

from typing import Any

from backhaul.dask.compat.names import ComputeTaskEvent, ExecuteSuccessEvent, time

__all__ = ["compute_task_event", "execute_success_event"]


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
    """Make an `ExecuteSuccessEvent`, as the class does; without an id it has one of now."""
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
