"""Results that are lent to workers and clients stay private to each of them, as over tcp."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from typing import Any, TypeAlias, cast

import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, Worker, wait

import dask

Array: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

MIB = 1 << 20

#: Objects that a worker's process keeps between tasks
kept: dict[Any, Any] = {}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
    pytest.mark.usefixtures("forked_workers"),
]


def see(key: str, dask_worker: Worker) -> tuple[int, int]:
    """Return the first and the last byte of a result that a worker holds."""
    array = cast("Array", dask_worker.data[key])
    return int(array[0]), int(array[-1])


def write(key: str, begin: int, value: int, dask_worker: Worker) -> None:
    """Write to a result in place, as no task should."""
    cast("Array", dask_worker.data[key])[begin:] = value


@pytest.fixture(scope="module", params=["tcp", "backhaul", "backhaul that copies"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    settings: dict[str, Any] = {
        "distributed.comm.backhaul.lanes": ["shm"],
        "distributed.comm.backhaul.arena.share-results": "copies" not in request.param,
        # It would drop one of two replicas.
        "distributed.scheduler.active-memory-manager.start": False,
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            protocol=request.param.split()[0],
            host="127.0.0.1",
            dashboard_address=":0",
        ) as workers,
        Client(workers) as client,
    ):
        yield client


def workers(client: Client) -> tuple[str, str]:
    a, b = sorted(client.nthreads())
    return a, b


def test_a_worker_does_not_see_what_another_writes_to_its_copy_of_a_result(client: Client) -> None:
    a, b = workers(client)
    array = client.submit(np.ones, 4 * MIB, np.uint8, workers=[a], pure=False)
    assert client.submit(np.sum, array, workers=[b], pure=False).result() == 4 * MIB

    def seen(worker: str) -> tuple[int, int]:
        found = client.run(see, array.key, workers=[worker])
        return found[worker]  # type: ignore[no-any-return]

    client.run(write, array.key, 2 * MIB, 2, workers=[b])
    assert (seen(a), seen(b)) == ((1, 1), (1, 2))
    client.run(write, array.key, 0, 3, workers=[a])
    assert (seen(a), seen(b)) == ((3, 3), (1, 2))


def test_a_result_that_a_client_has_does_not_change_when_a_task_writes_to_its_input(
    client: Client,
) -> None:
    def zeros() -> Array:
        return np.zeros(MIB, np.uint8)

    def fill(array: Array) -> None:
        array[:] = 7

    made = client.submit(zeros, pure=False)
    mine = made.result()
    client.submit(fill, made, pure=False).result()
    later = made.result()
    assert (int(mine.max()), int(later.min())) == (0, 7)
    client.submit(fill, client.submit(np.copy, made, pure=False), pure=False).result()
    mine[:10] = 1
    assert int(later.min()) == 7


def make_aliases() -> tuple[pd.DataFrame, Array]:
    """Make a frame and a slice over one array, which the worker keeps in a global too."""
    base = np.arange(6 * MIB, dtype=np.uint8).reshape(6, MIB)
    kept["base"] = base
    return pd.DataFrame(base.T, copy=False), base[1, 1000:]


def write_to_all_aliases() -> int:
    """Write to the array by its global name."""
    base = cast("Array", kept.pop("base"))
    base[:] = 255
    return int(base.min())


def totals(made: tuple[pd.DataFrame, Array]) -> tuple[int, int]:
    """Return the sums of a frame and a slice."""
    frame, view = made
    return int(frame.to_numpy().sum(dtype=np.int64)), int(view.sum(dtype=np.int64))


def test_no_alias_of_the_makers_memory_changes_what_was_received(client: Client) -> None:
    a, b = workers(client)

    made = client.submit(make_aliases, workers=[a], pure=False)
    there = client.submit(lambda x: x, made, workers=[b], pure=False)
    mine = made.result()
    expected = totals(mine)
    assert client.submit(totals, there, workers=[b], pure=False).result() == expected
    assert client.submit(write_to_all_aliases, workers=[a], pure=False).result() == 255
    assert totals(mine) == expected
    assert client.submit(totals, there, workers=[b], pure=False).result() == expected
    changed = client.submit(totals, made, workers=[a], pure=False).result()
    assert changed == (255 * 6 * MIB, 255 * (MIB - 1000))


def test_results_that_were_written_to_after_they_were_sent_are_sent_as_they_are_now(
    client: Client,
) -> None:
    a, b = workers(client)
    array = client.submit(np.ones, 4 * MIB, np.uint8, workers=[a], pure=False)
    wait(array)
    received = []
    for value in range(2, 6):
        client.run(write, array.key, MIB * (value - 2), value, workers=[a])
        received.append(client.submit(lambda x: x, array, workers=[a], pure=False).result())
    sums = [int(each.sum(dtype=np.int64)) // MIB for each in received]
    assert sums == [8, 11, 13, 14]
    # Memory that is used again holds no byte of the blocks before.
    del received, array
    for value in range(3):
        full = client.submit(np.full, 4 * MIB, value, np.uint8, workers=[a], pure=False)
        total = client.submit(np.sum, full, workers=[b], pure=False)
        assert (int(full.result().max()), int(total.result())) == (value, value * 4 * MIB)


def fork_and_write(array: Array) -> tuple[int, int]:
    """Write to an array after a fork, and return the byte that parent and child see then."""
    here, there = multiprocessing.Pipe()
    child = os.fork()
    if child == 0:
        try:
            there.recv()
            there.send(int(array[-1]))
        finally:
            os._exit(0)
    array[:] = 7
    here.send("written")
    seen = here.recv()
    os.waitpid(child, 0)
    return int(array[-1]), seen


def test_a_forked_child_sees_the_arrays_of_its_task_as_they_were_at_the_fork(
    client: Client,
) -> None:
    def task(nbytes: int) -> tuple[int, int]:
        return fork_and_write(np.zeros(nbytes, np.uint8))

    for nbytes in (1000, 100_000, 3 * MIB):
        assert client.submit(task, nbytes, pure=False).result() == (7, 0)


def fork_child(array: Array) -> int:
    """Fork a child that waits, then reads an array; return the child's id."""
    read, written = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(written)
        os.read(read, 1)
        os._exit(int(array.min() != 5) + 2 * int(array.max() != 5))
    os.close(read)
    kept[child] = written
    return child


def end_child(child: int) -> int:
    """Wake a child and return its exit status: 0 if its array is unchanged."""
    os.close(kept.pop(child))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_keeps_a_result_that_its_worker_received_and_has_dropped(
    client: Client,
) -> None:
    a, b = workers(client)
    array = client.submit(np.full, 2 * MIB, 5, np.uint8, workers=[a], pure=False)
    child = client.submit(fork_child, array, workers=[b], pure=False).result()
    del array
    for value in range(8):
        other = client.submit(np.full, 2 * MIB, value, np.uint8, workers=[a], pure=False)
        assert client.submit(np.max, other, workers=[b], pure=False).result() == value
    assert client.submit(end_child, child, workers=[b], pure=False).result() == 0
