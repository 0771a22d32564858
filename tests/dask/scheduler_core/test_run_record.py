"""Record of ended runs: the core and Dask's handler append the same, and `explain` reads it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from distributed import Client
from distributed.utils_test import gen_test

import dask
from backhaul import NotObserved
from backhaul.dask import explain
from tests.dask.scheduler_core.test_live import cluster
from tests.dask.scheduler_core.test_watchers import Listens

pytestmark = pytest.mark.usefixtures("by_engine")


def explained(client: Client, **options: Any) -> Any:
    return explain(client, **options)


def total(values: list[int]) -> int:
    return sum(values)


@gen_test()
async def test_core_and_dask_record_the_same_runs() -> None:
    async with cluster() as (c, s, core, _):
        await c.gather(c.map(total, [[1], [2]], key=["a", "b"]))
        assert core.is_active, core.escapes
        first: Any = await explained(c)
        # As long as this plugin is there, the state is Dask's.
        s.add_plugin(Listens())
        assert not core.is_active
        await c.gather(c.map(total, [[3], [4]], key=["c", "d"]))
        second: Any = await explained(c, since=first.stop_s + 1e-6)
        for found, keys in ((first, {"a", "b"}), (second, {"c", "d"})):
            runs, sites = found._trace
            assert {run.key for run in runs} == keys
            assert {run.worker for run in runs} <= {*s.workers} == {*sites}
            assert all(run.thread for run in runs)
            assert all(run.compute_s >= 0 for run in runs)


@gen_test()
async def test_scheduler_without_runs_says_so() -> None:
    async with cluster() as (c, s, _, _):
        with pytest.raises(NotObserved, match=f"no run of a task has ended on the .* {s.address}"):
            await explained(c)


@gen_test()
async def test_scheduler_without_a_record_says_so() -> None:
    with dask.config.set({"distributed.comm.backhaul.explain.enabled": False}):
        async with cluster() as (c, _, _, _):
            assert await c.submit(total, [1]) == 1
            with pytest.raises(NotObserved, match="keeps no record of runs"):
                await explained(c)


@gen_test()
async def test_full_record_drops_the_oldest_runs() -> None:
    with dask.config.set({"distributed.comm.backhaul.explain.runs-limit": 5}):
        async with cluster() as (c, _, _, _):
            await c.gather(c.map(total, [[number] for number in range(20)]))
            found: Any = await explained(c)
            assert (found.runs, found.is_whole) == (5, False)
            assert "dropped" in str(found)
            await asyncio.sleep(0.3)
            assert await c.submit(total, [100]) == 100
            found = await explained(c, idle=0.2)
            assert (found.runs, found.is_whole) == (1, True)
