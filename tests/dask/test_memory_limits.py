"""Workers of a small memory limit: which memory their nannies count, and that they live."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster, Worker, get_worker, wait
from distributed.diagnostics.plugin import SchedulerPlugin

from backhaul.dask.comm.native_context import shared_arena
from backhaul.dask.config.settings import Settings
from backhaul.dask.worker import memory

if TYPE_CHECKING:
    from distributed import Scheduler

MIB = 1 << 20
LIMIT_BYTES = 344 * MIB


class Removed(SchedulerPlugin):
    """Lists the workers that a scheduler has removed."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
        self.addresses.append(worker)


@pytest.fixture
def removed() -> Removed:
    return Removed()


@pytest.fixture
def client(removed: Removed) -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            protocol="backhaul",
            host="127.0.0.1",
            dashboard_address=":0",
            memory_limit=LIMIT_BYTES,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(removed)
        cluster.scheduler.add_plugin(removed, name="removed here")
        yield client


def counts(dask_worker: Worker) -> tuple[int, int]:
    """Measure a worker's memory as the worker does, and as its nanny does."""
    process = psutil.Process()
    counted = dask_worker.monitor.get_process_memory()
    return counted, process.memory_info().rss - memory.uncounted_bytes(process.pid)


def fill_and_hold_the_gil() -> tuple[int, int]:
    """Leave free blocks, take private memory up to the limit with them, and run no Python.

    Gives the free blocks that were left before and after the time without Python, in bytes.
    """
    arena = shared_arena(Settings.current())
    assert arena is not None
    arrays = [np.ones(MIB) for _ in range(10)]
    arrays.clear()
    before = arena.statistics()["cached_bytes"]
    counted = get_worker().monitor.get_process_memory()
    private = b"1" * int(0.88 * LIMIT_BYTES - counted)
    # A function that is called in this way keeps the lock: the event loop stands still.
    assert ctypes.PyDLL(None).usleep(ctypes.c_uint(900_000)) == 0
    assert ctypes.PyDLL(None).usleep(ctypes.c_uint(900_000)) == 0
    after = arena.statistics()["cached_bytes"]
    del private
    return before, after


def test_free_blocks_do_not_end_a_worker_whose_event_loop_stands_still(
    client: Client, removed: Removed
) -> None:
    (before, after) = client.submit(fill_and_hold_the_gil).result()
    assert before >= 70 * MIB
    assert after < 8 * MIB
    assert removed.addresses == []


def test_workers_that_spill_while_they_exchange_arrays_live(
    client: Client, removed: Removed
) -> None:
    random = da.random.RandomState(1)
    x = random.random_sample((8000, 8000), chunks=(1000, 1000)).persist()
    wait(x)
    total = float((x + x.T).sum().compute())
    assert total == pytest.approx(2 * float(x.sum().compute()))
    assert removed.addresses == []
    # More than the workers may hold was made.
    assert sum(client.run(lambda dask_worker: len(dask_worker.data.slow)).values()) > 0
    for counted, by_nanny in client.run(counts).values():
        assert counted == pytest.approx(by_nanny, abs=16 * MIB)
