"""Nothing is kept of a cluster that is closed."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import weakref
from collections.abc import Iterator

import distributed.core
import pytest
from distributed import Client, Scheduler, Worker
from distributed.core import Server

import dask

HOST = "backhaul://127.0.0.1"


@pytest.fixture
def no_records() -> Iterator[None]:
    """Log nothing: what pytest keeps of an exception has frames, and they what is in them."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("no_records")
def test_a_closed_cluster_is_not_kept() -> None:
    gone: list[weakref.ref[Server]] = []

    async def use_one() -> None:
        async with (
            Scheduler(host=HOST, dashboard=False, dashboard_address=":0") as scheduler,
            Worker(scheduler.address, nthreads=1) as worker,
            Client(scheduler.address, asynchronous=True) as client,
        ):
            assert await client.submit(sum, [1, 2]) == 3
            gone.extend([weakref.ref(scheduler), weakref.ref(worker)])

    with dask.config.set({"distributed.comm.backhaul.placement.enabled": True}):
        asyncio.run(use_one())
    # Where Dask keeps them itself
    distributed.core._expects_comm.cache_clear()
    # A thread that ends meanwhile may have something in its hands, on a busy machine.
    until = time.monotonic() + 60
    while any(reference() for reference in gone) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.02)
    assert [reference() for reference in gone] == [None, None]
