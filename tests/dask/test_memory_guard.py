"""Tasks that would end their worker by its memory, on workers with a nanny."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster, wait, worker_client

from backhaul import TaskTooLarge

MIB = 1 << 20
LIMIT_BYTES = 400 * MIB
DEADLINE_S = 300


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            protocol="backhaul",
            host="127.0.0.1",
            dashboard_address=":0",
            memory_limit=LIMIT_BYTES,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def grow(arrays: int) -> int:
    """Take 10 MiB of memory after another."""
    held = []
    for _ in range(arrays):
        held.append(np.ones(10 * MIB, np.uint8))
        time.sleep(0.01)
    return len(held)


def grow_and_swallow(arrays: int) -> int:
    """Take memory, and return a number whatever happens."""
    try:
        return grow(arrays)
    except BaseException:
        return -1


def take_in_one_call(mib: int) -> int:
    """Take memory where no exception reaches the code, and keep it."""
    held = np.ones(mib * MIB, np.uint8)
    time.sleep(DEADLINE_S)
    return len(held)


def total_of(array: Any, arrays: int) -> int:
    return int(array.sum()) + grow(arrays)


def wait_for(arrays: int) -> int:
    """Wait for a task that this task submits, and that has all memory for itself."""
    with worker_client() as client:
        return int(client.submit(grow, arrays, pure=False).result(timeout=DEADLINE_S))


def process() -> int:
    return os.getpid()


def test_tasks_that_together_take_too_much_end_one_after_another(client: Client) -> None:
    (before,) = client.run(process).values()
    futures = [client.submit(grow, 24, pure=False) for _ in range(2)]
    assert client.gather(futures) == [24, 24]
    assert list(client.run(process).values()) == [before]


def begin_and_grow(arrays: int, path: str) -> int:
    """Take memory, and note in a file that a run has begun."""
    with open(path, "a", encoding="ascii") as file:
        file.write("begun\n")
    return grow(arrays)


def test_tasks_wait_for_memory_once_their_need_is_known(client: Client, tmp_path: Path) -> None:
    (before,) = client.run(process).values()
    path = tmp_path / "begun"
    futures = client.map(begin_and_grow, [22] * 8, path=str(path), pure=False)
    assert client.gather(futures) == [22] * 8
    assert list(client.run(process).values()) == [before]
    # Without admission the second of two tasks is broken off again and again.
    assert len(path.read_text(encoding="ascii").splitlines()) <= 8 + 2


@pytest.mark.parametrize("function", [grow, grow_and_swallow])
def test_a_task_that_is_too_large_fails_and_its_worker_lives(client: Client, function: Any) -> None:
    (before,) = client.run(process).values()
    data = client.submit(np.ones, 20 * MIB, np.uint8)
    future = client.submit(function, 60, pure=False)
    error = future.exception(timeout=DEADLINE_S)
    assert isinstance(error, TaskTooLarge)
    assert isinstance(error, MemoryError)
    assert str(future.key) in str(error)
    assert "400.00 MiB" in str(error)
    assert list(client.run(process).values()) == [before]
    assert client.submit(np.sum, data).result(timeout=DEADLINE_S) == 20 * MIB


def test_a_task_that_waits_for_others_is_not_broken_off(client: Client) -> None:
    with pytest.raises(TaskTooLarge):
        client.submit(wait_for, 60, pure=False).result(timeout=DEADLINE_S)
    assert client.submit(wait_for, 20, pure=False).result(timeout=DEADLINE_S) == 20


def test_the_error_names_the_inputs(client: Client) -> None:
    data = client.submit(np.ones, 40 * MIB, np.uint8, key="the-data")
    error = client.submit(total_of, data, 60).exception(timeout=DEADLINE_S)
    assert isinstance(error, TaskTooLarge)
    assert "the-data: 40.00 MiB" in str(error)


def take_and_stay(arrays: int) -> None:
    """Take 10 MiB of memory after another, and keep it, whatever exceptions come."""
    held: list[np.ndarray] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(BaseException):
            if len(held) < arrays:
                held.append(np.ones(10 * MIB, np.uint8))
            time.sleep(0.005)


def note_and_fill(number: int, path: str) -> np.ndarray:
    """Make 4 MiB, and note in a file that this has run."""
    with open(path, "a", encoding="ascii") as file:
        file.write(f"{number}\n")
    return np.full(4 * MIB, number, np.uint8)


def test_results_move_to_other_workers_before_their_worker_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "begun"
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            protocol="backhaul",
            host="127.0.0.1",
            dashboard_address=":0",
            memory_limit=LIMIT_BYTES,
        ) as cluster,
        Client(cluster) as client,
    ):
        before = client.run(process)
        first, second = before
        on_first: dict[str, Any] = {"workers": [first], "allow_other_workers": True}
        results = client.map(note_and_fill, range(16), path=str(path), **on_first)
        wait(results, timeout=DEADLINE_S)
        assert any(first in holders for holders in client.who_has(results).values())
        future = client.submit(take_and_stay, 34, pure=False, workers=[first])
        assert isinstance(future.exception(timeout=DEADLINE_S), TaskTooLarge)
        deadline_s = time.monotonic() + DEADLINE_S
        while first in (now := client.scheduler_info()["workers"]) or len(now) < 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        assert client.run(process)[second] == before[second]
        totals = client.gather(client.map(np.sum, results))
        assert totals == [4 * MIB * number for number in range(16)]
        # None was computed again.
        assert sorted(map(int, path.read_text(encoding="ascii").split())) == list(range(16))


def test_a_task_that_cannot_be_interrupted_ends_no_second_worker(client: Client) -> None:
    future = client.submit(take_in_one_call, 450, pure=False)
    assert isinstance(future.exception(timeout=DEADLINE_S), TaskTooLarge)
    # The worker that runs the task is ended; the next one is not.
    assert client.submit(grow, 2, pure=False).result(timeout=DEADLINE_S) == 2
