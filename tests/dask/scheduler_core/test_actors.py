"""Actors while the core has the state."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from distributed import wait
from distributed.utils_test import gen_test, inc

import dask
from tests.dask.conftest import Eventually
from tests.dask.scheduler_core.test_live import cluster

pytestmark = pytest.mark.usefixtures("by_engine")


class Counter:
    """Counts."""

    n = 0

    def __init__(self, start: int = 0) -> None:
        self.n = start

    def increment(self, by: int = 1) -> int:
        self.n += by
        return self.n


def count_twice(counter: Any) -> int:
    """Count from within a task."""
    counter.increment().result()
    number: int = counter.increment().result()
    return number


@gen_test()
async def test_actors_are_the_cores(eventually: Eventually) -> None:
    async with cluster() as (c, s, core, workers):
        start: Any = c.submit(inc, 9)
        futures = [c.submit(Counter, start, actor=True) for _ in range(4)]
        counters: Any = await c.gather(futures)
        assert [await counter.increment() for counter in counters] == [11] * 4
        assert await counters[0].n == 11
        assert await c.submit(count_twice, futures[1]) == 13
        # As Dask spreads them: to who has fewer of them.
        assert sorted(len(s.workers[worker.address].actors) for worker in workers) == [2, 2]
        assert all(s.tasks[future.key].actor for future in futures)
        assert core.adoptions == 1
        assert not core.escapes
        core.escape("to look at it")
        s.validate_state()
        assert await counters[0].increment() == 12
        del counters, futures, start
        # The stand-in for an actor on a worker is in a cycle.
        gc.collect()
        await eventually(lambda: not len(s.tasks))


@gen_test()
async def test_some_of_a_graph_are_actors() -> None:
    async with cluster() as (c, s, core, _):
        plain = dask.delayed(inc)(1)
        counter = dask.delayed(Counter)(plain)
        future: Any = c.compute(counter, actors=counter)
        found: Any = await future
        assert await found.increment() == 3
        assert s.tasks[future.key].actor
        others: Any = c.map(Counter, range(3), actor=True)
        counters: Any = await c.gather(others)
        assert [await one.increment() for one in counters] == [1, 2, 3]
        assert not core.escapes
        core.escape("to look at it")
        s.validate_state()


@gen_test()
async def test_an_actor_whose_worker_has_gone_is_lost(eventually: Eventually) -> None:
    async with cluster() as (c, s, core, _):
        future: Any = c.submit(Counter, actor=True)
        other = c.submit(inc, 1)
        await wait([future, other])
        (ws,) = s.tasks[future.key].who_has or set()
        await s.remove_worker(ws.address, stimulus_id="test", close=True)
        await eventually(lambda: future.status == "error")
        with pytest.raises(RuntimeError, match="Worker holding Actor was lost"):
            await future
        assert await c.submit(inc, other) == 3
        assert core.is_active, core.escapes
        core.escape("to look at it")
        s.validate_state()
