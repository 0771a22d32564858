"""Choose processes of workers that may be killed."""

from __future__ import annotations

from typing import Any

from distributed import Status

__all__ = ["running_pid"]


def running_pid(nanny: Any) -> int | None:
    """Return the process of a worker whose nanny knows that it runs, None if there is none.

    A worker that is killed while it starts can leave its nanny waiting for ever, over any protocol:
    the wait for the first process takes the message of the second from their common queue
    (`distributed.nanny.WorkerProcess._wait_until_connected`).
    """
    process = nanny.process
    return process.pid if process is not None and process.status == Status.running else None
