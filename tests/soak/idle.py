"""Looks for workers that are idle while there is work for them, on a machine that is too busy.

::

    make idle                                  # two minutes beside eight busy processes
    .venv/bin/python tests/soak/idle.py --seconds 600 --hogs 16 --pin
    .venv/bin/python tests/soak/idle.py --seconds 7200 --jobs 1000

A cluster over ``backhaul://`` runs jobs of short tasks whose durations change without notice, so
that tasks are sent ahead, stolen and given back. Twenty times a second the scheduler is asked:

- is a task queued while a running worker has nothing to do,
- does a worker have tasks that it does not run, by its own heartbeats,

each for longer than ``--patience`` seconds, though the scheduler's loop was not kept from its work.
Each finding is printed with the story of the task and the last events of the connection. Results
are compared with what they must be. The exit status is 1 if anything was found, wrong or late.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from distributed import Client, LocalCluster, Scheduler, wait

import backhaul.dask  # noqa: F401  registers the defaults of its configuration
import dask
from backhaul.dask.comm.comm import BackhaulComm

#: A job that takes longer hangs: alone on a machine it takes seconds.
JOB_TIMEOUT_S = 120.0

LOOK_EVERY_S = 0.05

HOG = "import time\nend = time.time() + {seconds}\nwhile time.time() < end: pass"


def main() -> int:
    """Run the jobs, print what was found, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--jobs", type=int, default=None, help="end after so many, if sooner")
    parser.add_argument("--hogs", type=int, default=8, help="processes that keep the CPUs busy")
    parser.add_argument("--pin", action="store_true", help="run everything on one CPU")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--patience", type=float, default=5.0, help="seconds")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--protocol", default="backhaul")
    parser.add_argument("--no-work-in-hand", action="store_true")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    show(f"seed {seed}")
    if options.pin:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    hog = HOG.format(seconds=options.seconds + JOB_TIMEOUT_S)
    hogs = [subprocess.Popen([sys.executable, "-c", hog]) for _ in range(options.hogs)]
    settings = {
        "distributed.comm.backhaul.work-in-hand.enabled": not options.no_work_in_hand,
    }
    try:
        with (
            dask.config.set(settings),
            LocalCluster(
                n_workers=options.workers,
                threads_per_worker=options.threads,
                protocol=options.protocol,
                dashboard_address=None,
            ) as cluster,
            Client(cluster) as client,
        ):
            watch = IdleWatch(cluster.scheduler, options.patience)
            return run(client, watch, options.seconds, options.jobs, seed)
    finally:
        for process in hogs:
            process.kill()
            process.wait()


def run(client: Client, watch: IdleWatch, seconds: float, jobs_max: int | None, seed: int) -> int:
    """Run jobs until time is up, or there were enough."""
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    slowest: dict[str, float] = {}
    stop = client.sync(watch.start)
    end = time.monotonic() + seconds
    while time.monotonic() < end and outcomes.total() != jobs_max:
        name = rng.choice(list(JOBS))
        began = time.monotonic()
        try:
            right = JOBS[name](client, rng)
            outcomes[f"{name}: {'right' if right else 'WRONG'}"] += 1
        except TimeoutError:
            outcomes[f"{name}: LATE"] += 1
            watch.report("a job that hangs")
        slowest[name] = max(slowest.get(name, 0.0), time.monotonic() - began)
    client.sync(stop)
    for outcome, count in sorted(outcomes.items()):
        show(f"{count:6}  {outcome}")
    for name, took_s in sorted(slowest.items()):
        show(f"{took_s:6.1f} s the slowest {name}")
    show(f"{watch.looks} looks, {watch.found} findings, loop late by {watch.late_s:.1f} s at most")
    bad = any("right" not in outcome for outcome in outcomes)
    return int(bad or watch.found > 0)


