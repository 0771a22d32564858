"""Counts of a worker's tasks by prefix, at a cost that does not grow while Rust has the state."""

from __future__ import annotations

import time
from operator import neg
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker

from backhaul.dask.compat import activation
from tests.dask.execution.tasks import cluster


@pytest.mark.parametrize("holds", [True, False], ids=["held", "dropped"])
def test_a_task_costs_the_same_after_many_prefixes(holds: bool) -> None:
    held: list[Any] = []

    @cluster(1, timeout=600)
    async def measure(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        for state in (worker.state, scheduler):
            state.validate = False
            state.transition_counter_max = False

        async def run(name: str, count: int) -> float:
            started_s = time.process_time()
            keys = [f"{name}{number}q" for number in range(count)]
            futures = client.map(neg, range(count), key=keys)
            assert await client.gather(futures) == [-number for number in range(count)]
            if holds:
                held.extend(futures)
            return (time.process_time() - started_s) / count

        await run("warm", 200)
        before_s = min([await run(f"first{number}", 100) for number in range(3)])
        await run("many", 3000)
        after_s = min([await run(f"last{number}", 100) for number in range(3)])
        # Where each event goes through all prefixes that there have been, ten times as much.
        assert after_s < 6 * before_s
        counts = worker.state.task_counter
        if holds:
            assert counts.current_count(by_prefix=False)["memory"] == len(held) == 3800
        held.clear()
        seconds = counts.cumulative_elapsed()
        assert sum(state == "memory" for _, state in seconds) >= 3800

    activation.install()
    measure()
