"""Requests to a worker for its results while its threads read ahead or Rust has its state.

The scheduler knows of a result as soon as the thread has told it, and may send what needs it to
another worker, which asks for it before the event loop has heard of the task: it would be told that
there is none, and ask again a second later. So the event loop catches up before it looks.

Dask asks its state machine for nothing but the sizes of results then, and that would have Python
take the state over, as often as a client gathers. So `Worker.get_data` is written out here, and
asks the state in Rust.

What a client has run on a worker (`distributed.Client.run`) may go through its data, which only the
event loop changes in Dask: meanwhile threads tell the state of nothing, and it hears as ever. So it
is for whoever asks a worker for its data on the event loop, until that comes round.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection
from typing import Any

from distributed import Status, Worker

from backhaul.dask.compat.instance_patches import GET_DATA, RUN
from backhaul.dask.compat.names import (
    Comm,
    context_meter,
    context_meter_to_server_digest,
    time,
    to_serialize,
)
from backhaul.dask.worker.lazy_collections import data_of
from backhaul.dask.worker.local_queue import Line, line_of

__all__ = ["catch_up_when_asked", "heard_data"]

#: Dask's own log, for what Dask logs there
logger = logging.getLogger("distributed.worker")

#: The one whose source was read, whoever replaces it later
_GET_DATA = Worker.get_data


def catch_up_when_asked(worker: Worker, line: Line) -> bool:
    """Have a worker hear of what threads have done before it gives data away.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    line : Line
        Of its default pool.

    Returns
    -------
    bool
        False if that is refused.
    """
    original: Any = worker.handlers["get_data"]
    is_dasks = getattr(original, "__func__", None) is _GET_DATA

    @functools.wraps(original)
    async def get_data(comm: Comm, keys: Collection[Any], *args: Any, **kwargs: Any) -> Any:
        foretold = line.foretold
        if foretold and any(key in foretold for key in keys):
            line.handle()
        keeper = line.keeper
        if is_dasks and keeper is not None and keeper.core is not None and _has_room(worker):
            return await _get_data(worker, line, keeper.bytes_of, comm, keys, *args, **kwargs)
        if keeper is not None:
            # No thread is to free any of it while Dask looks it up.
            keeper.give_back()
        return await original(comm, keys, *args, **kwargs)

    original_run: Any = worker.handlers["run"]

    @functools.wraps(original_run)
    async def run(comm: Comm, *args: Any, **kwargs: Any) -> Any:
        if line.foretold:
            line.handle()
        # Not in the midst of what a thread tells
        with line.lock:
            line.holds += 1
        try:
            return await original_run(comm, *args, **kwargs)
        finally:
            line.holds -= 1

    return (
        RUN.install(worker.handlers, run) is not None
        and GET_DATA.install(worker.handlers, get_data) is not None
    )


def heard_data(original: Any) -> property:
    """Make a `Worker.data` that has what its threads have come to."""
    get: Any = original.fget

    def data(self: Worker) -> Any:
        # There is none yet while it is made.
        line = line_of(self) if hasattr(self, "executors") else None
        if line is not None:
            line.show()
        return get(self)

    return property(data)


def _has_room(worker: Worker) -> bool:
    """Tell whether one more may ask a worker, and all that it has are results."""
    most: Any = worker.transfer_outgoing_count_limit
    return (
        worker.status is not Status.paused
        # Of those on its host there may be twice as many: that is Dask's to say.
        and (most is False or worker.transfer_outgoing_count < most)
        and not worker.state.actors
    )


@context_meter_to_server_digest("get-data")
async def _get_data(
    worker: Worker,
    line: Line,
    bytes_of: Callable[[Any], int],
    comm: Comm,
    keys: Collection[Any],
    who: str | None = None,
    serializers: list[str] | None = None,
) -> Status:
    """Give results away: `Worker.get_data`, where nothing keeps it from that."""
    worker.transfer_outgoing_count += 1
    worker.transfer_outgoing_count_total += 1
    # Threads free results with this lock.
    with line.lock:
        there = data_of(worker)
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
    # Not the time that the meter has: serializing is in it.
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
