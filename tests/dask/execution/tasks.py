"""Functions that tests of executed tasks run, and which path they took: Backhaul's or Dask's."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from distributed import Worker
from distributed.utils_test import gen_cluster

from backhaul.dask.worker import task_start

HOST = "backhaul://127.0.0.1"

#: Workers live in this process: tasks wait here, and leave what they saw.
gate = threading.Event()
entered = threading.Semaphore(0)
seen: list[Any] = []
runs: Counter[str] = Counter()


class Path:
    """Which way tasks went.

    Attributes
    ----------
    taken : set of key
        Tasks that Backhaul ran.
    ours : bool
        Whether it was free to.
    """

    def __init__(self, ours: bool) -> None:
        self.ours = ours
        self.taken: set[Any] = set()
        self.start_execution = task_start.start_execution

    def start(self, worker: Worker, key: Any, **arguments: Any) -> bool:
        taken = self.ours and self.start_execution(worker, key, **arguments)
        if taken:
            self.taken.add(key)
        return taken

    def is_ours_for(self, *keys: Any) -> bool:
        """Tell whether exactly these went our way, or none where Dask has them all."""
        return self.taken == (set(keys) if self.ours else set())


def cluster(*nthreads: int, **arguments: Any) -> Callable[[Any], Any]:
    """Run a test with a worker for each number of threads, in this process, validated."""
    return gen_cluster(
        client=True,
        scheduler=HOST,
        nthreads=[(HOST, count) for count in nthreads or (1,)],
        **arguments,
    )


async def until_entered(count: int = 1) -> None:
    """Wait until tasks are in `gated`."""
    for _ in range(count):
        assert await asyncio.to_thread(entered.acquire, timeout=300)


def gated(*_: Any) -> str:
    entered.release()
    assert gate.wait(300)
    return "passed"


def add(*numbers: int) -> int:
    return sum(numbers)


def fail(*_: Any) -> None:
    raise ZeroDivisionError("on purpose")


def count_run() -> None:
    runs["counted"] += 1


def is_idle(worker: Worker) -> bool:
    return is_idle_but_for_threads(worker) and not worker.active_threads


def is_idle_but_for_threads(worker: Worker) -> bool:
    return not (worker._async_instructions or worker.active_keys)


def execute_metrics(worker: Worker, prefix: str) -> dict[tuple[str, str], float]:
    """Sum up what a worker measured of some tasks, by label and unit."""
    found: Counter[tuple[str, str]] = Counter()
    for name, value in worker.digests_total.items():
        if isinstance(name, tuple) and name[0] == "execute" and name[2] == prefix:
            found[name[3], name[4]] += value  # type: ignore[assignment]
    return dict(found)


def first_frames(profile: dict[str, Any]) -> set[str]:
    """Name where the stacks of a profile begin."""
    return {child["description"]["name"] for child in profile["children"].values()}


def throw(kind: type[BaseException]) -> None:
    raise kind("thrown")
