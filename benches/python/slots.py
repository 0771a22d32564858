"""``slots``: what it is worth that tasks wait for what they ask for and for nothing else.

Figures with resources as Dask has them and with ours: how long work for CPUs and independent work
for GPUs take together; how long a free unit waits for its next task while another task, ahead of
it, waits for something else; what a scheduler of a thousand workers spends on the choice of one;
what a small task costs of which some ask for a unit, with the scheduler's state in Dask's objects
and in the core; and what a task that asks for a unit costs on the local schedulers, beside Dask's
own without it.
Tasks of the first two sleep, so that the figures show the waiting and not this machine's cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import dask.local
import dask.threaded
from distributed import Client, LocalCluster, Scheduler, Worker, wait

from backhaul.dask import resources, sync, threaded
from backhaul.dask.resource_pools import scheduler_slots
from backhaul_bench.summary import Spread, spread

__all__ = ["TASK_S", "choice_us", "gaps_s", "local_us", "main", "makespan_s", "mixed_us"]

_SWITCH = "distributed.comm.backhaul.resources.enabled"
_CORE = "distributed.comm.backhaul.hot-path.scheduler-core"
#: Duration of one task, in seconds
TASK_S = 0.1
#: Until nothing of a job is left in the clusters, in seconds
_SETTLES_S = 0.3
#: Tasks for each thread, and for each GPU
_ROUNDS = 16
_WORKERS, _THREADS = 2, 2


def makespan_s(*, ours: bool, repeats: int) -> Spread:
    """Time work for CPUs and work for GPUs that need not wait for each other.

    Parameters
    ----------
    ours : bool
        Whether resources are ours.
    repeats : int
        How often.

    Returns
    -------
    Spread
        Seconds from the first submission to the last result. Each of both takes ``16 * TASK_S``.
    """
    # Dask has no way to say that a task takes no thread.
    asked = {"GPU": 1, "CPU": 0} if ours else {"GPU": 1}
    with _cluster(ours=ours, resources={"GPU": 1}) as client:
        taken = []
        for number in range(repeats + 1):
            begin = time.perf_counter()
            cpu = client.map(_nap, range(_ROUNDS * _WORKERS * _THREADS), pure=False)
            gpu = client.map(_nap, range(_ROUNDS * _WORKERS), pure=False, resources=asked)
            client.gather(cpu + gpu)
            if number:
                taken.append(time.perf_counter() - begin)
            del cpu, gpu
    return spread(taken)


def gaps_s(*, ours: bool, tasks: int = 50) -> tuple[float, Spread]:
    """Time how long a free unit waits for its next task, behind one that waits for another.

    Parameters
    ----------
    ours : bool
        Whether resources are ours.
    tasks : int
        How many tasks the unit has.

    Returns
    -------
    first_s : float
        Seconds from the submission to the beginning of the first task.
    between_s : Spread
        Seconds from the end of each task to the beginning of the next one.
    """
    with _cluster(ours=ours, resources={"GPU": 1, "DISK": 1}, workers=1) as client:
        holder = client.submit(_nap, 0, 2.0, resources={"DISK": 1})
        blocked = client.submit(_nap, 1, resources={"DISK": 1}, priority=10)
        time.sleep(TASK_S)
        submitted_s = time.time()
        spans = client.gather(
            client.map(_nap, range(tasks), seconds=0.01, pure=False, resources={"GPU": 1})
        )
        client.gather([holder, blocked])
    spans.sort()
    between = [after[0] - before[1] for before, after in itertools.pairwise(spans)]
    return spans[0][0] - submitted_s, spread(between)


def mixed_us(*, repeats: int, tasks: int = 2000) -> dict[bool, tuple[Spread, Spread]]:
    """Time small tasks of which one in twenty asks for a GPU and no thread.

    Parameters
    ----------
    repeats : int
        How often, in turn.
    tasks : int
        Tasks that ask for nothing.

    Returns
    -------
    dict
        By whether the core has the scheduler's state: microseconds for a task, from the first
        submission to the last result, and of CPU of the client and the scheduler.
    """
    found: dict[bool, tuple[list[float], list[float]]] = {core: ([], []) for core in (False, True)}
    with contextlib.ExitStack() as stack:
        clients = {}
        for core in found:
            with dask.config.set({_CORE: core, "backhaul.resources": {"GPU": [0, 1]}}):
                cluster = _cluster(ours=True, threads=1)
                clients[core] = stack.enter_context(cluster)
        for number in range(repeats + 2):
            for core, client in clients.items():
                begin = time.perf_counter(), time.process_time()
                plain = client.map(_increment, range(tasks), pure=False)
                asking = client.map(_increment_beside, range(tasks // 20), pure=False)
                wait([*plain, *asking])
                end = time.perf_counter(), time.process_time()
                if number > 1:
                    for times, began_s, ended_s in zip(found[core], begin, end, strict=True):
                        times.append((ended_s - began_s) / (tasks + tasks // 20) * 1e6)
                del plain, asking
                # Keys are released on both sides: not while the next job runs.
                time.sleep(_SETTLES_S)
    return {core: (spread(took), spread(cpu)) for core, (took, cpu) in found.items()}


def local_us(*, repeats: int, tasks: int = 10_000) -> dict[str, tuple[Spread, Spread]]:
    """Time a task on the local schedulers: Dask's, and ours where each asks for a unit.

    Parameters
    ----------
    repeats : int
        How often, in turn.
    tasks : int
        Tasks of one graph, ``x + 1`` each.

    Returns
    -------
    dict
        By scheduler: microseconds of CPU for a task of the plain graph on Dask's, and of the graph
        that asks on ours.
    """
    asked = {"resources": {"GPU": 2}}
    gets: dict[str, Any] = {
        "threads": (dask.threaded.get, threaded.get),
        "one thread": (dask.local.get_sync, sync.get),
    }
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in gets}
    for _ in range(repeats):
        for name, (theirs, ours) in gets.items():
            found[name][0].append(_task_us(theirs, _increment, tasks))
            found[name][1].append(_task_us(ours, _increment_on_gpu, tasks, **asked))
    return {name: (spread(theirs), spread(ours)) for name, (theirs, ours) in found.items()}


def _task_us(get: Any, function: Any, tasks: int, **options: Any) -> float:
    graph = {f"x-{number}": (function, number) for number in range(tasks)}
    begin = time.process_time()
    get(graph, list(graph), **options)
    return (time.process_time() - begin) / tasks * 1e6


def _increment(number: int) -> int:
    return number + 1


@resources(GPU=1)
def _increment_on_gpu(number: int) -> int:
    return number + 1


@resources(GPU=1, CPU=0)
def _increment_beside(number: int) -> int:
    return number + 1


def choice_us(*, ours: bool, workers: int = 1000, choices: int = 200) -> float:
    """Time the choice of a worker for a task without inputs that asks for a GPU.

    Parameters
    ----------
    ours : bool
        Whether resources are ours.
    workers : int
        Number of workers, four GPUs each, that the scheduler knows.
    choices : int
        How many tasks are placed, one after another.

    Returns
    -------
    float
        Median over the tasks, in microseconds.
    """
    with dask.config.set({_SWITCH: ours, "distributed.scheduler.work-stealing": False}):
        return asyncio.run(_choice_us(workers, choices, ours=ours))


async def _choice_us(workers: int, choices: int, *, ours: bool) -> float:
    from dask._task_spec import Task

    async with Scheduler(
        protocol="tcp", host="127.0.0.1", port=0, dashboard=False, dashboard_address=":0"
    ) as scheduler:
        if ours:
            scheduler_slots.install(scheduler)
        joining = [
            asyncio.ensure_future(_join(scheduler, f"tcp://10.0.{n // 250}.{n % 250}:9000"))
            for n in range(workers)
        ]
        while len(scheduler.workers) < workers:
            await asyncio.sleep(0)
        taken = []
        tasks = []
        for number in range(choices):
            ts = scheduler.new_task(f"task-{number}", Task(f"task-{number}", _nap, 0), "released")
            tasks.append(ts)
        scheduler._apply_annotations(tasks, {}, {"resources": {"GPU": 1}})
        for ts in tasks:
            begin = time.perf_counter()
            ws = scheduler.decide_worker_non_rootish(ts)
            # The update of the rankings is part of it.
            scheduler.acquire_resources(ts, ws)
            taken.append((time.perf_counter() - begin) * 1e6)
        # It says at length that all of them were lost.
        logging.disable()
        for each in joining:
            each.cancel()
        await asyncio.gather(*joining, return_exceptions=True)
    logging.disable(logging.NOTSET)
    return statistics.median(taken)


async def _join(scheduler: Scheduler, address: str) -> None:
    metrics: dict[str, Any] = {
        "bandwidth": {"total": 1e8, "workers": {}, "types": {}},
        "digests_total_since_heartbeat": {},
        "managed_bytes": 0,
        "memory": 0,
        "spilled_bytes": {"memory": 0, "disk": 0},
    }
    await scheduler.add_worker(
        _Silent(address),  # type: ignore[arg-type]
        address=address,
        status="running",
        server_id=address,
        nthreads=4,
        name=address,
        resolve_address=False,
        now=time.time(),
        resources={"GPU": 4},
        memory_limit=2**33,
        metrics=metrics,
        services={},
        local_directory="",
        versions={},
        nanny="",
        extra={},
        stimulus_id="benchmark",
    )


class _Silent:
    """Stands for the comm of a worker that takes everything and says nothing."""

    name = None

    def __init__(self, address: str) -> None:
        self.peer_address = address
        self.local_address = ""
        self._is_closed = False

    async def write(self, *_: Any, **__: Any) -> int:
        return 1

    async def read(self, *_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    def closed(self) -> bool:
        return self._is_closed

    def abort(self) -> None:
        self._is_closed = True

    async def close(self) -> None:
        self._is_closed = True


@contextmanager
def _cluster(
    *,
    ours: bool,
    resources: dict[str, int] | None = None,
    workers: int = _WORKERS,
    threads: int = _THREADS,
) -> Iterator[Client]:
    with (
        dask.config.set({_SWITCH: ours}),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            resources=resources,
            protocol="backhaul",
            dashboard_address=":0",
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.run(_is_there)
        yield client


def _is_there(dask_worker: Worker) -> str:
    return str(dask_worker.address)


def _nap(number: int, seconds: float = TASK_S) -> tuple[float, float]:
    begin = time.time()
    time.sleep(seconds)
    return begin, time.time()


@click.command("slots")
@click.option("--repeats", default=5, show_default=True, help="Jobs of each kind.")
@click.option("--workers", default=1000, show_default=True, help="Workers to choose from.")
def main(repeats: int, workers: int) -> None:
    """Compare tasks that ask for resources, as Dask has them start and as we do."""
    lines = [
        "| | Dask | ours | bound |",
        "|---|---|---|---|",
    ]
    jobs = [makespan_s(ours=ours, repeats=repeats) for ours in (False, True)]
    cells = " | ".join(f"{job.median:.2f} ({job.minimum:.2f}–{job.maximum:.2f})" for job in jobs)
    lines.append(f"| CPU and GPU work together, s | {cells} | {_ROUNDS * TASK_S:.1f} |")
    gaps = [gaps_s(ours=ours) for ours in (False, True)]
    cells = " | ".join(f"{first * 1e3:.1f}" for first, _ in gaps)
    lines.append(f"| first task behind a blocked one, from its submission, ms | {cells} | |")
    cells = " | ".join(f"{gap.median * 1e3:.1f} (max {gap.maximum * 1e3:.1f})" for _, gap in gaps)
    lines.append(f"| a free unit waits for its next task, ms | {cells} | 0 |")
    choices = [choice_us(ours=ours, workers=workers) for ours in (False, True)]
    cells = " | ".join(f"{choice:.1f}" for choice in choices)
    lines.append(f"| choice among {workers} workers, µs | {cells} | |")
    mixed = mixed_us(repeats=repeats)
    for place, what in enumerate(("", "CPU of client and scheduler for ")):
        cells = " | ".join(
            f"{each[place].median:.0f} ({each[place].minimum:.0f})" for each in mixed.values()
        )
        lines.append(
            f"| {what}a task, 1 in 20 asks, state with Dask and in the core, µs | {cells} | |"
        )
    for name, found in local_us(repeats=repeats).items():
        cells = " | ".join(f"{each.median:.1f} ({each.minimum:.1f})" for each in found)
        lines.append(f"| CPU of a local task that asks for a unit, {name}, µs | {cells} | |")
    click.echo("\n".join(lines))
