"""Descriptors, mappings and threads of a process in which many clusters and clients have closed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Runs in a process that opens nothing else.
PROGRAM = """\
import gc
import logging
import os
import sys
import time
from operator import neg

import numpy as np
from distributed import Client, LocalCluster

OPTIONS = dict(
    protocol="backhaul", n_workers=1, threads_per_worker=1, dashboard_address=None,
    host="127.0.0.1", worker_dashboard_address=None, silence_logs=logging.CRITICAL,
)


def work(client):
    assert sum(client.gather(client.map(neg, range(20), pure=False))) == -190
    # Goes from the worker through the scheduler, whose connection to the worker stays.
    assert client.submit(np.ones, 100_000, pure=False).result().sum() == 100_000


def clusters(count, processes):
    for _ in range(count):
        with LocalCluster(processes=processes, **OPTIONS) as cluster, Client(cluster) as client:
            work(client)


def clients(count, cluster):
    for _ in range(count):
        with Client(cluster) as client:
            work(client)


def target(name):
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:
        return "closed"


def used():
    gc.collect()
    descriptors = sorted(map(target, os.listdir("/proc/self/fd")))
    with open("/proc/self/maps") as lines:
        return descriptors, len(os.listdir("/proc/self/task")), len(list(lines))


def grown(repeat, count, most):
    # Returns what each of three series has added. A leak grows in all, a cache settles in one.
    series = []
    for _ in range(3):
        if not (more := grown_once(repeat, count, most)):
            return []
        series.append(more)
    return series


def grown_once(repeat, count, most):
    # Waits for what closes a moment later, on a busy machine.
    before = used()
    repeat(count)
    until = time.monotonic() + 20
    while True:
        after = used()
        more = [len(after[0]) - len(before[0]), after[1] - before[1], after[2] - before[2]]
        if all(number <= limit for number, limit in zip(more, most)):
            return []
        if time.monotonic() > until:
            return [more, before, after]
        time.sleep(0.05)


if __name__ == "__main__":
    kind, count = sys.argv[1], int(sys.argv[2])
    # The allocator of Python takes a mapping now and then.
    most = (0, 0, max(10, count // 2))
    if kind == "clients":
        with LocalCluster(processes=False, **OPTIONS) as cluster, Client(cluster):
            clients(5, cluster)
            (worker,) = cluster.workers.values()
            # A new worker's first heartbeat opens a connection that stays.
            while not worker.rpc.open:
                time.sleep(0.01)
            found = grown(lambda count: clients(count, cluster), count, most)
    else:
        clusters(3, kind == "processes")
        found = grown(lambda count: clusters(count, kind == "processes"), count, most)
    print(found)
    print(used()[0])
"""


def run(kind: str, count: int, tmp_path: Path) -> list[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), kind, str(count)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize(("kind", "count"), [("threads", 10), ("processes", 2), ("clients", 10)])
def test_closed_clusters_leave_no_descriptors_threads_or_mappings(
    kind: str, count: int, tmp_path: Path
) -> None:
    grown, _ = run(kind, count, tmp_path)
    assert grown == "[]"
