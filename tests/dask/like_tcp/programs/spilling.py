"""Workers whose results do not fit into memory, and are written to disk and read again."""

from __future__ import annotations

import threading
from typing import Any

import dask.array as da
import numpy as np
from distributed import wait

from tests.dask.like_tcp.kit import Observation, Run, outcome, program

#: Results above 8 MiB are written to disk; what a process takes besides plays no part
SPILLS: dict[str, Any] = {
    "memory_limit": 1 << 28,
    "distributed.worker.memory.target": 1 / 32,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}

#: An array of 1 MiB
ITEMS = 131_072


def filled(number: int) -> Any:
    return np.full(ITEMS, float(number))


def total(value: Any) -> float:
    return float(value.sum())


def add_in_place(value: Any) -> float:
    value += 1
    return float(value.sum())


def stored(dask_worker: Any) -> list[int]:
    """Counts the results in memory and on disk."""
    return [len(dask_worker.data.fast), len(dask_worker.data.slow)]


def stored_by(run: Run, number: int) -> list[int]:
    (found,) = run.client.run(stored, workers=[run.workers[number]]).values()
    return list(found)


@program(config=SPILLS)
def results(run: Run) -> Observation:
    """Results that are on disk are gathered, sent to a peer and used by tasks."""
    made = []
    for number in range(20):
        made.append(run.submit_on(0, filled, number))
        wait(made[-1])
    found: list[Any] = [stored_by(run, 0)]
    found.append([total(each.result()) for each in made])
    found.append(run.client.gather([run.submit_on(0, total, each) for each in made]))
    found.append(run.client.gather([run.submit_on(1, total, each) for each in made]))
    found += [outcome(made[0].result)]
    return found


@program(config=SPILLS)
def changed_and_spilled(run: Run) -> Observation:
    """A task changes a result, which is written to disk after, and another one that was there."""
    found = []
    for is_on_disk in (False, True):
        value = run.submit_on(0, filled, 1)
        mine = value.result()
        if not is_on_disk:
            found.append(run.submit_on(0, add_in_place, value).result())
        others = []
        for number in range(12):
            others.append(run.submit_on(0, filled, number))
            wait(others[-1])
        found.append(stored_by(run, 0))
        if is_on_disk:
            found.append(run.submit_on(0, add_in_place, value).result())
        found.append([total(mine), total(value.result())])
        found.append([run.submit_on(each, total, value).result() for each in (1, 0)])
    return found


@program(config=SPILLS)
def kinds(run: Run) -> Observation:
    """Values of several kinds come back from disk as they were."""

    def read_only() -> Any:
        value = filled(2)
        value.flags.writeable = False
        return value

    makers: list[Any] = [
        read_only,
        lambda: np.asfortranarray(filled(3).reshape(256, 512)),
        lambda: filled(4)[::2],
        lambda: bytes(1 << 20),
        lambda: bytearray(1 << 20),
        lambda: {"arrays": [filled(5), "text"]},
        lambda: "é" * (1 << 19),
    ]
    made = []
    for maker in makers:
        made.append(run.submit_on(0, maker))
        wait(made[-1])
    others = []
    for number in range(10):
        others.append(run.submit_on(0, filled, number))
        wait(others[-1])
    found: list[Any] = [stored_by(run, 0), [outcome(each.result) for each in made]]
    found.append([outcome(run.submit_on(0, type, each).result) for each in made])
    return found


@program(config=SPILLS)
def unspillable(run: Run) -> Observation:
    """A large result that cannot be pickled stays in memory, and its worker goes on."""

    def lock() -> Any:
        return [threading.Lock(), filled(1)]

    kept = run.submit_on(0, lock)
    wait(kept)
    others = []
    for number in range(10):
        others.append(run.submit_on(0, filled, number))
        wait(others[-1])
    used = run.submit_on(0, lambda value: total(value[1]), kept)
    return [outcome(used.result), [total(each.result()) for each in others]]


@program(config=SPILLS)
def collections(run: Run) -> Observation:
    """An array of twice the memory of the workers is persisted, transposed and rechunked."""
    x = da.arange(16 * ITEMS, chunks=ITEMS, dtype=float).reshape((2048, 1024)).persist()
    wait(x)
    y = (x + 1).persist()
    wait(y)
    # Either worker may have most of it.
    on_disk = sum(stored_by(run, number)[1] for number in (0, 1)) > 0
    found = [on_disk, x.sum().compute(), y.T.sum(axis=0).compute()]
    return [*found, (x - y).rechunk((512, 1024)).min().compute()]
