"""Graphs with annotations: priorities, retries and restrictions, while the core has the state."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from distributed import get_worker, wait
from distributed.utils_test import gen_test, inc

import dask
from tests.dask.conftest import Eventually
from tests.dask.scheduler_core.test_live import KEY, add, cluster

#: Attributes that annotations have to do with
NAMES = (
    "annotations",
    "host_restrictions",
    "loose_restrictions",
    "priority",
    "resource_restrictions",
    "retries",
    "worker_restrictions",
)

go_on = threading.Event()
tried: list[int] = []


def when_told(number: int) -> int:
    """Wait until told."""
    assert go_on.wait(300)
    return number


def where(number: int) -> str:
    """Tell on which worker it is run."""
    return str(get_worker().address)


def fails_twice(number: int) -> int:
    """Succeed at the third try."""
    tried.append(number)
    if tried.count(number) < 3:
        raise ValueError(number)
    return number


pytestmark = pytest.mark.usefixtures("by_engine", "is_told")


@pytest.fixture
def is_told() -> Iterator[None]:
    """Let tasks wait for an event, until the end of the test at the latest."""
    go_on.clear()
    tried.clear()
    yield
    go_on.set()


@gen_test()
async def test_tasks_go_where_they_may(eventually: Eventually) -> None:
    async with cluster(workers=3) as (c, s, core, workers):
        only = workers[1].address
        assert await c.submit(where, 0, workers=only) == only
        assert set(await c.gather(c.map(where, range(20), workers=[only], pure=False))) == {only}
        with dask.annotate(workers=[only]):
            delayed = [dask.delayed(where)(number) for number in range(5)]
        assert set(await c.gather(c.compute(delayed))) == {only}
        found = c.submit(where, 1, workers="10.11.12.13", allow_other_workers=True)
        assert await found in s.workers
        never = c.submit(where, 2, workers="10.11.12.13", key="never")
        await eventually(lambda: "never" in s.tasks and s.tasks["never"].state == "no-worker")
        assert core.is_active, core.escapes
        assert not core.escapes
        del never
        core.escape("to look at it")
        s.validate_state()


@gen_test()
async def test_a_failing_task_is_tried_again() -> None:
    async with cluster() as (c, _, core, _):
        assert await c.gather(c.map(fails_twice, range(4), retries=2)) == list(range(4))
        with pytest.raises(ValueError, match="9"):
            await c.submit(fails_twice, 9, retries=1)
        assert not core.escapes


async def _attributes(is_core: bool, eventually: Eventually) -> dict[str, Any]:
    """Submit in many ways; say what tasks, and the computation, have of it."""
    go_on.clear()
    async with cluster(settings={KEY: is_core}) as (c, s, core, workers):
        one, two = (worker.address for worker in workers)
        names = {one: "one", two: "two"}
        futures = [
            c.submit(when_told, 1, key="a", workers=one, priority=3),
            c.submit(when_told, 1, key="b", workers=[one, "elsewhere"], allow_other_workers=True),
            c.submit(when_told, 1, key="c", retries=4),
            *c.map(when_told, range(3), key=["d", "e", "f"], priority=-2, workers=[two]),
        ]
        with dask.annotate(priority=7, retries=1, note="a text", more=[1, {"two": 2.5}]):
            layered = dask.delayed(when_told)(1, dask_key_name="g")
        with dask.annotate(workers=two):
            layered = dask.delayed(inc)(layered, dask_key_name="h")
        futures.append(c.compute(layered, retries=2))
        await eventually(lambda: len(s.tasks) >= 8 and "h" in s.tasks)
        assert core.is_active is is_core, core.escapes
        core.escape("to look at it")
        s.validate_state()

        def plain(value: Any) -> Any:
            if isinstance(value, (set, list, tuple)):
                plains = [plain(one) for one in value]
                return sorted(plains) if isinstance(value, set) else plains
            if isinstance(value, dict):
                return {name: plain(one) for name, one in value.items()}
            return names.get(value, value) if isinstance(value, str) else value

        found: dict[Any, Any] = {
            key: {name: plain(getattr(ts, name)) for name in NAMES} for key, ts in s.tasks.items()
        }
        for values in found.values():
            # With spans, an empty one
            values["annotations"] = values["annotations"] or None
            values["priority"] = [values["priority"][0], values["priority"][2]]
        found["computation"] = plain(s.computations[-1].annotations)
        go_on.set()
        await wait(futures)
        return found


@gen_test()
async def test_attributes_are_as_without_the_core(eventually: Eventually) -> None:
    assert await _attributes(True, eventually) == await _attributes(False, eventually)


def runs_annotated(number: int) -> Any:
    """Tell what the worker knows of the annotations of the task that runs."""
    worker = get_worker()
    return dict(worker.state.tasks[worker.get_current_task()].annotations or {})


@gen_test()
async def test_workers_hear_of_annotations(eventually: Eventually) -> None:
    async with cluster() as (c, s, core, _):
        with dask.annotate(note="a text", retries=3):
            futures = c.map(runs_annotated, range(30))
        assert await c.gather(futures) == [{"note": "a text", "retries": 3}] * 30
        assert core.is_active, core.escapes
        assert core.annotations
        del futures
        await eventually(lambda: not len(s.tasks))
        await eventually(lambda: not core.annotations)


@gen_test()
async def test_annotations_that_the_core_does_not_understand_are_dasks(
    eventually: Eventually,
) -> None:
    async with cluster() as (c, s, core, _):
        assert await c.submit(inc, 1) == 2
        with dask.annotate(odd=Fraction(1, 2)):
            delayed = dask.delayed(add)(1, 2, dask_key_name="odd")
        future = c.compute(delayed)
        await eventually(lambda: "odd" in s.tasks)
        assert not core.is_active
        assert await future == 3


@pytest.mark.parametrize(
    "options", [{"workers": 5}, {"priority": "high"}, {"retries": "two"}, {"fifo_timeout": "soon"}]
)
@gen_test()
async def test_the_core_has_the_state_again_after_a_graph_that_dask_refuses(
    options: dict[str, Any], eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster() as (c, s, core, _):
        kept = c.submit(inc, 1)
        assert await kept == 2
        one = c.submit(inc, kept, key="refused", **options)
        many = c.map(inc, range(5), pure=False, **options)
        for future in (one, *many):
            with pytest.raises((TypeError, AssertionError, KeyError)):
                await future
        del future, one, many, kept
        await eventually(lambda: not len(s.tasks))
        assert not [each for each in caplog.records if "scheduler_core" in each.name]
        assert await c.submit(inc, 2, key="after") == 3
        assert core.is_active
