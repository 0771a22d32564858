"""Clusters in this process whose workers have resources, and tasks that wait."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from distributed import Client, Scheduler, Worker

import dask
from backhaul.dask.resource_pools import worker_state
from backhaul.dask.resource_pools.worker_slots import WorkerSlots

__all__ = ["ISLANDS", "all_is_free", "cluster", "gate", "slots"]

#: Two groups of two
ISLANDS = {"GPU": [[0, 1], [2, 3]], "MEMORY": 64e9}

#: Tasks wait here, until the end of the cluster at the latest.
gate = threading.Event()


@asynccontextmanager
async def cluster(
    *declared: Any, nthreads: int = 2, **config: Any
) -> AsyncIterator[tuple[Client, Scheduler, list[Worker]]]:
    """Start a scheduler and a worker for each declaration, all in this process, and validate."""
    async with Scheduler(
        protocol="backhaul",
        host="127.0.0.1",
        port=0,
        dashboard=False,
        dashboard_address=":0",
        validate=True,
    ) as scheduler:
        workers = []
        try:
            for each in declared:
                with dask.config.set({"backhaul.resources": each, **config}):
                    worker = Worker(
                        scheduler.address, nthreads=nthreads, validate=True, host="127.0.0.1"
                    )
                    workers.append(await worker)
            async with Client(scheduler.address, asynchronous=True) as client:
                yield client, scheduler, workers
                scheduler.validate_state()
                for worker in workers:
                    if worker.status == worker.status.running:
                        worker.state.validate_state()
                gate.set()
        finally:
            gate.set()
            for worker in workers:
                await worker.close()


def slots(worker: Worker) -> WorkerSlots:
    found = worker_state.slots_of(worker.state)
    assert found is not None
    return found


def all_is_free(worker: Worker) -> bool:
    own = slots(worker)
    amounts = own.pools.amounts().values()
    return not own.held and own.beside == 0 and all(total == free for total, free in amounts)
