"""Threads that begin tasks early, in random schedules: no deadlock, no lost wake-up, nothing twice.

Each fault is put into the code of the product, and shows that the schedules find faults of its
kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backhaul.dask.worker.early_execution import EarlyExecution
from backhaul.dask.worker.early_messages import EarlyMessages
from backhaul.dask.worker.early_reader import EarlyReader
from backhaul.dask.worker.idle_thread import IdleThread
from backhaul.dask.worker.local_queue import LocalQueue
from tests.dask.execution.early_schedules import simulated
from tests.dask.schedules import Deadlock

SEEDS = 200


def run_all() -> float:
    """Run all seeds; return the share of the tasks that threads have begun early."""
    sent = early = 0
    for seed in range(SEEDS):
        with simulated(seed) as simulation:
            simulation.run()
        sent += sum(simulation.runs.values())
        early += len(simulation.early)
    return early / sent


def test_random_schedules_end_with_each_task_run_and_reported_once() -> None:
    # Many tasks are begun by threads, and many by the event loop.
    assert 0.2 < run_all() < 0.8


def _no_wake_after_reports(_: EarlyMessages) -> bool:
    return False


def _no_wake_for_an_item(self: IdleThread, item: Any) -> tuple[bool, bool]:
    is_queued, _ = offer(self, item)
    return is_queued, False


def _no_wake_of_a_task(_: EarlyExecution) -> None:
    return None


def _no_wake_for_messages(self: IdleThread) -> bool:
    self.only_items = False
    return False


def _wait_for_the_inbox(self: EarlyReader) -> Any:
    # With the lock of the local queue
    with self._inbox.lock:
        return begin_next(self)


def _no_block(_: EarlyMessages) -> None:
    return None


def _reports_forgotten(self: LocalQueue, *stimuli: Any) -> None:
    self._ended.clear()
    handle(self, *stimuli)


offer = IdleThread.offer
begin_next = EarlyReader.begin_next
handle = LocalQueue.handle


@pytest.mark.parametrize(
    ("place", "name", "fault"),
    [
        (EarlyMessages, "on_reported", _no_wake_after_reports),
        (IdleThread, "offer", _no_wake_for_an_item),
        (IdleThread, "may_read_again", _no_wake_for_messages),
        (EarlyExecution, "wake", _no_wake_of_a_task),
        (EarlyReader, "begin_next", _wait_for_the_inbox),
        (EarlyMessages, "block", _no_block),
        (LocalQueue, "handle", _reports_forgotten),
    ],
)
def test_the_schedules_find_a_fault(
    place: type, name: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, fault)
    with pytest.raises((AssertionError, Deadlock)):
        run_all()
