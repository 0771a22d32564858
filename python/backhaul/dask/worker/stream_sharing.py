"""Sharing of the inbox of a worker's stream between the event loop and the threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backhaul.dask.comm.comm import BackhaulComm
from backhaul.dask.comm.inbox import SharedInbox
from backhaul.dask.comm.threaded_stream import SharedBatchedSend
from backhaul.dask.compat.names import Worker
from backhaul.dask.config.settings import switched_on

__all__ = ["reads_as_ours", "share_inbox"]


def share_inbox(
    worker: Worker, comm: BackhaulComm, handle: Callable[[Any], None]
) -> SharedInbox | None:
    """Share the inbox of a worker's stream with its threads, if that is switched on.

    `handle` handles a message in the event loop, immediately.
    """
    if (
        switched_on("hot-path.worker-threads")
        and type(worker.batched_stream) is SharedBatchedSend
        and worker.batched_stream.comm is comm
        and reads_as_ours(comm)
    ):
        return comm.share(handle)
    return None


def reads_as_ours(comm: Any) -> bool:
    """Tell whether a comm is a `BackhaulComm` whose class does not override its reads."""
    kind = type(comm)
    return (
        isinstance(comm, BackhaulComm)
        and kind.read is BackhaulComm.read
        and kind.read_arrived is BackhaulComm.read_arrived
    )
