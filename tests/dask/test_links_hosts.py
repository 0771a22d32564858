"""Links of several hosts: network namespaces, with a rate between them that changes.

::

    scheduler, client, two workers 10.78.0.2 ── bridge ── 10.78.0.3 one worker
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.dask.hosts import Hosts, needs_namespaces

if TYPE_CHECKING:
    from tests.dask.conftest import Start

pytestmark = [needs_namespaces]

ADDRESSES = {"near": "10.78.0.2", "far": "10.78.0.3"}
#: What `near` can send, in bytes per second, before and after
FAST_BYTES_PER_S, SLOW_BYTES_PER_S = 1e9 / 8, 200e6 / 8

#: Reads commands: a link and how many messages to send over it; says what is known of it then
PROGRAM = """
import json, sys

import dask, numpy
from distributed import Client, LocalCluster

from backhaul.dask import links

# Copied: what is lent takes no time that would depend on the link.
dask.config.set({"distributed.comm.backhaul.arena.share-results": False})
if __name__ == "__main__":
    with (
        LocalCluster(
            protocol="backhaul", host="10.78.0.2", n_workers=2, threads_per_worker=1,
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        print("scheduler:", cluster.scheduler_address, flush=True)
        client.wait_for_workers(3, timeout=300)
        found = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
        workers = {w["name"]: a for a, w in found.items()}
        print("ready: yes", flush=True)
        for number, line in enumerate(sys.stdin):
            sender, receiver, messages = json.loads(line)
            for _ in range(messages):
                part = client.submit(
                    numpy.ones, 4_000_000, "u1", workers=[workers[sender]], pure=False
                )
                client.submit(len, part, workers=[workers[receiver]], pure=False).result()
            frame = links(client)
            rows = frame[
                (frame.sender == workers[sender])
                & (frame.receiver == workers[receiver])
                & (frame.size_class == "1-16MiB")
            ]
            columns = ["lane", "bandwidth", "samples", "origin"]
            print(f"told {number}:", rows[columns].to_json(orient="records"), flush=True)
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Make the hosts, and remove them in the end."""
    hosts = Hosts(ADDRESSES)
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.close()


def within_a_quarter(bandwidth: float, truth: float) -> bool:
    return truth / 1.25 <= bandwidth <= truth * 1.25


def test_links_of_ten_times_different_speed_are_distinguished_and_a_change_is_followed(
    hosts: Hosts, start: Start
) -> None:
    hosts.slow_down("near", FAST_BYTES_PER_S)
    program = start("-c", PROGRAM, within=hosts.within("near"), stdin=True)
    address = program.wait_for(r"scheduler: (\S+)")
    worker = [
        *("-m", "dask", "worker", address, "--host", ADDRESSES["far"], "--name", "far"),
        *("--nthreads", "1", "--no-nanny", "--no-dashboard"),
    ]
    start(*worker, within=hosts.within("far"))
    program.wait_for(r"ready: (\S+)")
    asked = 0

    def told(sender: Any, receiver: Any, messages: int) -> dict[str, Any]:
        nonlocal asked
        program.write(json.dumps([sender, receiver, messages]) + "\n")
        (row,) = json.loads(program.wait_for(rf"told {asked}: (.*)"))
        asked += 1
        found: dict[str, Any] = row
        return found

    def told_at_last(receiver: Any, is_right: Callable[[float], bool]) -> dict[str, Any]:
        # Six messages, and more where this machine has no processor for so much at the time.
        row = told(0, receiver, 6)
        for _ in range(30):
            if not is_right(row["bandwidth"]):
                row = told(0, receiver, 6)
        return row

    between = told_at_last("far", lambda found: within_a_quarter(found, FAST_BYTES_PER_S))
    assert within_a_quarter(between["bandwidth"], FAST_BYTES_PER_S), between
    assert (between["lane"], between["origin"]) == ("tcp", "process pair")
    inside = told_at_last(1, lambda found: found > 4 * FAST_BYTES_PER_S)
    assert inside["bandwidth"] > 4 * FAST_BYTES_PER_S, inside
    assert (inside["lane"], inside["origin"]) == ("shm", "process pair")
    # Another worker of the host has not met it, and gets the estimate of its host.
    unmet = told(1, "far", 0)
    assert (unmet["lane"], unmet["origin"]) == (None, "host pair")
    assert unmet["bandwidth"] == pytest.approx(between["bandwidth"], rel=1e-3)

    hosts.slow_down("near", SLOW_BYTES_PER_S)
    after = told(0, "far", 8)
    assert after["samples"] == between["samples"] + 8
    assert within_a_quarter(after["bandwidth"], SLOW_BYTES_PER_S), after
