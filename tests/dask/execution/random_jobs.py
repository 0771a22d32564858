"""Random jobs on real workers, with all that lies beside plain tasks, and what they have to leave.

Each seed is a cluster in this process: one to three workers, with and without the scheduler's core,
work stealing and validation. Its jobs have tasks that fail, take long, return what is not told
ahead, ask for their worker or leave their thread, maps, priorities, restrictions, retries, futures
that are released or cancelled, workers that pause, and an event loop that is busy. Every result is
known; afterwards no process has anything left.

    python -m tests.dask.execution.random_jobs --seconds 600 --first 10000
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import logging
import random
import sys
import time
from typing import Any

from distributed import Client, Scheduler, Worker, get_worker, secede, wait
from distributed.core import Status

import dask
from backhaul.dask.worker.local_queue import local_queue_of

__all__ = ["main", "run_seed"]

#: Jobs of a cluster, and for how long one may take, and what it leaves may be there
JOBS = 6
JOB_S = 120
LEFT_S = 120

_ROOT = "distributed.comm.backhaul.hot-path"


def total(value: int, *inputs: Any) -> int:
    return value + sum(each if isinstance(each, int) else len(each) for each in inputs)


def slow_total(value: int, seconds: float, *inputs: Any) -> int:
    time.sleep(seconds)
    return total(value, *inputs)


def fail(value: int, *_: Any) -> None:
    raise ValueError(value)


def text(value: int, *_: Any) -> str:
    return "x" * (value % 50)


def long_bytes(_: int, *__: Any) -> bytes:
    return b"y" * 70_000


def asking_total(value: int, *inputs: Any) -> int:
    assert get_worker().address
    return total(value, *inputs)


def leaving_total(value: int, *inputs: Any) -> int:
    secede()
    time.sleep(0.001)
    return total(value, *inputs)


class Job:
    """One job: futures with what they have to come to, None for a failure."""

    def __init__(self, chance: random.Random, client: Client, workers: list[Worker]) -> None:
        self._chance = chance
        self._client = client
        self._workers = workers
        self._live: list[tuple[Any, Any]] = []

    async def run(self) -> None:
        """Submit, disturb, and compare."""
        chance, live = self._chance, self._live
        for number in range(chance.randint(5, 120)):
            kind = chance.random()
            if kind < 0.93:
                self._submit(number, kind)
            elif kind < 0.95:
                futures = self._client.map(total, range(chance.randint(1, 40)), pure=False)
                live.extend((future, value) for value, future in enumerate(futures))
            elif kind < 0.97:
                loop = asyncio.get_running_loop()
                loop.call_later(chance.random() / 100, time.sleep, chance.random() / 50)
            elif kind < 0.98 and live:
                # Tasks that need it are cancelled with it: the job ends here.
                await live[chance.randrange(len(live))][0].cancel()
                live.clear()
                return
            else:
                worker = chance.choice(self._workers)
                worker.status = Status.paused
                await asyncio.sleep(chance.random() / 100)
                worker.status = Status.running
            await self._disturb()
        for future, value in live:
            if value is None:
                # Not raised: its traceback would hold the future.
                await wait([future])
                assert future.status == "error", future
            else:
                assert await future == value, future
        live.clear()

    def _submit(self, number: int, kind: float) -> None:
        chance = self._chance
        inputs = chance.sample(
            self._live, k=min(len(self._live), chance.choice((0, 0, 1, 1, 2, 3, 8)))
        )
        futures = [future for future, _ in inputs]
        values = [value for _, value in inputs]
        options: dict[str, Any] = {"pure": False}
        if chance.random() < 0.05:
            options["priority"] = chance.randint(-2, 2)
        if chance.random() < 0.05:
            options["retries"] = 1
        if chance.random() < 0.08:
            options["workers"] = [chance.choice(self._workers).address]
            options["allow_other_workers"] = chance.random() < 0.5
        function: Any = total
        arguments: list[Any] = [number]
        if 0.5 <= kind < 0.7:
            function = slow_total
            arguments.append(chance.choice((0, 0.0005, 0.002, 0.01)))
        elif kind >= 0.7:
            for limit, each in (
                (0.78, fail),
                (0.84, text),
                (0.88, long_bytes),
                (0.91, asking_total),
                (0.93, leaving_total),
            ):
                if kind < limit:
                    function = each
                    break
        future: Any = self._client.submit(function, *arguments, *futures, **options)
        expected: Any = None
        if function is text or function is long_bytes:
            expected = function(number)
        elif function is not fail:
            expected = total
        if any(value is None for value in values):
            expected = None
        elif expected is total:
            expected = total(number, *values)
        self._live.append((future, expected))

    async def _disturb(self) -> None:
        chance, live = self._chance, self._live
        if chance.random() < 0.1:
            await asyncio.sleep(chance.choice((0, 0.001, 0.003)))
        if chance.random() < 0.1 and len(live) > 10:
            del live[: chance.randint(1, 5)]
        if chance.random() < 0.05 and live:
            await wait([chance.choice(live)[0]])
        if chance.random() < 0.03:
            # A look
            assert all(len(worker.state.tasks) >= 0 for worker in self._workers)


def _left(worker: Worker) -> dict[Any, Any]:
    """Return tasks of a worker that are not needed; failed ones are held by their errors."""
    line = local_queue_of(worker)
    found: dict[Any, Any] = {} if line is None else dict(line.early_tasks)
    found.update((key, ts) for key, ts in worker.state.tasks.items() if ts.state != "error")
    return found


async def _until_gone(scheduler: Scheduler, workers: list[Worker]) -> None:
    deadline_s = time.monotonic() + LEFT_S
    while any(left := [*map(_left, workers), dict(scheduler.tasks)]):
        # Futures in cycles, as of errors
        gc.collect()
        assert time.monotonic() < deadline_s, left
        await asyncio.sleep(0.02)
    for worker in workers:
        worker.state.validate_state()


async def run_seed(seed: int) -> None:
    """Run the jobs of a seed.

    Raises
    ------
    AssertionError
        If a result is wrong, or something is left.
    TimeoutError
        If a job does not end.
    """
    chance = random.Random(seed)
    settings = {
        "distributed.scheduler.work-stealing": chance.random() < 0.7,
        f"{_ROOT}.scheduler-core": chance.random() < 0.5,
    }
    validates = chance.random() < 0.3
    host: dict[str, Any] = {"host": "backhaul://127.0.0.1", "validate": validates}
    with dask.config.set(settings):
        async with contextlib.AsyncExitStack() as stack:
            scheduler = await stack.enter_async_context(
                Scheduler(dashboard=False, dashboard_address=":0", **host)
            )
            workers = [
                await stack.enter_async_context(
                    Worker(scheduler.address, nthreads=chance.choice((1, 1, 2)), **host)
                )
                for _ in range(chance.randint(1, 3))
            ]
            client: Any = Client(scheduler.address, asynchronous=True)
            await stack.enter_async_context(client)
            for _ in range(JOBS):
                await asyncio.wait_for(Job(chance, client, workers).run(), JOB_S)
                await _until_gone(scheduler, workers)


def main(arguments: list[str]) -> int:
    """Run seeds, and say which fails; return the status to exit with."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="stop after this long")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args(arguments)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    began_s = time.monotonic()
    for seed in itertools.count(options.first):
        if time.monotonic() - began_s > options.seconds:
            sys.stdout.write(f"{seed - options.first} seeds from {options.first} on\n")
            return 0
        try:
            asyncio.run(run_seed(seed))
        except BaseException:
            sys.stderr.write(f"seed {seed}\n")
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
