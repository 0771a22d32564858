"""Requests to a worker for its results, with early execution or with the state in Rust.

The scheduler has the report of an early task before the worker's event loop does, and may send a
dependent task to another worker, which then requests the result. Without this module that worker
would get no result, and would ask again a second later. So the event loop first catches up.

`Worker.get_data` reads the sizes of results from the state machine, which would export the state to
Python each time that a client gathers. So a copy of that method here reads the sizes from Rust.

A function that a client runs on a worker (`distributed.Client.run`) may iterate over the worker's
data, which in Dask only the event loop changes. So threads report nothing to the state meanwhile,
and the event loop handles the messages. The same holds for a read of `Worker.data` on the event
loop, until its next turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from distributed import Status, Worker

from backhaul.dask.compat.instance_patches import DATA_REQUESTS
from backhaul.dask.compat.names import (
    Comm,
    context_meter,
    context_meter_to_server_digest,
    time,
    to_serialize,
)
from backhaul.dask.worker.lazy_collections import data_of
from backhaul.dask.worker.local_queue import LocalQueue, local_queue_of
from backhaul.dask.worker.spill_file import spill_file_of

__all__ = ["catch_up_when_asked", "synced_data"]

#: Dask's own log, for what Dask logs there
logger = logging.getLogger("distributed.worker")

#: Dask's method, whose digest was checked; a program may replace it later
_GET_DATA = Worker.get_data


def catch_up_when_asked(worker: Worker, local_queue: LocalQueue) -> bool:
    """Install handlers that catch up with a worker's threads before they read its data.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    local_queue : LocalQueue
        The local queue of its default pool.

    Returns
    -------
    bool
        False if a handler is not the one of a known release of Dask.
    """
    original: Any = worker.handlers["get_data"]
    is_dasks = getattr(original, "__func__", None) is _GET_DATA

    @functools.wraps(original)
    async def get_data(comm: Comm, keys: Collection[Any], *args: Any, **kwargs: Any) -> Any:
        early_tasks = local_queue.early_tasks
        if early_tasks and any(key in early_tasks for key in keys):
            local_queue.handle()
        state_owner = local_queue.state_owner
        if (
            is_dasks
            and state_owner is not None
            and state_owner.core is not None
            and _has_room(worker)
        ):
            return await _get_data(
                worker, local_queue, state_owner.bytes_of, comm, keys, *args, **kwargs
            )
        if state_owner is not None:
            # With the state in Python, no thread frees results while Dask's method reads them.
            state_owner.export_state()
        return await original(comm, keys, *args, **kwargs)

    original_run: Any = worker.handlers["run"]

    @functools.wraps(original_run)
    async def run(comm: Comm, *args: Any, **kwargs: Any) -> Any:
        if local_queue.early_tasks:
            local_queue.handle()
        # With the lock, so that no thread is reporting
        with local_queue.lock:
            local_queue.holds += 1
        try:
            return await original_run(comm, *args, **kwargs)
        finally:
            local_queue.holds -= 1

    ours = {"handlers[get_data]": get_data, "handlers[run]": run}
    return bool(DATA_REQUESTS.install(worker, ours))


def synced_data(original: Any) -> property:
    """Make a `Worker.data` that catches up with the results of its threads."""
    get: Any = original.fget

    def data(self: Worker) -> Any:
        # The constructor of a worker sets its executors late.
        local_queue = local_queue_of(self) if hasattr(self, "executors") else None
        if local_queue is not None:
            local_queue.show()
        return get(self)

    return property(data)


def _has_room(worker: Worker) -> bool:
    """Tell whether a worker accepts one more request for data, and has no actors."""
    most: Any = worker.transfer_outgoing_count_limit
    return (
        worker.status is not Status.paused
        # Dask's method decides above this limit, which is twice as high for peers on its host.
        and (most is False or worker.transfer_outgoing_count < most)
        and not worker.state.actors
    )


@contextlib.asynccontextmanager
async def _read_from_disk(data: Any, keys: Collection[Any]) -> AsyncIterator[None]:
    """Read results from disk in other threads, while the event loop goes on."""
    file = spill_file_of(data)
    if file is None or not (reads := file.read_for_peer(keys)):
        yield
        return
    try:
        # An error is the error of the look-up, too.
        await asyncio.gather(*map(asyncio.wrap_future, reads), return_exceptions=True)
        yield
    finally:
        file.release(keys)


@context_meter_to_server_digest("get-data")
async def _get_data(
    worker: Worker,
    local_queue: LocalQueue,
    bytes_of: Callable[[Any], int],
    comm: Comm,
    keys: Collection[Any],
    who: str | None = None,
    serializers: list[str] | None = None,
) -> Status:
    """Send results to a peer, as `Worker.get_data` does if it refuses nothing."""
    worker.transfer_outgoing_count += 1
    worker.transfer_outgoing_count_total += 1
    total_bytes = 0
    try:
        there = data_of(worker)
        async with _read_from_disk(there, keys):
            # Threads free results with this lock.
            with local_queue.lock:
                data = {key: there[key] for key in keys if key in there}
                bytes_by_key = {key: bytes_of(key) for key in data}
        message = {"status": "OK", "data": {key: to_serialize(data[key]) for key in data}}
        total_bytes = sum(bytes_by_key.values())
        worker.transfer_outgoing_bytes += total_bytes
        worker.transfer_outgoing_bytes_total += total_bytes
        try:
            with context_meter.meter("network", func=time) as metered:
                compressed = await comm.write(message, serializers=serializers)
                response = await comm.read(deserializers=serializers)
            assert response == "OK", response
        except OSError:
            logger.exception("failed during get data with %s -> %s", worker.address, who)
            comm.abort()
            raise
    finally:
        worker.transfer_outgoing_bytes -= total_bytes
        worker.transfer_outgoing_count -= 1
    # From the meter's start and stop, which include serialization; its value does not.
    seconds = max(0.001, metered.stop - metered.start)
    worker.transfer_outgoing_log.append(
        {
            "start": metered.start + worker.scheduler_delay,
            "stop": metered.stop + worker.scheduler_delay,
            "middle": (metered.start + metered.stop) / 2,
            "duration": seconds,
            "who": who,
            "keys": bytes_by_key,
            "total": total_bytes,
            "compressed": compressed,
            "bandwidth": total_bytes / seconds,
        }
    )
    return Status.dont_reply
