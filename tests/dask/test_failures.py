"""A scheduler that is gone, and an event loop that user code holds up."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from distributed import Client, wait
from distributed.client import FutureCancelledError

import dask

if TYPE_CHECKING:
    from tests.dask.conftest import Program, Start

SCHEDULER = ["-m", "dask", "scheduler", "--host", "127.0.0.1", "--no-dashboard", "--no-show"]
WORKER = ["-m", "dask", "worker", "--host", "127.0.0.1", "--no-nanny", "--no-dashboard"]


def start_cluster(start: Start, workers: int, **environment: str) -> tuple[Program, list[Program]]:
    """Start a scheduler and workers, each a process of its own."""
    scheduler = start(*SCHEDULER, "--protocol", "backhaul", "--port", "0", env=environment)
    address = scheduler.wait_for(r"Scheduler at:\s+(backhaul://\S+)")
    started = [start(*WORKER, "--nthreads", "1", address, env=environment) for _ in range(workers)]
    for worker in started:
        worker.wait_for(r"Registered to:\s+(backhaul://)")
    return scheduler, started


def address_of(scheduler: Program) -> str:
    return scheduler.wait_for(r"Scheduler at:\s+(backhaul://\S+)")


@pytest.mark.parametrize("lane", ["shm", "tcp"])
def test_everybody_ends_when_the_scheduler_is_killed(lane: str, start: Start) -> None:
    lanes = {"DASK_DISTRIBUTED__COMM__BACKHAUL__LANES": f"['{lane}']"}
    scheduler, [worker] = start_cluster(start, 1, **lanes)
    settings = {
        "distributed.comm.backhaul.lanes": [lane],
        # How long a client tries to find its scheduler again
        "distributed.comm.timeouts.connect": "1s",
    }
    with dask.config.set(settings), Client(address_of(scheduler)) as client:
        running = client.submit(time.sleep, 3, pure=False)
        waiting = client.submit(slept, running)
        scheduler.process.send_signal(signal.SIGKILL)
        # Neither waits for ever: both raise.
        with pytest.raises(FutureCancelledError):
            waiting.result(timeout=300)
        assert {running.status, waiting.status} == {"cancelled"}
    # It gives up by itself, in its own time.
    worker.wait()


def slept(_: Any) -> None:
    """Come after something."""


def test_a_loop_that_is_held_up_for_longer_than_the_keep_alive_loses_nothing(start: Start) -> None:
    environment = {
        "DASK_DISTRIBUTED__COMM__BACKHAUL__LANES": "['tcp']",
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "500ms",
    }
    scheduler, _ = start_cluster(start, 2, **environment)
    settings = {
        "distributed.comm.backhaul.lanes": ["tcp"],
        "distributed.comm.timeouts.tcp": "500ms",
    }
    with dask.config.set(settings), Client(address_of(scheduler)) as client:
        holder, other = sorted(client.nthreads())
        arrays = [client.submit(np.full, 500_000, number, workers=[holder]) for number in range(8)]
        wait(arrays, timeout=300)
        # Its event loop, not a thread beside it, while another wants what it has.
        blocking = threading.Thread(
            target=client.run, args=(time.sleep, 2), kwargs={"workers": [holder]}
        )
        blocking.start()
        sums = [client.submit(np.sum, array, workers=[other], pure=False) for array in arrays]
        totals = client.gather(sums)
        assert totals == [500_000 * number for number in range(8)]
        blocking.join(60)
        assert sorted(client.nthreads()) == [holder, other]
