"""Results that are lent from worker to worker: what a program that writes to them sees."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
import pytest
from distributed import Client, LocalCluster, Worker

import dask

Array: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

MIB = 1 << 20


def see(key: str, dask_worker: Worker) -> tuple[int, int]:
    """Tell the first and the last byte of a result that a worker holds."""
    array = cast("Array", dask_worker.data[key])
    return int(array[0]), int(array[-1])


def write(key: str, begin: int, value: int, dask_worker: Worker) -> None:
    """Write to a result in place, as no task should."""
    cast("Array", dask_worker.data[key])[begin:] = value


@pytest.mark.parametrize("share", [True, False])
def test_what_a_task_writes_to_a_result_on_another_worker(share: bool) -> None:
    settings: dict[str, Any] = {
        "distributed.comm.backhaul.lanes": ["shm"],
        "distributed.comm.backhaul.arena.share-results": share,
        # It would drop one of the two.
        "distributed.scheduler.active-memory-manager.start": False,
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            protocol="backhaul",
            host="127.0.0.1",
            dashboard_address=":0",
        ) as workers,
        Client(workers) as client,
    ):
        a, b = sorted(client.nthreads())
        array = client.submit(np.ones, 4 * MIB, np.uint8, workers=[a])
        assert client.submit(np.sum, array, workers=[b]).result() == 4 * MIB

        def seen(worker: str) -> tuple[int, int]:
            found = client.run(see, array.key, workers=[worker])
            return found[worker]  # type: ignore[no-any-return]

        # Who received it writes to the second half: nobody else sees that.
        client.run(write, array.key, 2 * MIB, 2, workers=[b])
        assert (seen(a), seen(b)) == ((1, 1), (1, 2))
        # Who made it writes to all of it: shared, the half that was not written is seen.
        client.run(write, array.key, 0, 3, workers=[a])
        assert (seen(a), seen(b)) == ((3, 3), (3, 2) if share else (1, 2))
