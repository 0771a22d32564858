"""Order between the requests of a client and the messages of its stream.

A client sends requests on connections other than its stream. Dask takes it that the answer to a
request arrives before the messages that the request causes, because its streams hold messages back
for 2 to 10 ms. Streams of Backhaul do not, so the client accepts both orders:

- `Client.retry` resets a future only if no message has changed the future since the request was
  sent. The scheduler reports ``task-retried`` on the stream in any case.
- `Client.get_dataset` returns when the scheduler has registered that the client wants the futures.
  Otherwise a program that removes the dataset next, by another client, may lose the results.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from typing import Any

from dask.typing import no_default
from distributed import futures_of

from backhaul.dask.comm.comm import BackhaulComm
from backhaul.dask.compat.names import Client

__all__ = ["confirmed_get_dataset", "ordered_retry"]


class _Unchanged(str):
    """Status of a future that no message has changed since a request was sent.

    Equal to the plain status. Every message that changes the future assigns a plain one.
    """

    __slots__ = ()


def ordered_retry(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Client._retry` that accepts news of the second run ahead of the answer."""

    async def _retry(self: Client, futures: Any) -> None:
        keys = list({future.key for future in futures_of(futures)})
        scheduler: Any = self.scheduler
        marked = _mark(self, keys)
        try:
            response = await scheduler.retry(keys=keys, client=self.id)
            for key in response:
                state = self.futures[key]
                if type(state.status) is _Unchanged:
                    state.retry()
        finally:
            for state in marked:
                if type(state.status) is _Unchanged:
                    state.status = str(state.status)

    return _retry


def _mark(client: Client, keys: list[Any]) -> list[Any]:
    """Mark the futures that a request to retry `keys` may reset, and return their states.

    The scheduler also retries failed dependencies, so all failed futures are marked.
    """
    requested = set(keys)
    marked: list[Any] = []
    for key, state in list(client.futures.items()):
        status: Any = state.status
        if status == "error" or (key in requested and status == "finished"):
            state.status = _Unchanged(status)
            marked.append(state)
    return marked


def confirmed_get_dataset(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Client._get_dataset` that waits until the scheduler knows who wants the futures."""

    async def _get_dataset(self: Client, name: Any, default: Any = no_default) -> Any:
        found = await original(self, name, default)
        scheduler: Any = self.scheduler
        stream: Any = self.scheduler_comm
        if stream is not None and isinstance(stream.comm, BackhaulComm) and futures_of(found):
            # The scheduler answers when it has handled the stream up to this message, and deletes
            # no dataset.
            uid = uuid.uuid4().hex
            self._send_to_scheduler({"op": "publish_flush_batched_send", "uid": uid})
            # The connection has ended: so have the futures.
            with contextlib.suppress(OSError):
                await scheduler.publish_delete(names=[], client=self.id, uid=uid)
        return found

    return _get_dataset
