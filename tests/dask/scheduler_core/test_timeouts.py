"""Tasks that no worker can run for too long: as with Dask's own state, while it is in the core."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import distributed.scheduler
import pytest
from distributed import Scheduler, Worker
from distributed.scheduler import NoValidWorkerError, NoWorkerError
from distributed.utils_test import captured_logger, gen_test, inc
from tornado.ioloop import PeriodicCallback

import dask
from backhaul.dask.scheduler.core import unrunnable
from backhaul.dask.scheduler.core.eligibility import refusal
from tests.dask.conftest import Eventually
from tests.dask.scheduler_core.conftest import ENGINE, configured
from tests.dask.scheduler_core.test_live import KEY, add, cluster

SETTING = "distributed.scheduler.no-workers-timeout"
NOBODY = "backhaul://10.0.0.9:1"

go_on = threading.Event()


def when_told(number: int) -> int:
    """Wait until told."""
    assert go_on.wait(300)
    return number + 1


@pytest.fixture(autouse=True)
def is_told() -> Iterator[None]:
    """Let tasks wait for an event, until the end of the test at the latest."""
    go_on.clear()
    yield
    go_on.set()


@pytest.fixture(params=["dasks", "python", "engine"])
def has_core(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Leave the state with Dask, for comparison, then give it to the core."""
    with configured({ENGINE: request.param == "engine", KEY: request.param != "dasks"}):
        yield request.param != "dasks"


def settings(timeout: str) -> dict[str, Any]:
    """Give the settings of a cluster with a timeout."""
    return {SETTING: timeout, KEY: dask.config.get(KEY)}


def affected(s: Scheduler) -> set[Any]:
    """Find the keys of tasks of which an event says that they have waited for too long."""
    events = [event for _, event in s.get_events("scheduler") if isinstance(event, dict)]
    failed = [one for one in events if one.get("action") == "no-workers-timeout-exceeded"]
    assert all(type(one["keys"]) is set for one in failed)
    return {key for one in failed for key in one["keys"]}


