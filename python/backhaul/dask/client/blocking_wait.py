"""`Future.result` in a thread that may block, without the event loop of the client.

In Dask, a coroutine on that event loop waits, gathers the result and wakes the thread. If the
client has a result cache (`backhaul.dask.client.result_cache`), the thread waits for the state of
the future without the event loop (`backhaul.dask.client.thread_wait`) and reads the result from the
cache. All other cases take Dask's path: a failure, a cancellation, a result that is not in the
cache, an asynchronous client.
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
    """Make a `Future.result` that needs no event loop for a result in the cache."""

    def result(self: Future[Any], timeout: Any = None) -> Any:
        if value := _held_result(self, timeout):
            return value[0]
        # A copy of Dask's method, because a call of that would add a frame to shortened tracebacks.
        self._verify_initialized()
        with shorten_traceback():
            return self.client.sync(self._result, callback_timeout=timeout)

    return result


def _held_result(future: Future[Any], timeout: Any) -> tuple[Any, ...]:
    """Wait for a result, if this thread may, and return it alone; empty if it is not cached."""
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
    # After a restart the client may have another future of this key, with another result.
    return held.value_of(future.key) if client.futures.get(future.key) is state else ()


def may_block(client: Client) -> bool:
    """Tell whether Dask's client would block this thread until its event loop has a result."""
    if asyncio._get_running_loop() is not None:
        # Dask returns a coroutine of an asynchronous client, or raises an error.
        return False
    loop: Any = client.loop
    return bool(loop.asyncio_loop.is_running())
