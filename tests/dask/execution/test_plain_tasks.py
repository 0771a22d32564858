"""Plain tasks through a worker's state machine: who sees more than that gets Dask's own functions.

What state machines have in common is compared in `tests/dask/worker_core`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from distributed import Client, Scheduler, Worker, WorkerPlugin
from distributed.utils_test import gen_test
from distributed.worker_state_machine import (
    ComputeTaskEvent,
    ExecuteSuccessEvent,
    FreeKeysEvent,
    WorkerState,
)

import dask
from backhaul.dask.compat import activation
from backhaul.dask.worker import plain_events
from tests.dask.execution.tasks import HOST, add

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually

#: Transitions of a plain task, from its message to the end of its result
WHOLE = [
    ("released", "waiting"),
    ("waiting", "ready"),
    ("ready", "executing"),
    ("executing", "memory"),
    ("memory", "released"),
    ("released", "forgotten"),
]


@pytest.fixture(autouse=True)
def written_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the keys of tasks that are taken on by ours."""
    taken: list[str] = []
    take_on: Callable[..., Any] = plain_events.take_on  # type: ignore[attr-defined]

    def noting(state: WorkerState, ts: Any, stimulus_id: str) -> Any:
        taken.append(ts.key)
        return take_on(state, ts, stimulus_id)

    monkeypatch.setattr(plain_events, "take_on", noting)
    activation.install()
    assert "hot-path.transitions" in {patch.switch for patch in activation.installed()}
    return taken


def whole_way(state: WorkerState, key: str = "x") -> list[tuple[str, str]]:
    """Compute, end and free a task; give what the log has of it."""
    compute = ComputeTaskEvent.dummy(key, stimulus_id="s1")
    assert [type(each).__name__ for each in state.handle_stimulus(compute)] == ["Execute"]
    ended = ExecuteSuccessEvent.dummy(key, 5, stimulus_id="s2")
    assert [type(each).__name__ for each in state.handle_stimulus(ended)] == ["TaskFinishedMsg"]
    freed = FreeKeysEvent(keys=[key], stimulus_id="s3")
    released = state.handle_stimulus(freed)
    assert [type(each).__name__ for each in released] == ["ReleaseWorkerDataMsg"]
    assert not state.tasks
    assert not state.data
    # Key, start, finish, and what it is then
    return [entry[1:3] for entry in state.log if len(entry) == 7]


def state_machine(**options: Any) -> WorkerState:
    return WorkerState(nthreads=1, address="tcp://127.0.0.1:1", validate=False, **options)


def test_a_plain_task_is_taken_on_by_ours(written_out: list[str]) -> None:
    state = state_machine()
    assert whole_way(state) == WHOLE
    assert written_out == ["x"]
    assert state.transition_counter == 6
    assert state.task_counter.current_count() == {}
    assert [type(event).__name__ for event in state.stimulus_log] == [
        "ComputeTaskEvent",
        "ExecuteSuccessEvent",
        "FreeKeysEvent",
    ]


class Hears(WorkerPlugin):
    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def transition(self, key: Any, start: Any, finish: Any, **_: Any) -> None:
        self.heard.append((start, finish))


class Mute(WorkerPlugin):
    pass


class NoPlugin:
    """As the documents allow: any object."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.transition = lambda _, start, finish: self.heard.append((start, finish))


@pytest.mark.parametrize("kind", [Hears, NoPlugin])
def test_a_plugin_hears_of_each_transition(kind: Any, written_out: list[str]) -> None:
    plugin = kind()
    assert whole_way(state_machine(plugins={"mute": Mute(), "hears": plugin})) == WHOLE
    assert plugin.heard == WHOLE
    assert written_out == []


def test_a_plugin_that_hears_nothing_changes_nothing(written_out: list[str]) -> None:
    assert whole_way(state_machine(plugins={"mute": Mute()})) == WHOLE
    assert written_out == ["x"]


def test_whoever_validates_limits_or_logs_gets_dasks_own(
    written_out: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    validates = state_machine()
    validates.validate = True
    assert whole_way(validates) == WHOLE
    assert whole_way(state_machine(transition_counter_max=100)) == WHOLE
    with caplog.at_level(logging.DEBUG, "distributed.worker.state_machine"):
        assert whole_way(state_machine()) == WHOLE
        assert "Purge task" in caplog.text
    assert written_out == []


def test_a_class_of_somebody_elses_keeps_its_own(written_out: list[str]) -> None:
    class Counting(WorkerState):
        __slots__ = ("purged",)
        purged: int

        def _purge_state(self, ts: Any) -> None:
            self.purged += 1
            super()._purge_state(ts)

    state = Counting(nthreads=1, address="tcp://127.0.0.1:1", validate=False)
    state.purged = 0
    assert whole_way(state) == WHOLE
    assert state.purged == 2
    assert written_out == []


@gen_test()
async def test_tasks_of_a_cluster_are_taken_on_by_ours(
    written_out: list[str], eventually: Eventually
) -> None:
    # Those that threads run by themselves are gone through later.
    with dask.config.set({"distributed.comm.backhaul.hot-path.worker-threads": False}):
        await _taken_on(written_out, eventually)


async def _taken_on(written_out: list[str], eventually: Eventually) -> None:
    async with (
        Scheduler(host=HOST, dashboard_address=":0") as scheduler,
        Worker(scheduler.address, nthreads=2, validate=False) as worker,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        futures = client.map(add, range(100))
        total = client.submit(sum, futures)
        assert await total == 4950
        assert set(written_out) == {future.key for future in futures}
        worker.state.validate_state()
        story = [entry[1:3] for entry in worker.state.story(futures[0].key) if len(entry) == 7]
        assert story == WHOLE[:4]
        del futures, total
        await eventually(lambda: not worker.state.tasks)
        worker.state.validate_state()
        assert not worker.data
