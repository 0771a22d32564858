"""Move the results of a worker to other workers before its nanny has to end it.

Dask computes the results of a worker again that its nanny has ended. Here the scheduler has the
peers of a worker whose memory cannot be relieved fetch the results that only this worker has, as it
does where a worker is retired. Results that were not fetched in time are computed again, as before.
The scheduler assigns no more tasks to a worker that is being retired, so it has to end: by its
nanny, whose act counts against the task that runs, or by `close` if its memory was released after
all. Its nanny starts it again.

Threads: `move_results` and `close` are called by the thread of a guard; all else runs in the
worker's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from concurrent.futures import Future
from time import time
from typing import Any, Final

from distributed import Status, Worker

from backhaul.dask.worker.lazy_collections import data_of
from backhaul.dask.worker.local_queue import event_loop_of

__all__ = ["close", "move_results"]

logger = logging.getLogger(__name__)

_RUNNING: Final = (Status.running, Status.paused)


def move_results(worker: Worker) -> Future[None] | None:
    """Begin to move the results of a worker to its peers.

    Returns
    -------
    concurrent.futures.Future or None
        Done once they have moved, or cannot. None if the worker has no results to lose, or is about
        to end, or has an actor, which stays where it is.
    """
    if not data_of(worker) or worker.state.actors or worker.status not in _RUNNING:
        return None
    return _begin(worker, _move(worker))


def close(worker: Worker) -> None:
    """Close a worker that `move_results` has begun to retire; its nanny starts it again."""
    _begin(worker, _close(worker))


def _begin(worker: Worker, work: Coroutine[Any, Any, None]) -> Future[None] | None:
    try:
        return asyncio.run_coroutine_threadsafe(work, event_loop_of(worker))
    except RuntimeError:
        # The event loop has ended.
        work.close()
        return None


async def _move(worker: Worker) -> None:
    identity = await worker.scheduler.identity()
    names = {status.name for status in _RUNNING}
    others = (each for address, each in identity["workers"].items() if address != worker.address)
    if worker.status not in _RUNNING or all(each["status"] not in names for each in others):
        return
    logger.warning(
        "Worker %s uses too much memory: its %d results move to other workers",
        worker.address,
        len(data_of(worker)),
    )
    await _retire(worker, remove=False)


async def _close(worker: Worker) -> None:
    # The scheduler takes a worker back if no other one can have its results.
    if worker.status is Status.closing_gracefully:
        with contextlib.suppress(OSError):
            await _retire(worker, remove=True)
        await worker.close(nanny=False, reason="backhaul-memory-guard")


async def _retire(worker: Worker, *, remove: bool) -> None:
    await worker.scheduler.retire_workers(
        workers=[worker.address],
        close_workers=False,
        remove=remove,
        stimulus_id=f"backhaul-memory-guard-{time()}",
    )
