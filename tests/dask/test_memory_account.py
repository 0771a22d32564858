"""The account of memory against the kernel's, while random jobs run, and where it is shown."""

from __future__ import annotations

import asyncio
import random
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster, Worker, wait

from backhaul.dask import memory
from backhaul.dask.observe.memory_account import (
    ProcessMemory,
    WorkerMemory,
    process_memory,
    worker_memory,
)

MIB = 1 << 20
DEADLINE_S = 300
LIMIT_BYTES = 1 << 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        protocol="backhaul",
        host="127.0.0.1",
        dashboard_address=":0",
        memory_limit=LIMIT_BYTES,
        # Everything that is beyond 64 MiB is written to disk.
        config={"distributed.worker.memory.target": 64 * MIB / LIMIT_BYTES},
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        client.wait_for_workers(2)
        yield client


def both(dask_worker: Worker) -> tuple[WorkerMemory, int, int]:
    """Measure a worker by the account, and by the kernel: PSS of no file, and of shared memory."""
    account = worker_memory(dask_worker)
    found = {}
    for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
        name, number, _ = line.split()
        found[name] = 1024 * int(number)
    return account, found["Pss_Anon:"], found["Pss_Shmem:"]


def private(nbytes: int) -> bytes:
    """Make a result outside the arena."""
    return b"1" * nbytes


def filled(nbytes: int) -> Any:
    """Make an array, and drop another one."""
    np.ones(nbytes // 2, np.uint8)
    return np.ones(nbytes, np.uint8)


def test_the_account_is_the_kernels_while_a_random_job_runs(client: Client) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    workers = sorted(client.nthreads())
    futures: list[Any] = []
    for _ in range(8):
        for _ in range(4):
            make = chance.choice((filled, filled, private))
            nbytes = chance.randrange(MIB, 12 * MIB)
            own = {"workers": [chance.choice(workers)], "pure": False}
            future = client.submit(make, nbytes, **own)
            # Perhaps at the other worker, which borrows or copies the result.
            reader = {"workers": [chance.choice(workers)], "pure": False}
            wait(client.submit(len, future, **reader))
            futures.append(future)
        del futures[chance.randrange(len(futures)) :: 3]
        give_up_at = time.monotonic() + DEADLINE_S
        # Released results and returned leases are noticed a little later.
        while True:
            found = list(client.run(both).values())
            pairs = [(account.private_bytes, anon) for account, anon, _ in found]
            own_bytes = sum(account.own_bytes for account, _, _ in found)
            pairs.append((own_bytes, sum(anon + shmem for _, anon, shmem in found)))
            if all(abs(ours - kernels) <= 0.05 * kernels for ours, kernels in pairs):
                break
            assert time.monotonic() < give_up_at, (seed, pairs, found)


def test_a_client_is_told_what_each_worker_uses(client: Client) -> None:
    a, b = sorted(client.nthreads())
    array = client.submit(np.ones, 4 * MIB, workers=[a], pure=False)
    shared = client.submit(len, array, workers=[b])
    assert shared.result() == 4 * MIB
    found = memory(client)
    assert isinstance(found, dict)
    assert found.keys() == {a, b}
    one, other = found[a], found[b]
    assert one.limit_bytes == LIMIT_BYTES
    assert one.arena_used_bytes >= 32 * MIB
    assert one.lent_bytes >= 32 * MIB
    assert other.borrowed_bytes >= 32 * MIB
    # Memory that the one has lent counts there and not at the other.
    assert one.results_bytes >= 32 * MIB
    assert one.counted_bytes >= one.arena_used_bytes + one.private_bytes
    assert other.counted_bytes < other.resident_bytes - 16 * MIB
    # More than may stay in memory.
    kept = client.map(lambda _: private(24 * MIB), range(6), workers=[b], pure=False)
    wait(kept)
    spilling: Any = memory(client)
    assert spilling[b].spilled_bytes >= 24 * MIB


def test_an_asynchronous_client_awaits_it(cluster: LocalCluster) -> None:
    async def ask() -> dict[str, WorkerMemory]:
        async with Client(cluster.scheduler_address, asynchronous=True) as client:
            found = memory(client)
            assert not isinstance(found, dict)
            return await found

    assert len(asyncio.run(ask())) == 2


def test_metrics_have_it(client: Client) -> None:
    (port, *_) = client.run(lambda dask_worker: dask_worker.http_server.port).values()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        text = page.read().decode()
    kinds = {
        line.split('"')[1]
        for line in text.splitlines()
        if line.startswith("dask_backhaul_memory_bytes{")
    }
    assert kinds == {name.removesuffix("_bytes") for name in ProcessMemory.__dataclass_fields__}


def test_a_process_without_an_arena_has_an_account() -> None:
    found = process_memory()
    assert 0 < found.private_bytes <= found.resident_bytes
    assert found.own_bytes > 0
