"""Times of requests for data: reports of workers, and their use by placement."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

import pytest
from distributed import Client, Scheduler, Worker

import dask
from backhaul import _native
from backhaul.dask.observe.fetch_latency import NBYTES_MAX, FetchTimes, request_s_of
from backhaul.dask.placement import link_placement
from backhaul.dask.placement.link_placement import BETA, BETA_PRIVATE

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def fresh(plain_dask: None) -> Iterator[None]:
    """Begin each test with Dask as it is, and end it so."""
    with dask.config.set({"distributed.scheduler.active-memory-manager.start": False}):
        yield


def test_workers_report_the_latency_of_requests_and_placement_counts_it() -> None:
    async def run() -> None:
        with dask.config.set({"distributed.comm.backhaul.placement.enabled": True}):
            async with (
                Scheduler(
                    host="backhaul://127.0.0.1", dashboard=False, dashboard_address=":0"
                ) as scheduler,
                Worker(scheduler.address, nthreads=1) as holder,
                Worker(scheduler.address, nthreads=1) as receiver,
                Client(scheduler.address, asynchronous=True) as client,
            ):
                found = scheduler.plugins["backhaul-placement"]
                assert isinstance(found, link_placement.LinkPlacement)
                await receiver.heartbeat()
                assert request_s_of(receiver) is None
                assert found.fetch_times.request_s is None

                [large] = await client.scatter([bytes(NBYTES_MAX + 1)], workers=[holder.address])
                await client.submit(len, large, workers=[receiver.address])
                assert request_s_of(receiver) is None, "its bytes took time, too"
                for number in range(3):
                    [small] = await client.scatter([[number]], workers=[holder.address])
                    await client.submit(sum, small, workers=[receiver.address])
                took = [
                    each["stop"] - each["start"]
                    for each in receiver.transfer_incoming_log
                    if each["total"] <= NBYTES_MAX
                ]
                assert len(took) == 3
                assert request_s_of(receiver) == sorted(took)[1]

                await receiver.heartbeat()
                assert found.fetch_times.request_s == sorted(took)[1]
                # A result that only the receiver has is that much further from the other worker.
                [own] = await client.scatter([[7]], workers=[receiver.address])
                waiting = client.submit(len, own, workers=["nobody"], pure=False)
                while waiting.key not in scheduler.tasks:
                    await asyncio.sleep(0.01)
                ts = scheduler.tasks[waiting.key]
                here, there = (scheduler.workers[each.address] for each in (receiver, holder))
                assert found.mirror.transfer(ts, here) == (0.0, 0.0)
                costs = found.mirror.transfer(ts, there)
                assert costs is not None
                assert costs[0] >= sorted(took)[1]
                del waiting
                await receiver.close()
                assert found.fetch_times.request_s is None

    asyncio.run(asyncio.wait_for(run(), 100))


@pytest.mark.parametrize("nonsense", [None, "soon", True, -1e-9, math.nan, math.inf, 1.5, [0.001]])
def test_nonsense_is_left_out(nonsense: object) -> None:
    times = FetchTimes()
    times.tell("a", 3e-3)
    times.tell("a", nonsense)
    times.tell("b", nonsense)
    assert times.request_s == 3e-3


def test_it_is_the_median_over_workers_that_are_there() -> None:
    times = FetchTimes()
    for address, request_s in {"a": 1e-3, "b": 2e-3, "c": 0.9}.items():
        times.tell(address, request_s)
    assert times.request_s == 2e-3
    times.forget("c")
    times.forget("nobody")
    assert times.request_s == 1.5e-3
    times.tell("b", 5e-3)
    assert times.request_s == 3e-3


@pytest.mark.parametrize(
    ("request_s", "shown"), [(-1.5, "-1.5"), (math.nan, "NaN"), (math.inf, "inf")]
)
def test_a_request_that_cannot_be_is_refused_with_the_value(request_s: float, shown: str) -> None:
    mirror = _native.Placement(beta=BETA, beta_private=BETA_PRIVATE)
    with pytest.raises(ValueError, match=f"request for data that takes {shown} s"):
        mirror.set_request_seconds(request_s)
