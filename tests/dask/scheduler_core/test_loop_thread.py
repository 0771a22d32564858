"""Looks at a scheduler whose state is in the core, from threads that are not its event loop's."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from distributed import Client, LocalCluster
from distributed.utils_test import gen_test, slowinc

import dask
from backhaul.dask.scheduler.core import live_core, loop_thread
from backhaul.dask.scheduler.core.loop_thread import LoopThread
from backhaul.errors import EscapeError

KEY = "distributed.comm.backhaul.hot-path.scheduler-core"

#: Operations that a thread can do at any time with upstream's own state, too
LOOKS: dict[str, Callable[[Any], Any]] = {
    "tasks": lambda s: dict(s.tasks),
    "states": lambda s: [ts.state for ts in list(s.tasks.values())],
    "how many": lambda s: len(s.tasks),
    "a task": lambda s: s.tasks.get("a task"),
    "groups": lambda s: list(s.task_groups),
    "processing": lambda s: [len(ws.processing) for ws in list(s.workers.values())],
    "bytes": lambda s: [ws.nbytes for ws in list(s.workers.values())],
    "wants_what": lambda s: [len(cs.wants_what) for cs in list(s.clients.values())],
    "idle": lambda s: len(s.idle),
    "queued": lambda s: len(s.queued),
    "is_idle": lambda s: s.is_idle,
    "counter": lambda s: s.transition_counter,
    "counts again": lambda s: setattr(s, "transition_counter", 0),
    "who_has": lambda s: s.get_who_has(["a task"]),
    "text": repr,
}


def validate(dask_scheduler: Any) -> None:
    dask_scheduler.validate_state()


def test_the_main_thread_may_look_at_any_time() -> None:
    with (
        dask.config.set({KEY: True}),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            protocol="backhaul",
            dashboard_address=":0",
            scheduler_kwargs={"validate": True},
        ) as cluster,
        Client(cluster) as client,
    ):
        scheduler: Any = cluster.scheduler
        core = live_core.installed(scheduler)
        assert core is not None
        for _ in range(3):
            for look in LOOKS.values():
                futures = client.map(slowinc, range(40), delay=0.002, pure=False)
                assert futures[0].result() == 1
                with ThreadPoolExecutor(3) as looking:
                    list(looking.map(look, [scheduler] * 6))
                assert client.gather(futures) == list(range(1, 41))
                client.run_on_scheduler(validate)
                del futures
                while len(scheduler.tasks):
                    time.sleep(0.001)
        # They were looks at the core, which answers most of them.
        assert core.adoptions > 2
        assert "SchedulerState.transition_counter = …" in core.escapes
        # To validate the state is one, too, and what workers are to give back after one may be.
        assert len(set(core.escapes) - {"tasks to take back"}) <= 2, core.escapes


@gen_test()
async def test_an_event_loop_that_waits_for_the_thread_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_thread, "WAIT_S_MAX", 0.05)
    ours = LoopThread()
    assert ours.is_current()
    looked: list[int] = []
    raised: list[BaseException] = []

    def look() -> None:
        assert not ours.is_current()
        try:
            ours.run(lambda: looked.append(1))
        except EscapeError as error:
            raised.append(error)

    thread = threading.Thread(target=look, name="curious")
    thread.start()
    thread.join(60)
    (error,) = raised
    assert str(error).startswith("the scheduler's event loop has not answered")
    assert "thread 'curious'" in str(error)
    # The read does not happen later on either, when no thread waits for it.
    await asyncio.sleep(0.01)
    assert not looked
    # One that does not wait for it, does.
    await asyncio.to_thread(look)
    assert looked == [1]


@gen_test()
async def test_the_exception_of_a_read_is_raised_in_the_reading_thread() -> None:
    ours = LoopThread()
    for kind in (KeyError, TimeoutError):

        def look(kind: type[Exception] = kind) -> None:
            raise kind("nobody")

        with pytest.raises(kind, match="nobody"):
            await asyncio.to_thread(ours.run, look)


def test_an_event_loop_that_is_closed_refuses() -> None:
    async def make() -> LoopThread:
        return LoopThread()

    ours = asyncio.run(make())
    with ThreadPoolExecutor(1) as other:
        looking = other.submit(ours.run, lambda: None)
        with pytest.raises(EscapeError, match="event loop is closed"):
            looking.result(60)
