"""Transfers by sender and receiver, where scheduler, workers and client are one process."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from distributed import Client, Scheduler, Worker
from distributed.utils_test import gen_cluster

from backhaul.dask import transfers

MIB = 1 << 20


def say(report: Any, dask_worker: Worker) -> Any:
    """Report made-up numbers."""
    return report


OVER_BACKHAUL: dict[str, Any] = {
    "scheduler_kwargs": {"protocol": "backhaul"},
    "worker_kwargs": {"protocol": "backhaul"},
}


@gen_cluster(client=True, **OVER_BACKHAUL)
async def test_an_asynchronous_client_awaits_it(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker
) -> None:
    x = client.submit(np.ones, MIB, workers=a.address)
    await client.submit(np.sum, x, workers=b.address)
    asked: Any = transfers(client)
    frame = await asked
    # All of them are in this process, so they are one.
    (name,) = set(frame[frame.present].receiver)
    address, _, others = name.partition(" ")
    assert address in {scheduler.address, a.address, b.address}
    assert others == "+2"
    inproc = frame[(frame.lane == "inproc") & (frame.size_class == "1-16MiB")]
    assert inproc.bytes.sum() >= 8 * MIB


@gen_cluster(client=True, **OVER_BACKHAUL)
async def test_heartbeats_carry_it_past_upstream(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker
) -> None:
    await a.heartbeat()
    metrics: Any = scheduler.workers[a.address].metrics
    assert "memory" in metrics
    assert "backhaul-transfers" not in metrics


@gen_cluster(client=True, nthreads=[], **OVER_BACKHAUL)
async def test_workers_that_come_and_go_unread_take_no_room(
    client: Client, scheduler: Scheduler
) -> None:
    account: Any = scheduler.handlers["heartbeat_worker"].__self__  # type: ignore[attr-defined]
    ledger = account._ledger
    for number in range(200):
        ledger.handle_report(f"w{number}", {"process": f"p{number}", "totals": [], "flows": []}, 0)
    async with Worker(scheduler.address, protocol="backhaul") as worker:
        await worker.heartbeat()
        assert ledger.present <= 2


@gen_cluster(client=True, **OVER_BACKHAUL)
async def test_no_plugin_of_dasks_is_called_for_each_task(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker
) -> None:
    assert not any("backhaul" in type(plugin).__module__ for plugin in scheduler.plugins.values())


@gen_cluster(client=True, **OVER_BACKHAUL)
async def test_a_report_that_makes_no_sense_does_not_end_the_worker(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker
) -> None:
    for nonsense in ({"process": 1, "totals": None}, "nonsense", {"process": "p", "totals": []}):
        a.metrics["backhaul-transfers"] = functools.partial(say, nonsense)
        await a.heartbeat()
    assert a.status.name == "running"
    assert await client.submit(sum, [1, 2], workers=a.address) == 3
