"""Bytes between two hosts with 1 Gb/s between them, with and without placement.

The hosts are network namespaces; `backhaul.dask.transfers` counts.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.dask.hosts import Hosts, needs_namespaces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.dask.conftest import Start

pytestmark = [
    needs_namespaces,
    pytest.mark.skipif(
        not os.environ.get("BACKHAUL_LIVE_PLACEMENT"),
        reason="who is idle when decides on a busy machine; BACKHAUL_LIVE_PLACEMENT=1 runs it",
    ),
]

ADDRESSES = {"near": "10.79.0.1", "far": "10.79.0.2"}
FAST_BYTES_PER_S = 125e6

#: Scheduler and client, on the host of the first workers; several jobs, as one says too little
PROGRAM = """
import sys

import dask.array as da
from distributed import Client, LocalCluster

from backhaul.dask import transfers

JOBS = {
    "a+b": lambda a, b: (a + b).sum(),
    "transpose": lambda a, b: (a + a.T).sum(),
    "std": lambda a, b: (a - a.mean(axis=0)).std(),
}

def crossed(client, near, far):
    frame = transfers(client)
    # Between workers: messages of the scheduler are the same with each placement
    for end in ("sender", "receiver"):
        frame = frame[frame[end] != client.scheduler.address]
    ends = [frame[end].str.extract(r"://([0-9.]+):")[0] for end in ("sender", "receiver")]
    return int(frame[ends[0].isin([near, far]) & ends[1].isin([near, far])
                     & (ends[0] != ends[1])]["bytes"].sum())

if __name__ == "__main__":
    near, far, name = sys.argv[1:]
    with LocalCluster(protocol="backhaul", host=near, n_workers=2, threads_per_worker=1,
                      dashboard_address=None) as cluster, Client(cluster) as client:
        print("scheduler:", cluster.scheduler_address, flush=True)
        client.wait_for_workers(4, timeout=100)
        before = crossed(client, near, far)
        for _ in range(4):
            a, b = (da.random.random((3000, 3000), chunks=300) for _ in range(2))
            JOBS[name](a, b).compute()
        print("crossed:", crossed(client, near, far) - before, flush=True)
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Make two hosts, and remove them in the end."""
    made = Hosts(ADDRESSES)
    try:
        made.make()
        for host in ADDRESSES:
            made.slow_down(host, FAST_BYTES_PER_S)
        yield made
    finally:
        made.close()


def crossed_bytes(hosts: Hosts, start: Start, job: str, *, placed: bool) -> int:
    """Compute on a cluster of its own; count what went from host to host."""
    switch = f"DASK_DISTRIBUTED__COMM__BACKHAUL__PLACEMENT__ENABLED={placed}"
    within = [*hosts.within("near"), "env", switch]
    program = start("-c", PROGRAM, *ADDRESSES.values(), job, within=within)
    address = program.wait_for(r"scheduler: (\S+)")
    for _ in range(2):
        start(
            "-m", "dask", "worker", address, "--host", ADDRESSES["far"], "--nthreads", "1",
            "--no-nanny", "--no-dashboard", within=hosts.within("far"),
        )  # fmt: skip
    crossed = int(program.wait_for(r"crossed: (\d+)"))
    assert program.wait() == 0, program.output
    return crossed


@pytest.mark.parametrize("job", ["a+b", "transpose", "std"])
def test_a_quarter_of_upstreams_bytes_crosses_at_most(hosts: Hosts, start: Start, job: str) -> None:
    upstream = crossed_bytes(hosts, start, job, placed=False)
    ours = crossed_bytes(hosts, start, job, placed=True)
    print(f"{job}: {upstream / 1e6:.1f} -> {ours / 1e6:.1f} MB")  # noqa: T201
    told = json.dumps({"ours": ours, "upstream": upstream})
    # Of 288 MB for `std`, where upstream keeps most together too, by chance.
    enough = 0.25 * upstream + (0 if job != "std" else 0.02 * 288e6)
    assert ours <= enough, told
