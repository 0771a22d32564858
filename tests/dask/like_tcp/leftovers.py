"""Observes what a program leaves on the scheduler and on the workers after its end."""

from __future__ import annotations

import gc
import importlib
import os
import time
from typing import Any

import psutil
from distributed import Client, Scheduler, Worker

from tests.dask.like_tcp import logs

__all__ = ["keep_imports", "leftovers"]

#: For how long a released task may stay, on a busy machine
_SETTLES_S = 20.0


def keep_imports() -> None:
    """Keeps what a worker imports for all programs out of the collection that ends each program."""
    importlib.import_module("tests.dask.like_tcp.kit")
    gc.collect()
    gc.freeze()


def _is_program(client: str) -> bool:
    return not client.startswith(("fire-and-forget", "Client-worker"))


def _on_scheduler(dask_scheduler: Scheduler) -> dict[str, int]:
    extensions: dict[str, Any] = dask_scheduler.extensions
    return {
        "tasks": len(dask_scheduler.tasks),
        # Those of workers stay, and which worker has one is a matter of placement.
        "clients": len([each for each in dask_scheduler.clients if _is_program(each)]),
        "datasets": len(extensions["publish"].datasets),
        "variables": len(extensions["variables"].variables),
        "queues": len(extensions["queues"].queues),
        "semaphores": len(extensions["semaphores"].leases),
        "plugins": len(dask_scheduler.plugins),
    }


def _on_worker(dask_worker: Worker) -> dict[str, Any]:
    gc.collect()
    # The process of this request is the worker.
    children = psutil.Process(os.getpid()).children(recursive=True)
    return {
        "data": len(dask_worker.data),
        "tasks": len(dask_worker.state.tasks),
        "actors": len(dask_worker.state.actors),
        "executing": len(dask_worker.state.executing),
        "plugins": sorted(each for each in dask_worker.plugins if not each.startswith("shuffle")),
        "children": [each.name() for each in children],
    }


def _taken_logs() -> list[tuple[str, int, str]]:
    return logs.taken()


def leftovers(client: Client) -> dict[str, Any]:
    """Waits until nothing of a program is left, and returns what is there then.

    Parameters
    ----------
    client : distributed.Client
        Client of the cluster.

    Returns
    -------
    dict
        Numbers of the scheduler, and of each worker by its position.
    """
    gc.collect()
    deadline = time.monotonic() + _SETTLES_S
    while True:
        scheduler = client.run_on_scheduler(_on_scheduler)
        workers = list(client.run(_on_worker, on_error="raise").values())
        busy = scheduler["tasks"] or any(
            each["data"] or each["tasks"] or each["actors"] or each["executing"] or each["children"]
            for each in workers
        )
        if not busy or time.monotonic() > deadline:
            return {"scheduler": scheduler, "workers": sorted(workers, key=repr)}
        time.sleep(0.01)


def worker_logs(client: Client) -> list[tuple[str, int, str]]:
    """Returns warnings and errors of all workers since the last call."""
    return [record for each in client.run(_taken_logs).values() for record in each]
