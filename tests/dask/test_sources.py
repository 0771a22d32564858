"""The worker from which a result is fetched that several hold: the one with the fastest link."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import Client, Scheduler, Worker

import dask
from backhaul.dask.compat import activation
from backhaul.dask.compat.operations import LINKS
from backhaul.dask.observe.heartbeat import METRIC
from backhaul.dask.observe.link_estimates import LinkAccount
from backhaul.dask.placement import fetch_order
from backhaul.dask.placement.fetch_order import LINK_CLASS_MAX, ToldLinks
from backhaul.dask.placement.link_messages import LinkNews, link_class

PLACED = "distributed.comm.backhaul.placement.enabled"
NEAREST_FIRST = "distributed.comm.backhaul.placement.nearest-first"
#: Number of the class of 1 to 16 MiB
OF_MIB = 3
RECEIVER, FAST, SLOW = "127.0.0.1", "127.0.0.2", "127.0.0.3"
RESULTS = 16


@pytest.fixture(autouse=True)
def fresh(plain_dask: None) -> Iterator[None]:
    """Begin each test with Dask as it is, and end it so."""
    with dask.config.set({"distributed.scheduler.active-memory-manager.start": False}):
        yield


def report_of(worker: Worker, measured: dict[str, float]) -> dict[str, Any]:
    """Say what a worker on that host would, of links from other hosts in bytes per second."""
    return {
        "process": f"process on {worker.ip}",
        "totals": [],
        "flows": [[f"process on {host}", 1, host, "tcp", []] for host in measured],
        "links": [
            struct.pack("<BIff", OF_MIB, 6, bytes_per_s, 0.0) for bytes_per_s in measured.values()
        ],
        "nic_bytes_per_s": None,
        "hears_of_links": fetch_order.hears_of_links(worker),
    }


async def fetched_from(measured: dict[str, float], *, placed: bool = True) -> Counter[str]:
    """Make a worker fetch results that two others hold; count them by the host of the holder."""
    with dask.config.set({PLACED: placed, "distributed.comm.backhaul.arena.share-results": False}):
        async with (
            Scheduler(host="backhaul://127.0.0.1", dashboard_address=":0") as scheduler,
            Worker(scheduler.address, host=RECEIVER, nthreads=1) as receiver,
            Worker(scheduler.address, host=FAST, nthreads=1) as fast,
            Worker(scheduler.address, host=SLOW, nthreads=1) as slow,
            Client(scheduler.address, asynchronous=True) as client,
        ):
            for worker in (receiver, fast, slow):
                # Processes of hosts of their own, which these are not: so their heartbeats say.
                told = measured if worker is receiver else {}
                worker.metrics[METRIC] = lambda self, told=told: report_of(self, told)
            for worker in (fast, slow, receiver):
                await worker.heartbeat()
            # Behind what the scheduler says of links, on the same stream
            await client.submit(int, workers=[receiver.address])
            parts = await client.scatter(
                [np.full(20_000, number) for number in range(RESULTS)],
                workers=[fast.address, slow.address],
                broadcast=True,
            )
            # Another one each time, so that no message has results of both.
            for part in parts:
                total = client.submit(np.sum, part, workers=[receiver.address], pure=False)
                assert await total >= 0
            hosts = {fast.address: FAST, slow.address: SLOW}
            log = receiver.transfer_incoming_log
            return Counter(dict.fromkeys(hosts.values(), 0)) + Counter(
                hosts[transfer["who"]] for transfer in log
            )


def test_a_worker_fetches_from_the_holder_whose_link_was_measured_faster() -> None:
    found = asyncio.run(fetched_from({FAST: 1e9, SLOW: 2e7}))
    assert found == {FAST: RESULTS}
    # It is what was measured that decides, not the address.
    assert asyncio.run(fetched_from({FAST: 2e7, SLOW: 1e9})) == {SLOW: RESULTS}


@pytest.mark.parametrize("placed", [True, False])
def test_holders_with_equal_links_share_the_requests(placed: bool) -> None:
    # Of one class with it, or with a scheduler that says nothing.
    measured = {FAST: 1.0e9, SLOW: 1.1e9 if placed else 2e7}
    found = asyncio.run(fetched_from(measured, placed=placed))
    # All from one of them is as likely as 16 equal throws of a coin.
    assert set(found) == {FAST, SLOW}


def test_a_worker_that_does_not_listen_gets_no_links() -> None:
    async def run() -> None:
        with dask.config.set({PLACED: True, NEAREST_FIRST: False}):
            async with (
                Scheduler(host="backhaul://127.0.0.1", dashboard_address=":0") as scheduler,
                Worker(scheduler.address, nthreads=1) as worker,
                Client(scheduler.address, asynchronous=True) as client,
            ):
                assert LINKS not in worker.stream_handlers
                names = str(list(map(str, activation.installed())))
                assert "_select_workers_for_gather" not in names
                await worker.heartbeat()
                assert await client.submit(int) == 0

    asyncio.run(asyncio.wait_for(run(), 100))


def test_nonsense_is_left_out_with_one_line_and_the_worker_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        async with (
            Scheduler(host="backhaul://127.0.0.1", dashboard_address=":0") as scheduler,
            Worker(scheduler.address, nthreads=1) as worker,
            Client(scheduler.address, asynchronous=True) as client,
        ):
            for hosts in ({"h": -1}, {"h": 41}, {"h": float("nan")}, ["h"], 3):
                message = {"op": LINKS, "hosts": hosts, "peers": {}}
                scheduler.worker_send(worker.address, message)
            scheduler.worker_send(worker.address, {"op": LINKS})
            assert await client.submit(int) == 0

    with caplog.at_level(logging.WARNING, logger=fetch_order.__name__):
        asyncio.run(asyncio.wait_for(run(), 100))
    (line,) = [
        record.getMessage() for record in caplog.records if record.name == fetch_order.__name__
    ]
    assert "-1" in line


def test_a_holder_without_a_link_counts_as_the_others_and_the_own_host_is_nearest() -> None:
    own, near, far, unknown = (f"backhaul://10.0.0.{host}:1" for host in range(4))
    told = ToldLinks(own, {"10.0.0.1": 30, "10.0.0.2": 24}, {"backhaul://10.0.0.0:2": 33})
    assert told("backhaul://10.0.0.0:3") < told("backhaul://10.0.0.0:2") < told(near) < told(far)
    assert told(unknown) == told(far)
    assert ToldLinks(own, {}, {})(near) == ToldLinks(own, {}, {})(far)


@pytest.mark.parametrize("bad", [-1, LINK_CLASS_MAX + 1, 1.5, True, None, "30"])
def test_a_class_of_links_that_cannot_be_is_refused_with_the_value(bad: Any) -> None:
    with pytest.raises(ValueError, match=f"from h has class {bad!r}"):
        ToldLinks("backhaul://10.0.0.1:1", {"h": bad}, {})


@pytest.mark.parametrize("seconds_per_byte", [0.0, 1e-300, 1e-9, 1.0, 1e300])
def test_any_time_has_a_class_that_a_worker_takes(seconds_per_byte: float) -> None:
    ToldLinks("backhaul://10.0.0.1:1", {"h": link_class(seconds_per_byte)}, {})


def test_a_worker_gets_new_links_at_most_once_a_second() -> None:
    async def run() -> None:
        scheduler: Any = Scheduler(dashboard=False, dashboard_address=":0")
        sent: list[dict[str, Any]] = []
        scheduler.worker_send = lambda _, message: sent.append(message)
        account = LinkAccount(100)
        clock = [0.0]
        news = LinkNews(scheduler, account, clock=lambda: clock[0])
        workers = {"a": ["a1", "a2"], "b": ["b1"]}
        for host, own in workers.items():
            for address in own:
                account.handle_report(address, host, {"process": f"p-{address}", "flows": []})

        def measured(sender: str, bytes_per_s: float) -> None:
            told = {
                "process": "p-a1",
                "flows": [[f"p-{sender}", 1, "h", "tcp", []]],
                "links": [struct.pack("<BIff", OF_MIB, 6, bytes_per_s, 0.0)],
            }
            account.handle_report("a1", "a", told)

        # Nothing is known that tells one from another.
        assert not news.tell("a1", workers)
        measured("b1", 1e8)
        assert not news.tell("a1", workers), "within the second"
        clock[0] += 2
        assert news.tell("a1", workers)
        assert sent[-1]["hosts"] == {"b": link_class(1e-8)}
        assert sent[-1]["peers"] == {}
        measured("a2", 4e9)
        measured("b1", 1.1e8)
        clock[0] += 2
        assert news.tell("a1", workers)
        assert sent[-1]["peers"] == {"a2": link_class(1 / 4e9)}
        clock[0] += 2
        assert not news.tell("a1", workers), "nothing is new"
        # One that comes back under the same address knows nothing.
        news.forget("a1")
        assert news.tell("a1", workers)
        # Other workers of a host get the measurement of one, too.
        assert news.tell("a2", workers)
        assert sent[-1]["hosts"] == {"b": link_class(1 / 1.1e8)}

    asyncio.run(run())
