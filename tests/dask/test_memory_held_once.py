"""An array that several workers of a host use is held once."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from distributed import Client, LocalCluster, Worker, wait

import dask
from backhaul import _native
from backhaul.dask import Settings
from backhaul.dask.comm.native_context import shared_arena

if TYPE_CHECKING:
    pass

HOST = "backhaul://127.0.0.1"
MIB = 1 << 20
DEADLINE_S = 300


class Report(SimpleNamespace):
    """Memory of one worker by its own report, in bytes."""

    proportional_bytes: int
    managed_bytes: int
    statistics: dict[str, int]


def report(dask_worker: Worker) -> dict[str, Any]:
    arena = shared_arena(Settings.current())
    assert arena is not None
    with open("/proc/self/smaps_rollup") as rollup:
        found = dict(line.split()[:2] for line in rollup.readlines()[1:])
    return {
        "proportional_bytes": int(found["Pss:"]) * 1024,
        "managed_bytes": dask_worker.monitor.get_process_memory(),
        "statistics": {**arena.statistics(), "borrowed_bytes": _native.borrowed_bytes()},
    }


def trim() -> None:
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        # An object that one thread made and another released waits for the first, which may be
        # asleep.
        gc.collect()
    arena = shared_arena(Settings.current())
    assert arena is not None
    arena.trim(0)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Start four worker processes, once."""
    # It would drop replicas after a while.
    keep = {"distributed.scheduler.active-memory-manager.start": False}
    with (
        dask.config.set(keep),
        LocalCluster(
            n_workers=4,
            threads_per_worker=1,
            protocol="backhaul",
            host="127.0.0.1",
            dashboard_address=":0",
            memory_limit="2 GiB",
        ) as workers,
        Client(workers) as client,
    ):
        # Memory of imports, threads and connections is not in question.
        addresses = sorted(client.nthreads())
        first = client.scatter(np.ones(MIB), broadcast=True)
        wait([client.submit(np.sum, first, workers=[each], pure=False) for each in addresses])
        del first
        yield client


def ask(client: Client) -> list[Report]:
    return [Report(**found) for found in client.run(report).values()]


def ask_when_nothing_is_held(client: Client) -> list[Report]:
    """Ask once all that earlier work has left is freed, and given back by those who borrowed it.

    Free blocks give their pages back, or what follows would seem to take none.
    """
    give_up_at = time.monotonic() + 300
    while True:
        client.run(trim)
        reports = ask(client)
        found = [each.statistics for each in reports]
        # Another thread may be giving pages back, which are cached no more and still there.
        # Scattered memory may be the client's, which has no report.
        held = ("live_bytes", "leased_bytes", "cached_bytes", "resident_bytes", "borrowed_bytes")
        if not any(each[name] for each in found for name in held):
            # A report reads the kernel's number first, perhaps before the last page went.
            return ask(client)
        assert time.monotonic() < give_up_at, reports
        time.sleep(0.01)


def growth(before: list[Report], after: list[Report], name: str) -> int:
    return int(
        sum(getattr(each, name) for each in after) - sum(getattr(each, name) for each in before)
    )


def test_an_array_that_two_workers_use_is_held_once(client: Client) -> None:
    a, b, *_ = sorted(client.nthreads())
    before = ask_when_nothing_is_held(client)
    array = client.submit(np.ones, 8 * MIB, workers=[a])
    sums = [client.submit(np.sum, array, workers=[each], pure=False) for each in (a, b)]
    assert client.gather(sums) == [8 * MIB] * 2
    assert len(client.who_has(array)[array.key]) == 2
    after = ask(client)
    assert sum(each.statistics["leased_bytes"] for each in after) >= 64 * MIB
    for name in ("proportional_bytes", "managed_bytes"):
        assert 64 * MIB - 4 * MIB < growth(before, after, name) < 1.2 * 64 * MIB, name


def test_a_broadcast_array_is_held_once(client: Client) -> None:
    before = ask_when_nothing_is_held(client)
    workers = sorted(client.nthreads())
    array = client.scatter(np.ones(8 * MIB), broadcast=True)
    assert sorted(client.who_has(array)[array.key]) == workers
    sums = [client.submit(np.sum, array, workers=[each], pure=False) for each in workers]
    assert client.gather(sums) == [8 * MIB] * 4
    after = ask(client)
    for name in ("proportional_bytes", "managed_bytes"):
        assert 64 * MIB - 4 * MIB < growth(before, after, name) < 1.2 * 64 * MIB, name


def test_a_replicated_result_is_held_once(client: Client) -> None:
    before = ask_when_nothing_is_held(client)
    workers = sorted(client.nthreads())
    array = client.submit(np.ones, 8 * MIB)
    wait(array)
    client.replicate(array)
    sums = [client.submit(np.sum, array, workers=[each], pure=False) for each in workers]
    assert client.gather(sums) == [8 * MIB] * 4
    after = ask(client)
    for name in ("proportional_bytes", "managed_bytes"):
        assert 64 * MIB - 4 * MIB < growth(before, after, name) < 1.2 * 64 * MIB, name
    # And is freed at all of them.
    del array, sums
    ask_when_nothing_is_held(client)


def elsewhere(nbytes: int) -> np.ndarray[Any, Any]:
    """Make an array whose memory is not NumPy's."""
    return np.frombuffer(bytes(nbytes), np.uint8)


def test_a_result_outside_the_arena_is_copied_once_and_lent(client: Client) -> None:
    ask_when_nothing_is_held(client)
    a, b, *_ = sorted(client.nthreads())
    array = client.submit(elsewhere, 8 * MIB, workers=[a])
    assert client.submit(np.sum, array, workers=[b]).result() == 0
    (lent,) = [each.statistics for each in ask(client) if each.statistics["leased_bytes"]]
    assert lent["orphaned_bytes"] == lent["leased_bytes"] == 8 * MIB
    assert lent["live_bytes"] == 0
    del array
    ask_when_nothing_is_held(client)
