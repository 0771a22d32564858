"""`Future.result` in a thread that may block, without the event loop of the client.

Dask's way is a coroutine on that event loop, which waits there, gathers, and wakes the thread.
Where the client holds small results (`backhaul.dask.client.result_cache`), the thread waits for the
state of the future by itself (`backhaul.dask.client.thread_wait`) and takes the result from there.
Whatever is not that, a failure, a cancellation, a result that is not held, an asynchronous client,
goes Dask's way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dask.utils import parse_timedelta

from backhaul.dask.client.result_cache import held_by
from backhaul.dask.client.send import send_what_is_queued
from backhaul.dask.client.thread_wait import wait_in_thread
from backhaul.dask.compat.names import Client, Future, shorten_traceback

__all__ = ["blocking_result", "may_block"]


def blocking_result(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Future.result` that needs no event loop for a result that is held."""

    def result(self: Future[Any], timeout: Any = None) -> Any:
        if value := _held_result(self, timeout):
            return value[0]
        # As Dask's own: a call of it would be one frame more in tracebacks that are to be short.
        self._verify_initialized()
        with shorten_traceback():
            return self.client.sync(self._result, callback_timeout=timeout)

    return result


def _held_result(future: Future[Any], timeout: Any) -> tuple[Any, ...]:
    """Wait for a result, if this thread may, and give it alone; nothing if it is not held."""
    client, state = future._client, future._state
    if client is None or state is None or not may_block(client):
        return ()
    held = held_by(client)
    if held is None:
        return ()
    if not state.done():
        timeout_s = parse_timedelta(timeout, "s")
        has_asked = send_what_is_queued(client)
        if not wait_in_thread(client, (state,), timeout_s, awake=has_asked):
            raise TimeoutError(f"timed out after {timeout_s} s.")
    # Not of another future of that key, as there is after a restart.
    return held.value_of(future.key) if client.futures.get(future.key) is state else ()


def may_block(client: Client) -> bool:
    """Tell whether Dask would block this thread, too, until the event loop of a client is done.

    Parameters
    ----------
    client : distributed.Client
        The client.
    """
    if asyncio._get_running_loop() is not None:
        # A coroutine for an asynchronous client, or an error: Dask's to say.
        return False
    loop: Any = client.loop
    return bool(loop.asyncio_loop.is_running())
