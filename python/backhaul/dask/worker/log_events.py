"""Events that a task logs, in their order with the result of the task.

Dask's `Worker.log_event` hands the event to the event loop, which also sends the result, so the
scheduler receives the event first. A thread of a worker that sends results without its event loop
(`backhaul.dask.worker.early_execution`) sends events the same way, to keep that order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from backhaul.dask.comm.threaded_stream import SharedBatchedSend
from backhaul.dask.compat.names import Worker, is_dumpable

__all__ = ["ordered_log_event"]


def ordered_log_event(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Worker.log_event` by which a thread puts the event ahead of its next result."""

    def log_event(self: Worker, topic: str | Collection[str], msg: Any) -> None:
        stream: Any = self.batched_stream
        if (
            type(stream) is not SharedBatchedSend
            or self.thread_id == threading.get_ident()
            or not is_dumpable(msg)
            or not stream.send_in_thread({"op": "log-event", "topic": topic, "msg": msg})
        ):
            original(self, topic, msg)

    return log_event
