"""Events and metrics of submitted tasks, for Python and for the engine."""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["note_collisions", "note_submission"]

logger = logging.getLogger(__name__)


def note_submission(
    scheduler: Any, client: str, start: float, *, new_tasks: int, collisions: int
) -> None:
    """Log that a task was submitted past Python, as `Submissions` does when one is.

    `start` is the time of its arrival, in seconds since 1970. New tasks were not known before, and
    collisions are known with other dependencies. The durations of the steps are not measured, and
    are zero in the event.
    """
    metrics = {
        "tasks": 1,
        "new_tasks": new_tasks,
        "key_collisions": collisions,
        "start_timestamp_seconds": start,
        "materialization_duration_seconds": 0.0,
        "ordering_duration_seconds": 0.0,
        "state_initialization_duration_seconds": 0.0,
        "duration_seconds": 0.0,
    }
    event = {
        "action": "update-graph",
        "stimulus_id": f"update-graph-{start}",
        "metrics": metrics,
        "status": "OK",
    }
    scheduler.log_event(["scheduler", client], event)
    scheduler.digest_metric("update-graph-duration", 0.0)


def note_collisions(count: int) -> None:
    """Warn of submitted tasks whose keys belong to other tasks already."""
    logger.warning(
        "%d keys of a graph are of tasks with other dependencies, which they keep", count
    )
