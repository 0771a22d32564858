"""A job over ``backhaul://`` that needs nothing but a release of Dask: messages, a killed worker.

    python -m tests.dask.any_release

Runs on every release that Backhaul supports, without pytest (`tests.dask.releases`). Prints
``well`` at the end; ends with a traceback and 1 otherwise.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import dask.array as da
import distributed
import numpy as np
from distributed import Client, LocalCluster, as_completed, wait
from distributed.deploy.cluster import Cluster

import dask

__all__ = ["main"]


def inc(number: int) -> int:
    """Return a number and one."""
    return number + 1


def fail(text: str) -> None:
    """Raise what a user's task may raise."""
    raise ValueError(text)


def check_messages(client: Client) -> None:
    """Run small tasks, arrays, errors and what travels by other calls."""
    assert client.gather(client.map(inc, range(200))) == list(range(1, 201))
    future = client.submit(fail, "of the user", pure=False)
    error = future.exception()
    assert (type(error), str(error)) == (ValueError, "of the user")
    x = da.random.random((1500, 1500), chunks=(500, 500))
    assert float(abs((x + x.T) - (x + x.T).T).sum().compute()) == 0.0
    scattered = client.scatter(np.arange(200_000), broadcast=True)
    assert int(client.submit(np.sum, scattered).result()) == 199_999 * 100_000
    done = [future.result() for future in as_completed(client.map(inc, range(20, 40)))]
    assert sorted(done) == list(range(21, 41))
    assert set(client.run(os.getpid)) == set(client.scheduler_info()["workers"])
    queue, variable = distributed.Queue("queue"), distributed.Variable("variable")
    queue.put(client.submit(inc, 1))
    variable.set({"two": b"three"})
    assert (queue.get().result(), variable.get()) == (2, {"two": b"three"})
    y = da.ones((400, 400), chunks=(100, 400)).rechunk((400, 100)).persist()
    wait(y)
    assert float(y.sum().compute()) == 160_000.0


def check_killed_worker(client: Client) -> None:
    """Kill a worker that holds results, and compute what it held again."""
    held = client.persist(da.arange(40_000, chunks=4_000) * 2)
    wait(held)
    pids = client.run(os.getpid)
    victim = sorted(pids)[0]
    os.kill(pids[victim], signal.SIGKILL)
    assert int(held.sum().compute()) == 39_999 * 40_000
    while len(client.scheduler_info()["workers"]) < len(pids):
        client.wait_for_workers(len(pids), timeout=120)
    assert client.gather(client.map(inc, range(50), pure=False)) == list(range(1, 51))


def main(arguments: Sequence[str] = ()) -> int:
    """Run the jobs on the installed release."""
    settings: dict[str, Any] = {
        "distributed.worker.daemon": False,
        "distributed.scheduler.allowed-failures": 10,
        "distributed.comm.timeouts.connect": "60s",
    }
    with dask.config.set(settings):
        cluster: Cluster = LocalCluster(
            protocol="backhaul",
            host="127.0.0.1",
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=":0",
        )
        with cluster, Client(cluster) as client:
            assert client.scheduler.address.startswith("backhaul://")
            check_messages(client)
            check_killed_worker(client)
    print(f"distributed {distributed.__version__}: well")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
