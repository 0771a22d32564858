"""Has a process of Dask say what it waits for, when it is asked to by a signal.

Also a preload of workers and the scheduler. SIGUSR1 prints the stack of every thread, whatever the
interpreter does; SIGUSR2 the connections, with what `Endpoint.info` and `Endpoint.statistics` say,
and the tasks that are not done.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import signal
import sys
import threading
from typing import Any

from distributed import Scheduler, Worker

from backhaul import BackhaulError
from backhaul.dask import BackhaulComm

__all__ = ["dask_setup", "install"]

#: Most tasks that are reported
TASKS_MAX = 40


def install() -> None:
    """Heed both signals from now on."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # A thread of its own: what it reads may be locked by what the signal interrupted.
    signal.signal(
        signal.SIGUSR2, lambda *_: threading.Thread(target=print_state, daemon=True).start()
    )


def dask_setup(_server: Any) -> None:
    """Heed both signals in a worker, a nanny or a scheduler."""
    install()


def print_state() -> None:
    """Write what is known of this process to stderr."""
    for line in describe():
        sys.stderr.write(f"chaos: {line}\n")
    sys.stderr.flush()


def describe() -> list[str]:
    """Say what the process waits for, a line for each thing."""
    lines: list[str] = []
    for found in gc.get_objects():
        try:
            if isinstance(found, BackhaulComm):
                lines.append(_describe_comm(found))
            elif isinstance(found, Worker):
                lines.extend(_describe_worker(found))
            elif isinstance(found, Scheduler):
                lines.extend(_describe_scheduler(found))
            elif isinstance(found, asyncio.Task) and not found.done():
                lines.append(f"asyncio {found!r:.300}")
        except ReferenceError:
            # A proxy of something that is gone.
            continue
    return lines


def _describe_comm(comm: BackhaulComm) -> str:
    endpoint = comm._endpoint
    try:
        return f"{comm!r} {endpoint.info()} {endpoint.statistics()}"
    except BackhaulError as error:
        return f"{comm!r} {error!r}"


def _describe_worker(worker: Worker) -> list[str]:
    state = worker.state
    tasks = [one for one in state.tasks.values() if one.state not in ("memory", "released")]
    lines = [f"{worker!r} ready {len(state.ready)}, in flight from {dict(state.in_flight_workers)}"]
    for task in tasks[:TASKS_MAX]:
        lines.append(f"{task!r} waits for {task.waiting_for_data}, {task.who_has}")
    return lines


def _describe_scheduler(scheduler: Scheduler) -> list[str]:
    tasks = [one for one in scheduler.tasks.values() if one.state not in ("memory", "released")]
    lines = [f"{scheduler!r}", *(f"{one!r} {one.status}" for one in scheduler.workers.values())]
    for task in tasks[:TASKS_MAX]:
        lines.append(f"{task!r} on {task.processing_on}, waits for {task.waiting_on}")
        lines.extend(f"  {event}" for event in scheduler.story(task.key)[-6:])
    return lines
