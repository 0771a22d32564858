"""The measured process of ``start``: ``… LAUNCHER WORKERS THREADS``.

Starts a cluster once everything is imported, and closes it. Prints the seconds of both, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import distributed

import backhaul.dask

__all__ = ["LAUNCHERS", "main"]

#: Launchers that can be compared, by name
LAUNCHERS: dict[str, Callable[..., Any]] = {
    "dask-tcp": lambda **options: distributed.LocalCluster(protocol="tcp", **options),
    "dask-backhaul": lambda **options: distributed.LocalCluster(protocol="backhaul", **options),
    "backhaul": lambda **options: backhaul.dask.LocalCluster(**options),
    "backhaul-unpinned": lambda **options: backhaul.dask.LocalCluster(pin=False, **options),
}


def main(argv: list[str]) -> int:
    """Start and close one cluster.

    Parameters
    ----------
    argv : list of str
        Name of the launcher, number of workers, threads of each.

    Returns
    -------
    int
        Exit status.
    """
    launch, workers, threads = LAUNCHERS[argv[0]], int(argv[1]), int(argv[2])
    begun = time.perf_counter()
    cluster = launch(n_workers=workers, threads_per_worker=threads, dashboard_address=None)
    started = time.perf_counter()
    if len(cluster.scheduler_info["workers"]) != workers:
        raise RuntimeError(f"{workers} workers asked for, not all of them came")
    closing = time.perf_counter()
    cluster.close()
    sys.stdout.write(json.dumps([started - begun, time.perf_counter() - closing]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
