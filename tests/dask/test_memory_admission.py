"""Admission of tasks by memory: threads that wait, and what is learned of each prefix."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from backhaul.dask.worker import memory_admission
from backhaul.dask.worker.memory_admission import MemoryAdmission, Run

DEADLINE_S = 60


class Task:
    """A run of a task of this test, which ends once `may_end` is set."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.seceded = False
        self.given_up = False
        self.began = threading.Event()
        self.may_end = threading.Event()

    def has_seceded(self) -> bool:
        return self.seceded

    def is_given_up(self) -> bool:
        return self.given_up


class Worker:
    """A worker of 1,000 bytes, of which 100 are taken without tasks."""

    def __init__(self) -> None:
        self.tasks: list[Run] = []
        self.taken = 0
        self.activated = 0
        self.admission = MemoryAdmission(self, 1000, self.activate)

    def running(self) -> list[Run]:
        return list(self.tasks)

    def floor_bytes(self) -> int:
        return 100

    def taken_bytes(self, run: Run) -> int:
        return self.taken

    def activate(self) -> None:
        self.activated += 1

    @contextmanager
    def started(self, task: Task) -> Iterator[Task]:
        """Run a task in a thread, which ends it after the block."""
        thread = threading.Thread(target=self._run, args=(task,))
        thread.start()
        try:
            yield task
        finally:
            task.may_end.set()
            thread.join(DEADLINE_S)
            assert not thread.is_alive()

    def _run(self, task: Task) -> None:
        self.admission.enter(task)
        task.began.set()
        self.tasks.append(task)
        task.may_end.wait(DEADLINE_S)
        self.tasks.remove(task)
        self.admission.leave(task)


@pytest.fixture
def worker() -> Worker:
    return Worker()


def waits(task: Task) -> bool:
    """Tell whether a task waits for longer than several looks of its thread."""
    return not task.began.wait(5 * memory_admission._LOOK_S)


def test_tasks_of_unknown_need_begin(worker: Worker) -> None:
    with worker.started(Task("a-1")) as first, worker.started(Task("a-2")) as second:
        assert first.began.wait(DEADLINE_S)
        assert second.began.wait(DEADLINE_S)
    assert not worker.activated


def test_little_memory_is_no_need(worker: Worker) -> None:
    worker.admission.learn([Task("a-1")], 20)
    assert worker.admission.need_bytes("a-2") == 0
    assert not worker.activated


def test_a_task_waits_for_the_end_of_another(worker: Worker) -> None:
    worker.admission.learn([Task("a-0")], 500)
    assert worker.activated
    with worker.started(Task("a-1")) as first:
        assert first.began.wait(DEADLINE_S)
        with worker.started(Task("a-2")) as second, worker.started(Task("a-3")) as third:
            assert waits(second)
            assert waits(third)
            # A task of another prefix has nothing to wait for.
            with worker.started(Task("b-1")) as other:
                assert other.began.wait(DEADLINE_S)
            first.may_end.set()
            assert second.began.wait(DEADLINE_S)
            assert waits(third)


def test_as_many_run_as_fit(worker: Worker) -> None:
    worker.admission.learn([Task("a-0")], 400)
    first, second, third = (Task(f"a-{number}") for number in range(1, 4))
    with worker.started(first), worker.started(second):
        assert first.began.wait(DEADLINE_S)
        assert second.began.wait(DEADLINE_S)
        with worker.started(third):
            assert waits(third)
            second.may_end.set()
            assert third.began.wait(DEADLINE_S)


def test_one_task_always_runs(worker: Worker) -> None:
    worker.admission.learn([Task("a-0")], 5000)
    with worker.started(Task("a-1")) as task:
        assert task.began.wait(DEADLINE_S)


def test_tasks_without_need_do_not_delay_one(worker: Worker) -> None:
    worker.admission.learn([Task("a-0")], 5000)
    with worker.started(Task("b-1")) as other:
        assert other.began.wait(DEADLINE_S)
        with worker.started(Task("a-1")) as task:
            assert task.began.wait(DEADLINE_S)


@pytest.mark.parametrize("reason", ["seceded", "given_up", "reserved"])
def test_a_wait_ends_for_other_reasons(
    worker: Worker, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.admission.learn([Task("a-0")], 600)
    with worker.started(Task("a-1")) as first:
        assert first.began.wait(DEADLINE_S)
        with worker.started(Task("a-2")) as second:
            assert waits(second)
            if reason == "seceded":
                first.seceded = True
            elif reason == "given_up":
                second.given_up = True
            else:
                # The first has taken nothing, and may wait for the second.
                monkeypatch.setattr(memory_admission, "_RESERVED_S", 0.0)
            assert second.began.wait(DEADLINE_S)


def test_a_wait_has_an_end(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_admission, "_WAIT_MAX_S", 0.1)
    worker.admission.learn([Task("a-0")], 600)
    with worker.started(Task("a-1")) as first:
        assert first.began.wait(DEADLINE_S)
        with worker.started(Task("a-2")) as second:
            assert second.began.wait(DEADLINE_S)


def test_memory_that_a_task_has_taken_stays_reserved(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.admission.learn([Task("a-0")], 600)
    monkeypatch.setattr(memory_admission, "_RESERVED_S", 0.0)
    worker.taken = 600
    with worker.started(Task("a-1")) as first:
        assert first.began.wait(DEADLINE_S)
        with worker.started(Task("a-2")) as second:
            assert waits(second)
            worker.taken = 0
            assert second.began.wait(DEADLINE_S)


def test_as_many_as_exceeded_the_memory_do_not_fit_again(worker: Worker) -> None:
    tasks = [Task(f"a-{number}") for number in range(3)]
    worker.admission.exceeded(tasks, 900)
    with worker.started(Task("a-4")) as first, worker.started(Task("a-5")) as second:
        assert first.began.wait(DEADLINE_S)
        assert second.began.wait(DEADLINE_S)
        with worker.started(Task("a-6")) as third:
            assert waits(third)
            first.may_end.set()
            assert third.began.wait(DEADLINE_S)


def test_runs_that_take_less_lower_a_need(worker: Worker) -> None:
    admission = worker.admission
    admission.learn([Task("a-0")], 500)
    task = Task("a-1")
    admission.learn([task], 400)
    admission.leave(task)
    assert admission.need_bytes("a-2") == 450
    for number in range(40):
        task = Task(f"a-{number}")
        admission.learn([task], 10)
        admission.leave(task)
    assert admission.need_bytes("a-2") == 0
    # A run that was not measured says nothing.
    admission.learn([Task("a-0")], 500)
    admission.leave(Task("a-1"))
    assert admission.need_bytes("a-2") == 500
