"""A machine seen from a cgroup of the kernel's own: what a job of Slurm or a container gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Cgroups of version 1, as Slurm makes them; the fixtures of the crate have version 2.
ROOT = Path("/sys/fs/cgroup")

MEMORY_BYTES = 512 << 20


@pytest.fixture
def job() -> Iterator[list[Path]]:
    """Cgroups of one CPU, half a CPU's time and half a GiB; those in them must have ended."""
    made: list[Path] = []

    def make(controller: str, **limits: str) -> None:
        folder = ROOT / controller / f"backhaul-test-{uuid.uuid4().hex}"
        folder.mkdir()
        made.append(folder)
        for name, value in limits.items():
            (folder / name.replace("__", ".")).write_text(value)

    try:
        try:
            make("cpuset", cpuset__cpus="0", cpuset__mems="0")
            make("cpu", cpu__cfs_period_us="100000", cpu__cfs_quota_us="50000")
            make("memory", memory__limit_in_bytes=str(MEMORY_BYTES))
        except OSError as error:
            pytest.skip(f"no cgroups of version 1 can be made here: {error}")
        yield made
    finally:
        for folder in made:
            remove(folder)


def remove(folder: Path) -> None:
    """Remove a cgroup once what was started in it has ended."""
    deadline = time.monotonic() + 30
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def run_in(job: list[Path], *command: str) -> str:
    def join() -> None:
        for folder in job:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    return subprocess.run(
        [sys.executable, *command],
        preexec_fn=join,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=True,
    ).stdout


def test_a_job_is_seen_with_what_it_may_use(job: list[Path]) -> None:
    machine = json.loads(run_in(job, "-m", "backhaul.cli", "topology", "--json"))
    assert machine["allowed_cpus"] == "0"
    assert machine["cpu_quota"] == 0.5
    assert machine["memory_limit_bytes"] == MEMORY_BYTES


def test_a_job_is_planned_for_what_it_may_use(job: list[Path]) -> None:
    listing = run_in(job, "-m", "backhaul.cli", "topology", "--plan", "per-numa", "--json")
    (worker,) = json.loads(listing)["workers"]
    assert worker["cpus"] == "0"
    assert worker["threads"] == 1
    assert 0 < worker["memory_bytes"] <= MEMORY_BYTES


CLUSTER = """
import json, os
from distributed import Client
from backhaul.dask import LocalCluster

def place():
    return sorted(os.sched_getaffinity(0))

if __name__ == "__main__":
    with LocalCluster(dashboard_address=":0", memory_limit=0) as cluster, Client(cluster) as client:
        print(json.dumps([client.nthreads(), client.run(place)]))
"""


def test_a_cluster_in_a_job_stays_in_it(job: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    # Two processes of Dask do not fit half a GiB.
    (job[2] / "memory.limit_in_bytes").write_text(str(4 << 30))
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER)
    threads, places = json.loads(run_in(job, str(script)))
    assert list(threads.values()) == [1]
    assert list(places.values()) == [[0]]
