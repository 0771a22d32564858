"""Counts of a worker's tasks by prefix: Dask's, at a cost that does not grow with prefixes."""

from __future__ import annotations

import random
import time
from operator import neg
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker
from distributed.worker_state_machine import TaskCounter

import dask
from backhaul.dask.compat import activation
from backhaul.dask.worker import task_counts
from tests.dask.execution.tasks import cluster

STATES = ("released", "waiting", "executing", "memory")


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("prefixes", [3, 40, 400])
@pytest.mark.parametrize("mixes", [False, True], ids=["ours", "in-turn"])
@pytest.mark.parametrize("seed", range(3))
def test_counts_and_seconds_are_those_of_dask(
    plain_dask: None, monkeypatch: pytest.MonkeyPatch, prefixes: int, seed: int, mixes: bool
) -> None:
    clock = Clock()
    monkeypatch.setattr("distributed.worker_state_machine.monotonic", clock)
    monkeypatch.setattr(task_counts, "monotonic", clock)
    rng = random.Random(seed)
    theirs, ours = TaskCounter(), TaskCounter()
    tasks: list[Any] = []
    for step in range(600):
        # Sums of such numbers are exact, however they are grouped.
        clock.now_s += rng.choice((0, 1, 1, 5)) / 64
        initial: dict[Any, Any] = {}
        for _ in range(rng.randrange(4)):
            if len(tasks) < 2 * prefixes and rng.random() < 0.6:
                name = f"prefix-{rng.randrange(prefixes)}"
                task: Any = _Task(prefix=name, state="released")
                tasks.append(task)
                for counter in (theirs, ours):
                    counter.new_task(task)
            elif tasks:
                task = rng.choice(tasks)
            else:
                continue
            initial.setdefault(task, task.state)
            task.state = rng.choice(STATES)
            if rng.random() < 0.2:
                task.state = "forgotten"
                tasks.remove(task)
        theirs.transitions(initial)
        if mixes and rng.random() < 0.1:
            ours.transitions(initial)
        else:
            task_counts.count_transitions(ours, initial)
        assert ours.current_count() == theirs.current_count()
        if step % 50 == 0 or len(ours.current_count()) <= 64:
            assert list(ours.current_count().items()) == list(theirs.current_count().items())
            assert ours.cumulative_elapsed() == theirs.cumulative_elapsed()
            if not mixes:
                assert list(ours.cumulative_elapsed()) == list(theirs.cumulative_elapsed())


class _Task(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


def test_a_change_costs_the_same_however_many_prefixes_have_tasks() -> None:
    def seconds_of(count: int) -> float:
        counter = TaskCounter()
        for number in range(count):
            task: Any = _Task(prefix=f"prefix-{number}", state="memory")
            counter.new_task(task)
            task_counts.count_transitions(counter, {task: "released"})
        started_s = time.thread_time()
        for number in range(1000):
            task = _Task(prefix=f"prefix-{number % count}", state="executing")
            counter.new_task(task)
            task_counts.count_transitions(counter, {task: "released"})
            task.state = "forgotten"
            task_counts.count_transitions(counter, {task: "executing"})
        return time.thread_time() - started_s

    # Where each change goes through all groups, the second takes some hundred times as long.
    assert seconds_of(20_000) < 20 * seconds_of(10)


@pytest.mark.parametrize("in_rust", [True, False], ids=["rust", "python"])
@pytest.mark.parametrize("holds", [True, False], ids=["held", "dropped"])
def test_a_task_costs_the_same_after_many_prefixes(in_rust: bool, holds: bool) -> None:
    held: list[Any] = []

    @cluster(1, timeout=600)
    async def measure(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        for state in (worker.state, scheduler):
            state.validate = False
            state.transition_counter_max = False

        async def run(name: str, count: int) -> float:
            started_s = time.process_time()
            keys = [f"{name}{number}q" for number in range(count)]
            futures = client.map(neg, range(count), key=keys)
            assert await client.gather(futures) == [-number for number in range(count)]
            if holds:
                held.extend(futures)
            return (time.process_time() - started_s) / count

        await run("warm", 200)
        before_s = min([await run(f"first{number}", 100) for number in range(3)])
        await run("many", 3000)
        after_s = min([await run(f"last{number}", 100) for number in range(3)])
        # Where each event goes through all prefixes that there have been, ten times as much.
        assert after_s < 6 * before_s
        counts = worker.state.task_counter
        if holds:
            assert counts.current_count(by_prefix=False)["memory"] == len(held) == 3800
        held.clear()
        seconds = counts.cumulative_elapsed()
        assert sum(state == "memory" for _, state in seconds) >= 3800

    with dask.config.set({"distributed.comm.backhaul.hot-path.worker-core": in_rust}):
        activation.install()
        measure()
