"""Which workers have a guard of their memory, and what the guard takes for too large."""

from __future__ import annotations

import asyncio
import functools

from distributed import Client, Nanny, Scheduler, Worker
from distributed.utils_test import gen_cluster

from backhaul.dask.worker import memory_guard
from backhaul.dask.worker.memory_guard import MemoryGuard

LIMIT_BYTES = 400 << 20
HOST = "backhaul://127.0.0.1"
SWITCH = "distributed.comm.backhaul.memory-guard"

cluster = functools.partial(gen_cluster, client=True, scheduler=HOST, nthreads=[(HOST, 1)])


def has_guard(dask_worker: Worker) -> bool:
    return dask_worker in memory_guard._guarded


@cluster()
async def test_a_worker_without_a_nanny_has_no_guard(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    assert not has_guard(worker)


@cluster(Worker=Nanny, worker_kwargs={"memory_limit": LIMIT_BYTES})
async def test_a_worker_with_a_nanny_has_one(
    client: Client, scheduler: Scheduler, nanny: Nanny
) -> None:
    assert list((await client.run(has_guard)).values()) == [True]


@cluster(Worker=Nanny, worker_kwargs={"memory_limit": LIMIT_BYTES}, config={SWITCH: False})
async def test_the_switch_leaves_a_worker_to_its_nanny(
    client: Client, scheduler: Scheduler, nanny: Nanny
) -> None:
    assert list((await client.run(has_guard)).values()) == [False]


@cluster(nthreads=[(HOST, 1)] * 2)
async def test_a_larger_worker_may_run_what_is_too_large_here(
    client: Client, scheduler: Scheduler, small: Worker, large: Worker
) -> None:
    found = {}
    scheduler.workers[small.address].memory_limit = LIMIT_BYTES
    for limit_bytes in (LIMIT_BYTES, 3 * LIMIT_BYTES, 0):
        scheduler.workers[large.address].memory_limit = limit_bytes
        guard = MemoryGuard(small, LIMIT_BYTES, 0.5)
        found[limit_bytes] = await asyncio.to_thread(guard._largest_allowed, small)
    assert found == {
        LIMIT_BYTES: LIMIT_BYTES / 2,
        3 * LIMIT_BYTES: 3 * LIMIT_BYTES / 2,
        0: float("inf"),
    }
