"""Workers of tests whose states are in Rust."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from distributed import Client, Worker

from backhaul.dask.worker.core.ownership import StateOwner
from backhaul.dask.worker.local_queue import local_queue_of

__all__ = ["in_rust", "inc", "state_owner_of", "watch_nothing"]


def inc(value: int) -> int:
    return value + 1


def state_owner_of(worker: Worker) -> StateOwner:
    line: Any = local_queue_of(worker)
    found: StateOwner = line.state_owner
    return found


def watch_nothing(worker: Worker) -> None:
    """Leave the state of a worker unread but for the test."""
    worker.state.validate = False
    worker.state.transition_counter_max = False
    for name in ("heartbeat", "find-missing", "memory_monitor"):
        if name in worker.periodic_callbacks:
            worker.periodic_callbacks[name].stop()


async def in_rust(client: Client, *workers: Worker) -> None:
    """Run tasks until the states of all workers are in Rust."""
    # A slow transfer of many tasks keeps the state with Python for 19 times as long.
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        futures = [
            client.submit(inc, number, pure=False, workers=[worker.address])
            for worker in workers
            for number in range(3)
        ]
        await client.gather(futures)
        del futures
        if all(
            (local_queue_of(worker) and state_owner_of(worker).core) is not None
            for worker in workers
        ):
            return
        await asyncio.sleep(0.02)
    pytest.fail("no state has come to Rust")
