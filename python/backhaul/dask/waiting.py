"""Waiting for many futures of a client at little cost for each.

`Client.gather` waits for every future by a task of its own, each with a timeout that is never set
and an entry in a tornado iterator. Tasks remain; the rest goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

from backhaul.dask.private import FutureState

__all__ = ["wait_for_all", "wait_for_state"]


async def wait_for_state(state: FutureState) -> None:
    """Wait until a future is finished, failed or cancelled."""
    await state._get_event().wait()


async def wait_for_all(
    args: Iterable[Awaitable[Any]], quiet_exceptions: type | tuple[type, ...] = ()
) -> list[Any]:
    """Wait for all, or for the first that raises, whose exception comes through.

    Parameters
    ----------
    args : iterable of awaitable
        What to wait for. None is cancelled.
    quiet_exceptions : type or tuple of type
        Exceptions that are not logged if others raise them later.

    Returns
    -------
    list
        The results, in the order of `args`.
    """
    event_loop = asyncio.get_running_loop()
    tasks = [asyncio.ensure_future(arg) for arg in args]
    if not tasks:
        return []
    outcome: asyncio.Future[None] = event_loop.create_future()
    left = len(tasks)

    def finished(task: asyncio.Future[Any]) -> None:
        nonlocal left
        left -= 1
        if outcome.done():
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, quiet_exceptions):
                event_loop.call_exception_handler(
                    {"message": "Task exception came too late", "exception": error, "task": task}
                )
        elif task.cancelled():
            outcome.cancel()
        elif (error := task.exception()) is not None:
            outcome.set_exception(error)
        elif left == 0:
            outcome.set_result(None)

    for task in tasks:
        task.add_done_callback(finished)
    await outcome
    return [task.result() for task in tasks]