class IdleWatch:
    """Looks at a scheduler's state, on its own event loop."""

    def __init__(self, scheduler: Scheduler, patience_s: float) -> None:
        self.scheduler = scheduler
        self.patience_s = patience_s
        self.looks = 0
        self.found = 0
        self.late_s = 0.0
        #: Since when, on the loop's clock, by worker and what is amiss
        self._since: dict[tuple[str, str], float] = {}
        self._told: set[tuple[str, str]] = set()

    async def start(self) -> Callable[[], Any]:
        """Look from now on, until what is returned is called."""
        task = asyncio.ensure_future(self._run())

        async def stop() -> None:
            task.cancel()

        return stop

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = loop.time()
            late_s = now - before - LOOK_EVERY_S
            self.late_s = max(self.late_s, late_s)
            # Work that the loop had no time for is not amiss.
            for key in self._since:
                self._since[key] += late_s
            before = now
            self._look(now)

    def _look(self, now: float) -> None:
        self.looks += 1
        scheduler = self.scheduler
        amiss: set[tuple[str, str]] = set()
        for ws in scheduler.workers.values():
            counts = ws.metrics.get("task_counts", {})
            if scheduler.queued and not ws.processing and ws in scheduler.running:
                amiss.add((ws.address, "idle, and a task is queued"))
            runs = counts.get("executing", 0) + counts.get("long-running", 0)
            is_current = time.time() - ws.last_seen < 1.5
            if ws.processing and is_current and not runs and not counts.get("fetch", 0):
                amiss.add((ws.address, "has tasks, and runs none"))
        for key in [*self._since]:
            if key not in amiss:
                del self._since[key]
                self._told.discard(key)
        for key in amiss:
            since = self._since.setdefault(key, now)
            if now - since > self.patience_s and key not in self._told:
                self._told.add(key)
                self.found += 1
                self.report(f"{key[0]} {key[1]} for {now - since:.1f} s")

    def report(self, what: str) -> None:
        """Print all that might explain it."""
        scheduler = self.scheduler
        show(f"*** {what}")
        show(f"    queued {len(scheduler.queued)}, unrunnable {len(scheduler.unrunnable)}")
        for ws in scheduler.workers.values():
            keys = [ts.key for ts in list(ws.processing)[:3]]
            counts = ws.metrics.get("task_counts")
            show(f"    {ws.address} {ws.status} processing {len(ws.processing)} counts {counts}")
            for key in keys:
                for entry in scheduler.story(key)[-6:]:
                    show(f"        {entry}")
            comm = scheduler.stream_comms[ws.address].comm
            if isinstance(comm, BackhaulComm):
                events = comm.recent_events
                show(f"        {'; '.join(f'{age:.1f} {kind}' for age, kind in events[-12:])}")


def nap(seconds: float, number: int) -> int:
    """Sleep, and return the number."""
    time.sleep(seconds)
    return number


def naps_are_right(client: Client, naps: list[float]) -> bool:
    """Run a task for each nap."""
    count = len(naps)
    futures = client.map(nap, naps, range(count), pure=False)
    wait(futures, timeout=JOB_TIMEOUT_S)
    return bool(sum(client.gather(futures)) == count * (count - 1) // 2)


def steady(client: Client, rng: random.Random) -> bool:
    """Run many tasks of one short duration."""
    count = rng.randrange(50, 400)
    return naps_are_right(client, [0.001] * count)


def surprising(client: Client, rng: random.Random) -> bool:
    """Run tasks of one kind that begin to take much longer."""
    count = rng.randrange(40, 120)
    at = rng.randrange(count)
    naps = [0.001 if number < at else rng.choice([0.001, 0.05, 0.3]) for number in range(count)]
    return naps_are_right(client, naps)


def tree(client: Client, rng: random.Random) -> bool:
    """Add numbers pair by pair: each level waits for the one before."""
    level = client.map(nap, [0.002] * 64, range(64), pure=False)
    while len(level) > 1:
        pairs = [level[at : at + 2] for at in range(0, len(level), 2)]
        level = [client.submit(sum, pair, pure=False) for pair in pairs]
    return bool(level[0].result(timeout=JOB_TIMEOUT_S) == 64 * 63 // 2)


def chain(client: Client, rng: random.Random) -> bool:
    """Submit steps that each need the last."""
    future = client.submit(nap, 0.0, 0, pure=False)
    steps = rng.randrange(5, 40)
    for _ in range(steps):
        future = client.submit(lambda number: number + 1, future, pure=False)
    return bool(future.result(timeout=JOB_TIMEOUT_S) == steps)


JOBS: dict[str, Callable[[Client, random.Random], bool]] = {
    "steady": steady,
    "surprising": surprising,
    "tree": tree,
    "chain": chain,
}


def show(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
