"""Whole Dask clusters over ``backhaul://``, in this process and in processes of their own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, Nanny, Scheduler, Worker
from distributed.security import Security
from distributed.utils_test import gen_cluster, gen_test

from backhaul.dask import lanes
from dask import delayed

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually

OVER_BACKHAUL: dict[str, Any] = {
    # It drops a copy that is not needed, every other second.
    "config": {"distributed.scheduler.active-memory-manager.start": False},
    "scheduler_kwargs": {"protocol": "backhaul"},
    "worker_kwargs": {"protocol": "backhaul"},
}


def test_a_local_cluster_computes_over_shared_memory() -> None:
    with (
        LocalCluster(
            protocol="backhaul", n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        assert cluster.scheduler_address.startswith("backhaul://127.0.0.1:")
        workers = list(client.nthreads())
        assert all(worker.startswith("backhaul://127.0.0.1:") for worker in workers)

        x = da.random.default_rng(1).random((2000, 2000), chunks=(500, 500))
        array = x.compute()
        result = (x + x.T).sum().compute()
        np.testing.assert_allclose(result, 2 * array.sum())

        assert lanes(client) == {
            (source, target): "shm" for source in workers for target in workers if source != target
        }


@gen_cluster(client=True, **OVER_BACKHAUL)
async def test_a_cluster_in_one_process_uses_the_process(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker
) -> None:
    assert scheduler.address.startswith("backhaul://")
    assert a.address.startswith("backhaul://127.0.0.1:")
    found: Any = lanes(client)
    assert await found == {(a.address, b.address): "inproc", (b.address, a.address): "inproc"}


@gen_cluster(client=True, **OVER_BACKHAUL)
async def test_data_moves_between_workers(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker
) -> None:
    x = client.submit(np.ones, 1_000_000, workers=a.address)
    y = client.submit(np.sum, x, workers=b.address)
    assert await y == 1_000_000
    assert b.transfer_incoming_log[-1]["who"] == a.address
    # A task may write to what it was given; the worker that sent it keeps its own.
    received: Any = b.data[x.key]
    assert received.flags.writeable


@gen_cluster(client=True, **OVER_BACKHAUL)
async def test_a_client_scatters_and_gathers_directly(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker
) -> None:
    arrays = [np.full(100_000, i) for i in range(4)]
    futures = await client.scatter(arrays, direct=True)
    got = await client.gather(futures, direct=True)
    assert all((before == after).all() for before, after in zip(arrays, got, strict=True))
    assert a.data or b.data


@gen_cluster(client=True, **OVER_BACKHAUL)
async def test_a_client_scatters_and_gathers_through_the_scheduler(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker
) -> None:
    arrays = [np.full(100_000, i) for i in range(4)]
    futures = await client.scatter(arrays, direct=False, broadcast=True)
    got = await client.gather(futures, direct=False)
    assert all((before == after).all() for before, after in zip(arrays, got, strict=True))
    assert set(a.data) == set(b.data)


@gen_cluster(client=True, Worker=Nanny, nthreads=[("", 1)], **OVER_BACKHAUL)
async def test_a_nanny_passes_protocol_and_configuration_to_its_worker(
    client: Client, scheduler: Scheduler, nanny: Nanny
) -> None:
    assert nanny.address.startswith("backhaul://")
    assert nanny.worker_address is not None
    assert nanny.worker_address.startswith("backhaul://")
    pids = await client.run(os.getpid)
    assert list(pids) == [nanny.worker_address]
    assert pids[nanny.worker_address] != os.getpid()
    # Its restart is in execution/test_ends.py.
    assert await client.submit(sum, [1, 2]) == 3


@gen_test()
async def test_a_worker_without_a_host_advertises_an_address_that_can_be_reached(
    eventually: Eventually,
) -> None:
    async with (
        Scheduler(protocol="backhaul", dashboard_address=":0", port=0) as scheduler,
        Worker(scheduler.address) as worker,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        assert worker.listen_address is not None
        assert worker.listen_address.startswith("backhaul://0.0.0.0:")
        assert not worker.address.startswith("backhaul://0.0.0.0:")
        assert list(scheduler.workers) == [worker.address]
        future = client.submit(sum, [1, 2])
        assert await client.gather(future, direct=True) == 3


@gen_test()
async def test_scheduler_client_and_workers_may_speak_different_protocols() -> None:
    both: Any = {"protocol": ["tcp", "backhaul"], "port": [0, 0]}
    async with Scheduler(**both, host="127.0.0.1", dashboard_address=":0") as scheduler:
        tcp, backhaul = [listener.contact_address for listener in scheduler.listeners]
        assert tcp.startswith("tcp://")
        assert backhaul.startswith("backhaul://")
        async with (
            Worker(backhaul, host="127.0.0.1") as a,
            Worker(tcp, host="127.0.0.1") as b,
            Client(tcp, asynchronous=True) as client,
        ):
            assert (a.address[:8], b.address[:3]) == ("backhaul", "tcp")
            x = client.submit(np.arange, 1000, workers=a.address)
            assert await client.submit(np.sum, x, workers=b.address) == 499500
            found: Any = lanes(client)
            # The scheme of the target's address counts.
            assert await found == {
                (a.address, b.address): "tcp",
                (b.address, a.address): "inproc",
            }


@gen_test()
async def test_inproc_clusters_stay_as_they_are() -> None:
    async with (
        LocalCluster(
            processes=False, asynchronous=True, dashboard_address=":0", n_workers=1
        ) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        assert cluster.scheduler_address.startswith("inproc://")
        assert await client.submit(sum, [1, 2]) == 3


@gen_test()
async def test_a_cluster_in_threads_can_use_backhaul() -> None:
    async with (
        LocalCluster(
            protocol="backhaul",
            processes=False,
            asynchronous=True,
            dashboard_address=":0",
            n_workers=2,
        ) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        assert cluster.scheduler_address.startswith("backhaul://")
        parts = [delayed(np.ones)(1000) for _ in range(8)]
        assert await client.compute(delayed(np.concatenate)(parts).sum()) == 8000


@gen_test()
async def test_a_cluster_that_must_be_encrypted_does_not_start_without_certificates() -> None:
    security = Security(require_encryption=True)
    with pytest.raises(RuntimeError) as caught:
        await Scheduler(protocol="backhaul", security=security, dashboard_address=":0", port=0)
    messages = f"{caught.value} {caught.value.__cause__}"
    assert "the security settings name no certificates" in messages
