"""Programs that replace methods of a scheduler, or count its transitions: as over ``tcp://``."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from distributed import Client, Event, Scheduler, SchedulerPlugin, Worker, wait
from distributed.utils_test import gen_test, inc

from backhaul.dask.scheduler.core.eligibility import refusal
from backhaul.dask.scheduler.core.handler_overrides import program_method
from tests.dask.conftest import Eventually
from tests.dask.scheduler_core.conftest import configured
from tests.dask.scheduler_core.test_live import KEY, add, cluster

pytestmark = pytest.mark.usefixtures("by_engine")

#: Tasks that each have one dependent
PAIRS = 60


def counted(method: Callable[..., Any], calls: Counter[str]) -> Callable[..., Any]:
    """Make a wrapper of a method that counts its calls."""

    # With it, the wrapper shows the name and the source of Dask's method.
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        calls[method.__name__] += 1
        return method(*args, **kwargs)

    return call


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize(
    "name", ["_transition", "transitions", "stimulus_task_finished", "send_all"]
)
@gen_test()
async def test_a_method_that_a_program_replaces_is_called(
    name: str, when: str, eventually: Eventually
) -> None:
    async with cluster() as (c, s, core, _):
        calls: Counter[str] = Counter()
        kept = c.submit(inc, 1) if when == "meanwhile" else None
        if kept is not None:
            assert await kept == 2
            assert core.is_active, core.escapes
        setattr(s, name, counted(getattr(s, name), calls))
        assert core.escapes == ({f"Scheduler.{name} = …": 1} if when == "meanwhile" else {})
        futures = c.map(inc, range(3))
        assert await c.submit(add, *futures) == 6
        assert calls[name] >= 1, calls
        assert not core.is_active
        if kept is not None:
            kept.release()
        del futures
        await eventually(lambda: not s.tasks)
        assert refusal(s) == f"a program has replaced the method {name}"
        delattr(s, name)
        assert refusal(s) is None
        assert await c.submit(inc, 5) == 6
        assert core.is_active, core.escapes


@gen_test()
async def test_a_method_that_a_program_replaces_in_the_class_is_called(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    async with cluster() as (c, s, core, _):
        assert await c.submit(inc, 1) == 2
        await eventually(lambda: not s.tasks)
        calls: Counter[str] = Counter()
        monkeypatch.setattr(Scheduler, "_transition", counted(Scheduler._transition, calls))
        assert program_method(s) == "_transition"
        # A change of a class is not noticed while the core has the state.
        core.escape("a test")
        assert await c.submit(inc, 2) == 3
        assert calls["_transition"] >= 3
        monkeypatch.undo()
        await eventually(lambda: not s.tasks)
        assert refusal(s) is None


class OwnScheduler(Scheduler):
    """A scheduler of a program's own."""

    heard: list[str]

    def stimulus_task_finished(self, *args: Any, **kwargs: Any) -> Any:
        self.heard.append("finished")
        return super().stimulus_task_finished(*args, **kwargs)


@gen_test()
async def test_a_method_of_a_subclass_is_called() -> None:
    with configured({KEY: True}):
        async with (
            OwnScheduler(host="backhaul://127.0.0.1", dashboard=False, dashboard_address=":0") as s,
            Worker(s.address, nthreads=1),
            Client(s.address, asynchronous=True) as c,
        ):
            s.heard = []
            assert program_method(s) == "stimulus_task_finished"
            assert await c.gather(c.map(inc, range(5))) == [1, 2, 3, 4, 5]
            assert s.heard == ["finished"] * 5


class Transitions(SchedulerPlugin):
    """Counts transitions, but for those which depend on when a worker has a free slot."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        if finish in ("memory", "forgotten") or start == "memory":
            self.counts[start, finish] += 1


def after(name: str, number: int) -> int:
    Event(name).wait()
    return number + 1


async def run_pairs(
    host: str, eventually: Eventually, *, plugin: bool
) -> tuple[Counter[tuple[str, str]], int]:
    """Count transitions of a job: of a plugin that is added amid it, and those of its release."""
    async with (
        Scheduler(host=host, dashboard=False, dashboard_address=":0") as s,
        Worker(s.address, nthreads=1, host=host),
        Worker(s.address, nthreads=1, host=host),
        Client(s.address, asynchronous=True) as c,
    ):
        gate = Event("gate", client=c)
        first = [c.submit(after, "gate", n, key=f"first-{n}") for n in range(PAIRS)]
        second = [c.submit(inc, one, key=f"second-{n}") for n, one in enumerate(first)]
        await eventually(lambda: len(s.tasks) == 2 * PAIRS)
        seen = Transitions()
        if plugin:
            s.add_plugin(seen)
        await gate.set()
        await wait(second)
        assert await c.gather(second) == [n + 2 for n in range(PAIRS)]
        counted = s.transition_counter
        del first, second
        await eventually(lambda: not s.tasks)
        return seen.counts, s.transition_counter - counted


@pytest.fixture
def settings() -> Iterator[None]:
    """Has no task stolen, and no copy dropped, meanwhile."""
    off = {
        "distributed.scheduler.active-memory-manager.start": False,
        "distributed.scheduler.work-stealing": False,
    }
    with configured({KEY: True, **off}):
        yield


@pytest.mark.usefixtures("settings")
@gen_test(timeout=120)
async def test_a_plugin_that_is_added_during_a_job_counts_as_over_tcp(
    eventually: Eventually,
) -> None:
    expected, _ = await run_pairs("tcp://127.0.0.1", eventually, plugin=True)
    found, _ = await run_pairs("backhaul://127.0.0.1", eventually, plugin=True)
    assert expected["released", "forgotten"] == PAIRS
    assert expected["processing", "memory"] == 2 * PAIRS
    assert found == expected


@pytest.mark.usefixtures("settings")
@gen_test(timeout=120)
async def test_keys_that_are_released_together_go_through_as_many_transitions_as_over_tcp(
    eventually: Eventually,
) -> None:
    _, expected = await run_pairs("tcp://127.0.0.1", eventually, plugin=False)
    _, found = await run_pairs("backhaul://127.0.0.1", eventually, plugin=False)
    assert expected == 3 * PAIRS
    assert found == expected


@pytest.mark.parametrize("key", ["", "in a graph"])
@gen_test()
async def test_an_empty_key_is_refused_and_leaves_the_state_in_the_core(key: str) -> None:
    async with cluster() as (c, _, core, _workers):
        kept = c.submit(inc, 1)
        assert await kept == 2
        assert core.is_active, core.escapes
        if key == "":
            future: Any = c.submit(inc, 1, key="")
        else:
            future = c.get({"": (inc, 1), "y": (inc, "")}, ["", "y"], sync=False)[1]
        with pytest.raises(IndexError, match="string index out of range"):
            await future
        assert core.is_active, core.escapes
        assert not core.escapes
        assert await c.submit(inc, 4) == 5
