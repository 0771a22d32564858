"""Has a worker look for tasks that may start, after it got resources back."""

from __future__ import annotations

from distributed import Worker
from distributed.metrics import time

from backhaul.dask.compat.names import UnpauseEvent

__all__ = ["start_more"]


def start_more(worker: Worker) -> None:
    """Start tasks that may start by now; the state machine of a paused worker starts none."""
    if worker.state.running:
        worker.handle_stimulus(UnpauseEvent(stimulus_id=f"resources-{time()}"))
