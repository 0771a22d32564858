"""Requests that clients may make and hardly ever do: the core or Dask handles them."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, wait
from distributed.utils_test import gen_test, inc

from backhaul.dask.scheduler.core import adoption_pause, live_core
from tests.dask.conftest import Eventually
from tests.dask.scheduler_core.test_live import add, cluster

go_on = threading.Event()


def when_told(number: int) -> int:
    """Wait until told."""
    assert go_on.wait(300)
    return number + 1


def is_forgotten(core: live_core.LiveCore, text: str) -> bool:
    return not core.core.has_task(text)


@pytest.fixture
def is_told() -> Iterator[None]:
    """Let tasks wait for an event, until the end of the test at the latest."""
    go_on.clear()
    yield
    go_on.set()


pytestmark = pytest.mark.usefixtures("by_engine", "is_told")


@gen_test()
async def test_keys_that_name_no_group_are_dasks(eventually: Eventually) -> None:
    async with cluster() as (c, s, core, _):
        async with Client(s.address, asynchronous=True, set_as_default=False) as other:
            graph: dict[Any, Any] = {("a", 0): 1, (0, 0): (inc, 1), (0, 1): (inc, (0, 0))}
            graph["all"] = (add, (0, 0), (0, 1))
            assert await c.get(graph, "all", sync=False) == 5
            assert list(core.escapes) == ["a key that names no group"]
            assert await c.submit(inc, 5) == 6
            assert await other.submit(inc, 77) == 78
            keys: list[Any] = [(4, "b"), (("c", 1), 2), ((3, 2), 3)]
            for key in keys:
                assert await c.submit(inc, 1, key=key) == 2
                scattered = await c.scatter({(key, 0): 5})
                assert await c.gather(scattered[key, 0]) == 5
                del scattered
                await eventually(lambda: not len(s.tasks))
                # What Dask keeps of these groups does not keep the state out.
                assert await other.submit(inc, 3) == 4
                assert core.is_active
                await eventually(lambda: not len(s.tasks))
        s.validate_state()


@pytest.mark.parametrize("looks", [False, True])
@gen_test()
async def test_results_for_a_task_that_runs(looks: bool, eventually: Eventually) -> None:
    async with cluster() as (c, s, core, workers):
        # Dask's own state is at odds with itself then.
        s.validate = False
        future = c.submit(when_told, 1, key="k", workers=[workers[0].address])
        await eventually(lambda: core.is_active and core.core.state_of("k") == "processing")
        scattered = await c.scatter({"k": 41}, workers=[workers[1].address])
        assert list(core.escapes) == ["results for a task that is processing"]
        assert await c.gather(scattered["k"]) == 41
        del future, scattered
        await eventually(lambda: not len(s.tasks))
        if looks:
            assert set(await c.processing()) == {worker.address for worker in workers}
        go_on.set()
        assert await c.submit(inc, 1) == 2
        await workers[0].close()
        await eventually(lambda: len(s.workers) == 1)
        assert await c.submit(inc, 2) == 3


@gen_test()
async def test_results_for_a_task_that_is_queued(eventually: Eventually) -> None:
    async with cluster(workers=1) as (c, s, core, _):
        s.validate = False
        futures = c.map(when_told, range(10), key=[f"k-{number}" for number in range(10)])
        await eventually(lambda: core.is_active and core.core.state_of("k-9") == "queued")
        scattered = await c.scatter({"k-9": 41})
        assert list(core.escapes) == ["results for a task that is queued"]
        assert await c.gather(scattered["k-9"]) == 41
        go_on.set()
        await wait(futures)
        assert await c.gather(futures[:9]) == list(range(1, 10))


@gen_test()
async def test_a_client_that_comes_again_before_it_has_gone() -> None:
    async with cluster() as (c, s, _, _):
        assert await c.submit(inc, 1) == 2
        async with Client(s.address, asynchronous=True, set_as_default=False) as before:
            assert await before.submit(inc, 5, key="f") == 6
            again: Any = Client(s.address, asynchronous=True, set_as_default=False)
            again.id = before.id
            async with again:
                future = again.submit(inc, 6, key="g")
                assert await asyncio.wait_for(future, 60) == 7
                assert {ts.key for ts in s.clients[again.id].wants_what} >= {"g"}
                assert await again.submit(inc, future) == 8
            assert await c.submit(inc, 2) == 3


@gen_test()
async def test_a_key_that_comes_again_as_the_engine_leaves(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption_pause, "PAUSE_PER_CHANGE", 0.0)
    async with cluster() as (c, s, core, _):
        for number in range(10):
            assert await c.submit(inc, number, pure=False) == number + 1
            assert core.is_active
            key: Any = ("x", number)
            scattered = await c.scatter({key: 1})
            await scattered[key]
            text = core.texts.text(key)
            del scattered
            # The event loop may not have heard yet that the engine has forgotten it.
            await eventually(functools.partial(is_forgotten, core, text))
            # The other key cannot be written as msgpack: Python handles all from here on.
            scattered = await c.scatter({key: 2, float("inf"): 3})
            assert key in s.tasks
            assert await c.gather(scattered[key]) == 2
            del scattered
            await eventually(lambda: not len(s.tasks))
            core.escape("once more")


@gen_test()
async def test_very_many_retries_are_dasks() -> None:
    async with cluster() as (c, _, core, _):
        assert await c.submit(inc, 1, retries=2**31 - 1) == 2
        assert core.is_active
        assert await c.submit(inc, 2, retries=10**12) == 3
        assert list(core.escapes) == ["an annotation of very many retries"]
