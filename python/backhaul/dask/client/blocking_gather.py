"""`Client.gather` of a list of futures, in a thread that may block, without the event loop.

As `backhaul.dask.client.blocking_wait` has it for one future: the thread waits for all states by
itself, and takes the results from those that the client holds. If one is not held, or fails, all
goes Dask's way, which then has nothing to wait for.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any

from distributed import get_worker

from backhaul.dask.client.blocking_wait import may_block
from backhaul.dask.client.result_cache import held_by
from backhaul.dask.client.send import send_what_is_queued
from backhaul.dask.client.thread_wait import wait_in_thread
from backhaul.dask.compat.names import Client, Future, shorten_traceback

__all__ = ["blocking_gather"]


def blocking_gather(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Client.gather` that needs no event loop for results that are held."""

    def gather(
        self: Client,
        futures: Any,
        errors: Any = "raise",
        direct: Any = None,
        asynchronous: Any = None,
    ) -> Any:
        if errors == "raise" and not direct and not asynchronous:
            found = _held_results(self, futures)
            if found is not None:
                return found
        # A copy of Dask's method, because a call of that would add a frame to shortened tracebacks.
        if isinstance(futures, queue.Queue):
            raise TypeError(
                "Dask no longer supports gathering over Iterators and Queues. "
                "Consider using a normal for loop and Client.submit/gather"
            )
        if isinstance(futures, Iterator):
            return (self.gather(f, errors=errors, direct=direct) for f in futures)
        try:
            local_worker = get_worker()
        except ValueError:
            local_worker = None
        with shorten_traceback():
            return self.sync(
                self._gather,
                futures,
                errors=errors,
                direct=direct,
                local_worker=local_worker,
                asynchronous=asynchronous,
            )

    return gather


def _held_results(client: Client, futures: Any) -> Any:
    """Wait for the futures of a list and return their results; None if this thread may not."""
    if type(futures) not in (list, tuple) or not futures:
        return None
    held = held_by(client)
    if held is None or not may_block(client):
        return None
    if not all(type(future) is Future and future._client is client for future in futures):
        return None
    # Those of a key that is released, or of a client before its restart, are Dask's to refuse.
    if any(client.futures.get(future.key) is not future._state for future in futures):
        return None
    states: dict[Any, Any] = {future.key: future._state for future in futures}
    send_what_is_queued(client)
    wait_in_thread(client, tuple(states.values()), None)
    found = {
        key: held.value_of(key) for key, state in states.items() if client.futures.get(key) is state
    }
    if len(found) < len(states) or not all(found.values()):
        return None
    return type(futures)(found[future.key][0] for future in futures)
