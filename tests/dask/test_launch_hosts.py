"""A cluster on several hosts: network namespaces, each with an address of its own.

::

    scheduler 10.77.0.1 ──┐            ┌── workers 10.77.0.2, two of them
                          ├── bridge ──┤
    client    10.77.0.4 ──┘            └── workers 10.77.0.3, two of them, slow to send

The client has no Backhaul; no option says which lane to use.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.dask.hosts import Hosts, needs_namespaces

if TYPE_CHECKING:
    from tests.dask.conftest import Start

pytestmark = [needs_namespaces]

ADDRESSES = {
    "scheduler": "10.77.0.1",
    "near": "10.77.0.2",
    "far": "10.77.0.3",
    "client": "10.77.0.4",
}
#: Upload rate of the host `far`, in bytes per second
SLOW_BYTES_PER_S = 200e6 / 8

COMMAND = ["-m", "dask", "backhaul"]

CLIENT = """
import json, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "backhaul":
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Refuse())

from distributed import Client, wait

def make(n):
    import numpy
    return numpy.full(n, 1, dtype="u1")

def lanes(dask_worker):
    found = {}
    for address, comms in dask_worker.rpc.available.items():
        found.update({address: comm.lane for comm in comms})
    return found

def transfers(dask_worker):
    logs = dask_worker.transfer_incoming_log
    return [(log["who"], log["total"], log["duration"]) for log in logs]

with Client(sys.argv[1], direct_to_workers=False) as client:
    client.wait_for_workers(4, timeout=300)
    found = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    workers = {a: w["name"] for a, w in found.items()}
    assert all(address.startswith("backhaul://10.77.0.") for address in workers), workers
    # From every worker to every other one, one after another; then again, with all connected.
    pairs = [(source, target) for source in workers for target in workers if source != target]
    for source, target in pairs * 2:
        part = client.submit(make, 4_000_000, workers=source, pure=False)
        wait(part)
        assert client.submit(len, part, workers=target, pure=False).result() == 4_000_000
    name = workers.get
    found = {
        "lanes": [
            [name(here), name(there), lane]
            for here, all_lanes in client.run(lanes).items()
            for there, lane in all_lanes.items() if there in workers
        ],
        "transfers": [
            [name(there), name(here), total, seconds]
            for here, logs in client.run(transfers).items() for there, total, seconds in logs
        ],
    }
    print("found:", json.dumps(found))
"""

OBSERVER = """
import sys

from distributed import Client

from backhaul.dask import transfers

with Client(sys.argv[1]) as client:
    frame = transfers(client)
    frame = frame[frame["size_class"] == "1-16MiB"]
    columns = ["sender", "receiver", "lane", "bytes", "seconds"]
    print("observed:", frame[columns].to_json(orient="values"))
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Make the hosts, and remove them in the end."""
    hosts = Hosts(ADDRESSES)
    try:
        hosts.make()
        hosts.slow_down("far", SLOW_BYTES_PER_S)
        yield hosts
    finally:
        hosts.close()


@pytest.fixture(scope="module")
def address(hosts: Hosts, start: Start) -> str:
    """Start the cluster; where clients without Backhaul reach it."""
    scheduler = start(
        *COMMAND, "scheduler", "--host", ADDRESSES["scheduler"], "--no-dashboard",
        within=hosts.within("scheduler"),
    )  # fmt: skip
    address = scheduler.wait_for(r"Scheduler at:\s+(tcp://10\.77\.0\.1:8786)")
    scheduler.wait_for(r"Scheduler at:\s+(backhaul://10\.77\.0\.1:8785)")
    workers = [
        start(
            *COMMAND, "worker", address, "--nworkers", "2", "--nthreads", "1", "--name", host,
            "--memory-limit", "1GiB", "--no-dashboard", within=hosts.within(host),
        )
        for host in ("near", "far")
    ]  # fmt: skip
    for worker in workers:
        worker.wait_for(r"speaking to the scheduler at (backhaul://10\.77\.0\.1:8785)")
        worker.wait_for(r"2 of 2: (\S+)")
    return address


@pytest.fixture(scope="module")
def found(hosts: Hosts, address: str, start: Start) -> dict[str, Any]:
    """Move data from each worker to each other; return lanes, and flows by receiver and sender."""
    client = start("-c", CLIENT, address, within=hosts.within("client"))
    assert client.wait() == 0, client.output
    found: dict[str, Any] = json.loads(client.wait_for(r"found: (.*)"))
    return found


def assert_one_link_is_slow(by_link: dict[tuple[str, str], list[float]]) -> None:
    """Check bandwidths between hosts, in bytes per second."""
    # The bucket of the slow link lets a little through at once.
    assert max(by_link["far", "near"]) < 1.5 * SLOW_BYTES_PER_S, by_link
    for link in (("near", "near"), ("near", "far"), ("far", "far")):
        assert max(by_link[link]) > 2 * SLOW_BYTES_PER_S, by_link


def test_workers_share_memory_within_a_host_and_use_tcp_between_hosts(
    found: dict[str, Any],
) -> None:
    lanes = {(source, target): lane for source, target, lane in found["lanes"]}
    assert len(lanes) == 12
    for (source, target), lane in lanes.items():
        same_host = source.partition("-")[0] == target.partition("-")[0]
        assert lane == ("shm" if same_host else "tcp"), (source, target)


def test_a_slow_link_is_visible_in_the_transfer_log(found: dict[str, Any]) -> None:
    by_link = defaultdict(list)
    for source, target, nbytes, seconds in found["transfers"]:
        by_link[source.partition("-")[0], target.partition("-")[0]].append(nbytes / seconds)
    assert {link: len(rates) for link, rates in by_link.items()} == {
        ("near", "near"): 4, ("near", "far"): 8, ("far", "near"): 8, ("far", "far"): 4,
    }  # fmt: skip
    assert_one_link_is_slow(by_link)


def test_a_slow_link_is_visible_in_backhauls_own_account(
    hosts: Hosts, address: str, found: dict[str, Any], start: Start
) -> None:
    assert found["transfers"]
    observer = start("-c", OBSERVER, address, within=hosts.within("client"))
    assert observer.wait() == 0, observer.output
    by_link = defaultdict(list)
    host_of = {address: host for host, address in ADDRESSES.items()}
    for sender, receiver, lane, nbytes, seconds in json.loads(observer.wait_for(r"observed: (.*)")):
        link = tuple(
            host_of[end.removeprefix("backhaul://").rpartition(":")[0]]
            for end in (sender, receiver)
        )
        assert lane == ("shm" if link[0] == link[1] else "tcp")
        by_link[link[0], link[1]].append(nbytes / seconds)
    assert_one_link_is_slow(by_link)
