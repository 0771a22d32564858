"""The proof: real jobs on separate processes get right answers though a worker is killed midway."""

from __future__ import annotations

import importlib
import signal
import sys
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, Event, Variable, get_worker

import dask

if TYPE_CHECKING:
    from tests.dask.conftest import Program, Start

SCHEDULER = ["-m", "dask", "scheduler", "--host", "127.0.0.1", "--no-dashboard", "--no-show"]
WORKER = ["-m", "dask", "worker", "--host", "127.0.0.1", "--nthreads", "2", "--no-nanny"]


class Cluster:
    """A scheduler and two workers, each a process of its own; this process is the client."""

    def __init__(self, start: Start) -> None:
        self._start = start
        scheduler = start(*SCHEDULER, "--protocol", "backhaul", "--port", "0")
        self.address = scheduler.wait_for(r"Scheduler at:\s+(backhaul://\S+)")
        self.workers: dict[str, Program] = {}
        self.add_workers(2)

    def add_workers(self, count: int) -> None:
        """Start workers and wait until the scheduler knows them."""
        names = [uuid.uuid4().hex for _ in range(count)]
        workers = {
            name: self._start(*WORKER, "--no-dashboard", "--name", name, self.address)
            for name in names
        }
        for worker in workers.values():
            worker.wait_for(r"Registered to:\s+(backhaul://)")
        self.workers.update(workers)

    def kill_worker(self, name: str) -> None:
        """End a worker with SIGKILL: it closes no connection."""
        worker = self.workers.pop(name)
        worker.kill()
        assert worker.process.returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def cluster(start: Start) -> Cluster:
    """Start the cluster of this module."""
    return Cluster(start)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """Connect a client to the cluster."""
    with Client(cluster.address) as client:
        client.wait_for_workers(2)
        yield client


def array_job() -> tuple[Any, float]:
    """Make a transpose-sum of an array, and what it gives."""
    x = da.ones((2000, 2000), chunks=(500, 500)).map_blocks(hold, dtype=float)
    return (x + x.T).sum(), 2.0 * 2000 * 2000


def merge_job() -> tuple[Any, float]:
    """Make a shuffle of two dataframes, and what it gives."""
    rng = np.random.default_rng(1)
    left = pd.DataFrame({"key": rng.integers(0, 500, 20_000), "x": rng.random(20_000)})
    right = pd.DataFrame({"key": np.arange(500), "y": rng.random(500)})
    expected = left.merge(right, on="key")
    parts = dd.from_pandas(left, npartitions=8).map_partitions(hold, meta=left)
    merged = parts.merge(
        dd.from_pandas(right, npartitions=4), on="key", how="inner", shuffle_method="p2p"
    )
    return (merged.x * merged.y).sum(), float((expected.x * expected.y).sum())


def bag_job() -> tuple[Any, float]:
    """Make a sum over a bag, and what it gives."""
    bag = db.from_sequence(range(10_000), npartitions=16).map_partitions(hold)
    return bag.map(lambda number: number * 2).sum(), float(sum(range(10_000)) * 2)


@pytest.mark.parametrize("job", [array_job, merge_job, bag_job])
def test_a_job_gets_the_right_answer_though_a_worker_is_killed_midway(
    cluster: Cluster, client: Client, job: Any
) -> None:
    with dask.config.set({"distributed.p2p.storage.disk": False}):
        for event in ("held", "go"):
            Event(event).clear()
        graph, expected = job()
        future = client.compute(graph)
        # Now some part of the job is on a worker, and cannot end there before we say so.
        assert Event("held").wait(300)
        cluster.kill_worker(Variable("holder").get(timeout=300))
        cluster.add_workers(1)
        Event("go").set()
        np.testing.assert_allclose(future.result(timeout=300), expected)
    # The one that was killed is gone for good.
    found: Any = client.sync(client.scheduler.identity, n_workers=-1)  # type: ignore[union-attr]
    names = {worker["name"] for worker in found["workers"].values()}
    assert names == set(cluster.workers)


def hold(part: Any) -> Any:
    """Give a part back; the first call of a job reports its worker and waits for the test."""
    held = Event("held")
    if not held.is_set():
        Variable("holder").set(get_worker().name)
        held.set()
        Event("go").wait(300)
    return part


@pytest.fixture(autouse=True)
def by_value() -> Iterator[None]:
    """Send the functions of this file to processes that cannot import it."""
    cloudpickle = importlib.import_module("cloudpickle")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