def shift(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set both clocks ahead, for tasks that have waited."""
    for module, name in (
        (distributed.scheduler, "monotonic"),
        (unrunnable, "monotonic"),
        (unrunnable, "time"),
    ):
        clock = getattr(distributed.metrics, name)
        monkeypatch.setattr(module, name, lambda clock=clock: clock() + seconds)


WITHOUT_WORKERS = (
    "Attempted to run task {!r} but timed out after 100.00 ms waiting without any running workers."
)


@gen_test()
async def test_without_workers_all_tasks_fail(has_core: bool) -> None:
    async with cluster(workers=0, settings=settings("100ms")) as (c, s, core, _):
        with captured_logger("distributed.scheduler") as log:
            keys: list[Any] = ["alone", ("x", 0), ("x", 1)]
            futures = [c.submit(inc, 1, key=key) for key in keys]
            total = c.submit(add, *c.map(inc, range(2), key=["part-0", "part-1"]), key="total")
            for key, future in zip(keys, futures, strict=True):
                with pytest.raises(NoWorkerError) as raised:
                    await future
                assert str(raised.value) == WITHOUT_WORKERS.format(key)
                assert (raised.value.task, raised.value.timeout) == (key, 0.1)
            # It waits for two, of which one is to blame.
            with pytest.raises(NoWorkerError, match=r"Attempted to run task 'part-[01]' but"):
                await total
            assert core.is_active is has_core, core.escapes
            assert not core.escapes
        keys += ["part-0", "part-1"]
        assert affected(s) == set(keys)
        said = [line for line in log.getvalue().splitlines() if "marked as failed" in line]
        assert sorted(said) == sorted(
            f"Task {key} marked as failed because it timed out waiting without any running workers."
            for key in keys
        )
        async with Worker(s.address, nthreads=1, validate=True):
            assert await c.submit(inc, 2) == 3
        assert not core.escapes


RESTRICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "worker": ({"workers": [NOBODY]}, "worker_restrictions={'" + NOBODY + "'}"),
    "host": ({"workers": ["10.0.0.9"]}, "host_restrictions={'10.0.0.9'}"),
    "resource": ({"resources": {"FOO": 2}}, "resource_restrictions={'FOO': 2.0}"),
    "half": ({"resources": {"FOO": 0.5}}, "resource_restrictions={'FOO': 0.5}"),
}


@pytest.mark.parametrize("workers", [0, 1])
@gen_test()
async def test_a_task_that_no_worker_may_run_fails(workers: int, has_core: bool) -> None:
    async with cluster(workers, settings("100ms")) as (c, s, core, _):
        with captured_logger("distributed.scheduler") as log:
            runs = c.submit(when_told, 1, key="runs") if workers else None
            futures = {
                name: c.submit(inc, 1, key=name, **asks) for name, (asks, _) in RESTRICTIONS.items()
            }
            for name, future in futures.items():
                with pytest.raises(NoValidWorkerError) as raised:
                    await future
                expected = {
                    "host_restrictions": "set()",
                    "worker_restrictions": "set()",
                    "resource_restrictions": "{}",
                }
                asked, _, of = RESTRICTIONS[name][1].partition("=")
                expected[asked] = of
                assert str(raised.value) == (
                    f"Attempted to run task {name!r} but timed out after 100.00 ms waiting for a "
                    "valid worker matching all restrictions.\n\nRestrictions:\n"
                    + "".join(f"{one}={of}\n" for one, of in expected.items())
                )
            assert core.is_active is has_core, core.escapes
            assert affected(s) == RESTRICTIONS.keys()
        said = [line for line in log.getvalue().splitlines() if "marked as failed" in line]
        assert sorted(said) == sorted(
            f"Task {name} marked as failed because it timed out waiting for its restrictions to "
            "become satisfied."
            for name in RESTRICTIONS
        )
        if runs is not None:
            go_on.set()
            assert await runs == 2
        assert not core.escapes


@gen_test()
async def test_a_worker_that_comes_in_time_runs_them(
    has_core: bool, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    async with cluster(workers=0, settings=settings("1h")) as (c, s, core, _):
        futures = c.map(inc, range(3))
        asks = c.submit(when_told, 1, resources={"FOO": 1}, key="asks")
        await eventually(lambda: len(s.tasks) == 4)
        s._check_no_workers()
        shift(monkeypatch, 3000)
        s._check_no_workers()
        async with Worker(s.address, nthreads=1, validate=True):
            assert await c.gather(futures) == [1, 2, 3]
            foo = {"FOO": 1.0}
            async with Worker(s.address, nthreads=1, resources=foo, validate=True) as has_it:
                await eventually(lambda: has_it.state.executing_count == 1)
                shift(monkeypatch, 7000)
                s._check_no_workers()
                go_on.set()
                assert await asks == 2
                assert not affected(s)
                # It is lost with its worker. That is noted by clocks that are not ahead.
                shift(monkeypatch, 0)
            # Of one that comes now it can be seen.
            asks = c.submit(inc, 2, resources={"FOO": 1}, key="asks later")
            await eventually(lambda: "asks later" in s.tasks and "asks" not in s.tasks)
            s._check_no_workers()
            assert not affected(s)
            shift(monkeypatch, 7000)
            s._check_no_workers()
            assert affected(s) == {"asks later"}
            with pytest.raises(NoValidWorkerError):
                await asks
        assert core.is_active is has_core, core.escapes
        assert not core.escapes


@pytest.mark.parametrize("escapes", [False, True], ids=["", "escapes"])
@gen_test()
async def test_tasks_of_the_last_worker_fail_without_workers(
    has_core: bool, escapes: bool, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(workers=1, settings=settings("1h")) as (c, s, core, (worker,)):
        # Not one to be queued
        future = c.submit(when_told, 1, key="bad", workers=[worker.address])
        await eventually(lambda: worker.state.executing_count == 1)
        await worker.close(executor_wait=False)
        await eventually(lambda: not s.workers)
        if escapes:
            core.escape("to compare")
            s.validate_state()
        shift(monkeypatch, 7200)
        s._check_no_workers()
        # As it had one until that went
        with pytest.raises(NoWorkerError, match="'bad' but timed out after 60m 0s"):
            await future
        assert core.is_active is (has_core and not escapes), core.escapes
        go_on.set()


@gen_test()
async def test_the_timer_goes_on_after_an_escape(eventually: Eventually) -> None:
    # To raise it would keep the future: what is raised has its frames, and is kept of the task.
    async with cluster(settings={SETTING: "100ms"}) as (c, s, core, _):
        s.periodic_callbacks["no-workers-timeout"].stop()
        future = c.submit(inc, 1, workers=[NOBODY], key="first")
        await eventually(lambda: "first" in s.tasks)
        # A program makes another timer while the core has the state.
        timer = PeriodicCallback(s._check_no_workers, 20)
        timer.start()
        try:
            assert isinstance(await future.exception(), NoValidWorkerError)
            assert core.is_active
            future = c.submit(inc, 1, workers=[NOBODY], key="second")
            await eventually(lambda: "second" in s.tasks)
            core.escape("to see")
            assert isinstance(await future.exception(), NoValidWorkerError)
            assert not core.is_active
        finally:
            timer.stop()
        # Dask's, too, which was the core's meanwhile
        s.periodic_callbacks["no-workers-timeout"].start()
        future = c.submit(inc, 1, workers=[NOBODY], key="third")
        assert isinstance(await future.exception(), NoValidWorkerError)
        del future
        await eventually(lambda: not len(s.tasks))
        assert await c.submit(inc, 1) == 2
        assert core.is_active
        assert affected(s) == {"first", "second", "third"}


@gen_test()
async def test_the_timeout_can_be_set_meanwhile(eventually: Eventually) -> None:
    async with cluster() as (c, s, core, _):
        future = c.submit(inc, 1, workers=[NOBODY], key="asks")
        await eventually(lambda: "asks" in s.tasks)
        assert core.is_active
        assert s.no_workers_timeout is None
        s.no_workers_timeout = 0.1
        assert list(core.escapes) == ["Scheduler.no_workers_timeout = …"]
        assert isinstance(await future.exception(), NoValidWorkerError)
        del future
        await eventually(lambda: not len(s.tasks))
        future = c.submit(inc, 1, workers=[NOBODY], key="asks again")
        assert isinstance(await future.exception(), NoValidWorkerError)
        assert core.is_active


@gen_test()
async def test_a_clock_that_is_set_fails_no_task(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(settings={SETTING: "1h"}) as (c, s, core, _):
        future = c.submit(inc, 1, workers=[NOBODY], key="asks")
        await eventually(lambda: "asks" in s.tasks)
        assert core.is_active
        monkeypatch.setattr(unrunnable, "time", lambda: distributed.metrics.time() + 7200)
        s._check_no_workers()
        assert list(core.escapes) == ["the clock was set"]
        assert s.tasks["asks"].state == "no-worker"
        shift(monkeypatch, 3500)
        s._check_no_workers()
        assert s.tasks["asks"].state == "no-worker"
        shift(monkeypatch, 3700)
        s._check_no_workers()
        with pytest.raises(NoValidWorkerError):
            await future


class _Own(Scheduler):
    def _check_no_workers(self) -> None:
        super()._check_no_workers()
        self.checks: int = getattr(self, "checks", 0) + 1


@gen_test()
async def test_a_check_of_its_own_is_called(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.dask.scheduler_core.test_live.Scheduler", _Own)
    async with cluster(settings={SETTING: "100ms"}) as (c, s, core, _):
        future = c.submit(inc, 1, workers=[NOBODY], key="asks")
        with pytest.raises(NoValidWorkerError):
            await future
        # Such a scheduler keeps its state: the core would not call the method.
        assert core.adoptions == 0
        assert isinstance(s, _Own)
        before = s.checks
        s._check_no_workers()
        assert s.checks == before + 1


@gen_test()
async def test_a_timeout_of_zero_is_dasks_to_raise_of() -> None:
    async with cluster(settings={SETTING: "0s"}) as (_, s, core, _):
        assert "no-workers-timeout is zero" in str(refusal(s))
        assert not core.adopt()
