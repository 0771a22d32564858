"""The result that a worker spills next."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.config
import distributed
import numpy as np
import pytest
from distributed import LocalCluster

from backhaul.dask.compat.names import SpillBuffer
from backhaul.dask.worker import eviction

ARRAYS = 10
MIB = 1 << 20


@pytest.fixture(scope="module")
def client() -> Iterator[distributed.Client]:
    """Connect to one worker that may keep five arrays of 8 MiB."""
    settings = {
        "distributed.worker.memory.target": 44 * MIB / 2e9,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.pause": False,
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            protocol="backhaul",
            n_workers=1,
            threads_per_worker=1,
            memory_limit="2GB",
            dashboard_address=None,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def reads(client: distributed.Client) -> int:
    """Count the results that the worker has read from disk."""

    def count(dask_worker: distributed.Worker) -> int:
        store: Any = dask_worker.data
        return int(store.cumulative_metrics["disk-read", "count"])

    return sum(client.run(count).values())


def total_of(value: np.ndarray[Any, Any], order: float) -> float:
    return float(value.sum()) + 0 * order


@pytest.mark.parametrize("order", ["as made", "reversed", "random"])
def test_results_that_tasks_need_soon_stay(client: distributed.Client, order: str) -> None:
    made = client.map(np.full, [MIB] * ARRAYS, range(ARRAYS), pure=False)
    distributed.wait(made)
    numbers = list(range(ARRAYS))
    if order == "reversed":
        numbers.reverse()
    elif order == "random":
        random.Random(1).shuffle(numbers)
    before = reads(client)
    # All are assigned before the first one begins, which waits for a lock.
    lock = distributed.Event(f"begin-{order}", client=client)

    def first(name: str) -> float:
        distributed.Event(name).wait()
        return 0.0

    gate = client.submit(first, f"begin-{order}", pure=False, priority=100)
    totals = [
        client.submit(total_of, made[number], gate, pure=False, priority=-place)
        for place, number in enumerate(numbers)
    ]
    lock.set()
    assert client.gather(totals) == [MIB * number for number in numbers]
    # Five are on disk at first. The least recently used one would be each that is needed next, in
    # the order in which they were made: ten reads.
    assert reads(client) - before <= 7


def test_dasks_own_choice_holds_without_a_worker(tmp_path: Path) -> None:
    store = SpillBuffer(str(tmp_path), target=30_000)
    eviction.install(store)
    eviction.install(store)
    for number in range(4):
        store[number] = np.zeros(1_000)
    assert list(store.slow) == [0]
    store[1]
    store.evict()
    assert set(store.slow) == {0, 2}
    with pytest.raises(KeyError, match="missing"):
        store.fast.evict("missing")


class Kept:
    """Has to stay in memory."""

    stays_in_memory = True

    def __sizeof__(self) -> int:
        return 10_000


def test_results_that_have_to_stay_are_never_chosen(tmp_path: Path) -> None:
    store = SpillBuffer(str(tmp_path), target=30_000)
    eviction.install(store)
    for number in range(5):
        store[number] = Kept()
    assert not store.slow
    store["other"] = np.zeros(1_000)
    assert list(store.slow) == ["other"]
    assert store.evict() == -1
