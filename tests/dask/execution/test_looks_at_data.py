"""Results that a program finds on a worker while the worker's threads read ahead."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker, wait

from backhaul.dask.compat import activation
from backhaul.dask.worker.core import ownership as keeper_module
from backhaul.dask.worker.lazy_collections import data_of, is_known
from backhaul.dask.worker.local_queue import local_queue_of
from tests.dask.execution.in_rust import in_rust, inc, state_owner_of, watch_nothing
from tests.dask.execution.tasks import cluster


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Rust take over soon after a read."""
    monkeypatch.setattr(keeper_module, "_REST_S", 0.01)
    monkeypatch.setattr(keeper_module, "_REST_MAX_S", 0.01)
    activation.install()


@pytest.mark.parametrize("has_rust", [False, True], ids=["python", "rust"])
def test_a_read_finds_the_results_that_the_client_knows(has_rust: bool) -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        watch_nothing(worker)
        if has_rust:
            await in_rust(client, worker)
        behind = 0
        for _ in range(100):
            futures = [client.submit(inc, number, pure=False) for number in range(10)]
            await wait(futures)
            keys = {future.key for future in futures}
            behind += not keys <= data_of(worker).keys()
            assert keys <= worker.data.keys()
            if has_rust:
                assert state_owner_of(worker).core is not None
        # Otherwise the threads had nothing to report.
        assert behind > 10

    run()


def test_results_stay_as_they_are_between_two_awaits() -> None:
    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        watch_nothing(worker)
        await in_rust(client, worker)
        line: Any = local_queue_of(worker)
        changed = 0
        for _ in range(15):
            last: Any = client.submit(inc, 0, pure=False)
            for _ in range(40):
                last = client.submit(inc, last, pure=False)
            while not last.done():
                await asyncio.sleep(0)
                before = set(worker.data)
                assert line.holds == 1
                # Meanwhile threads go on.
                time.sleep(0.002)
                assert set(data_of(worker)) == before
                assert set(worker.data) == before
                await asyncio.sleep(0)
                changed += set(data_of(worker)) != before
            assert await last == 41
        assert not line.holds
        assert changed > 3

    run()


@pytest.mark.parametrize("has_rust", [False, True], ids=["python", "rust"])
def test_a_function_of_a_client_finds_the_tasks_that_the_client_knows(
    has_rust: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_rust:
        monkeypatch.setattr(keeper_module, "_TASKS_MAX", -1)

    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        watch_nothing(worker)

        def tasks(dask_worker: Worker) -> set[Any]:
            return set(dask_worker.state.tasks)

        behind = 0
        for number in range(50):
            futures = [client.submit(inc, number, pure=False) for _ in range(10)]
            await wait(futures)
            behind += not all(is_known(worker.state, future.key) for future in futures)
            found = await client.run(tasks)
            assert {future.key for future in futures} <= found[worker.address]
            if not has_rust:
                assert state_owner_of(worker).core is None
        # Otherwise the state was complete before each read; Dask's state machine always is. How
        # often it is behind depends on the machine's load.
        assert behind > 0 or not has_rust

    run()
