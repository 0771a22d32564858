"""Results that a worker spills to one file."""

from __future__ import annotations

import os
import random
import threading
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import dask.config
import distributed
import numpy as np
import pandas as pd
import pytest
from distributed import LocalCluster

import backhaul.dask
from backhaul.dask.compat.names import SpillBuffer
from backhaul.dask.worker.extents import Extents
from backhaul.dask.worker.spill_file import FileSlow, SpillFile, ahead_bytes

MIB = 1 << 20


def store_with_one_file(directory: Path, target: int) -> Any:
    store: Any = SpillBuffer(str(directory), target=target)
    store.slow.data = FileSlow(store._slow_uncached)
    return store


@pytest.fixture
def store(tmp_path: Path) -> Any:
    return store_with_one_file(tmp_path / "storage", 1_000)


def file_of(store: Any) -> SpillFile:
    file = store._slow_uncached.d
    assert isinstance(file, SpillFile)
    return file


@pytest.mark.parametrize("seed", range(20))
def test_extents_never_overlap_and_are_used_again(seed: int) -> None:
    random_ = random.Random(seed)
    extents = Extents()
    taken: list[tuple[int, int]] = []
    used_most = file_bytes = 0
    for _ in range(300):
        cut = None
        if taken and random_.random() < 0.5:
            cut = extents.give(*taken.pop(random_.randrange(len(taken))))
        else:
            size = random_.choice((0, 1, 4096, random_.randrange(100_000)))
            taken.append((extents.take(size), size))
        places = sorted(
            (start, start + max(4096, -(-size // 4096) * 4096)) for start, size in taken
        )
        assert all(before[1] <= after[0] for before, after in pairwise(places))
        assert extents.used_bytes == sum(end - start for start, end in places)
        end = places[-1][1] if places else 0
        if cut is not None:
            assert cut >= end
            file_bytes = cut
        file_bytes = max(file_bytes, end)
        used_most = max(used_most, extents.used_bytes)
    # Fragments cost something, but the file does not grow with all that was ever written.
    assert file_bytes <= 3 * used_most
    cuts = [extents.give(*each) for each in taken]
    assert cuts[-1:] in ([0], [])
    assert extents.used_bytes == 0


def test_values_come_back_as_they_were(store: Any) -> None:
    values: dict[Any, Any] = {
        "array": np.arange(100_000.0),
        "two-dimensional": np.asfortranarray(np.ones((300, 400), "f4")),
        "frame": pd.DataFrame({"a": range(20_000), "b": ["x", "yy"] * 10_000}),
        ("key", 1): [{"a": np.arange(50_000)}, "text"],
        "empty": np.empty(0),
        "large": np.arange(17 * MIB, dtype="u4"),  # more than one frame: 64 MiB is the most
        "bytes": b"x" * 3_000,
    }
    for key, value in values.items():
        store[key] = value
    assert set(store.slow) >= {"array", "frame", "large"}
    for key, value in values.items():
        found = store[key]
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(found, value)
            assert found.flags.writeable
            assert found.ctypes.data % 16 == 0
        elif isinstance(value, pd.DataFrame):
            pd.testing.assert_frame_equal(found, value)
        elif isinstance(value, list):
            np.testing.assert_array_equal(found[0]["a"], value[0]["a"])
        else:
            assert found == value


def test_the_same_numbers_are_counted_as_with_a_file_for_each(tmp_path: Path) -> None:
    def counted(store: Any) -> Any:
        for number in range(5):
            store[number] = np.full(10_000, number)
        for number in range(5):
            assert store[number][0] == number
        del store[3]
        metrics = {key: value for key, value in store.cumulative_metrics.items() if value}
        counts = {key: value for key, value in metrics.items() if key[1] != "seconds"}
        return counts, store.spilled_total, sorted(store.fast), sorted(store.slow)

    assert counted(store_with_one_file(tmp_path / "ours", 200_000)) == counted(
        SpillBuffer(str(tmp_path / "dask"), target=200_000)
    )


def test_nothing_has_a_path(store: Any, tmp_path: Path) -> None:
    store["x"] = np.ones(1_000)
    assert "x" in store.slow
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_space_is_given_back(store: Any) -> None:
    for number in range(10):
        store[number] = np.ones(100_000)
    descriptor = file_of(store)._descriptor
    assert descriptor is not None
    assert os.fstat(descriptor).st_size >= 8_000_000
    for number in range(10):
        del store[number]
    assert os.fstat(descriptor).st_size == 0
    store.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_full_disk_keeps_a_result_in_memory(
    store: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store["first"] = np.ones(1_000)
    with open("/dev/full", "wb") as full:
        file = file_of(store)
        monkeypatch.setattr(file, "_descriptor", full.fileno())
        store["x"] = np.ones(1_000)
        assert "x" in store.fast
        assert "keeping data in memory" in caplog.text
    monkeypatch.undo()
    assert store["first"][0] == 1
    # Now there is space.
    assert list(file) == ["first", "x"]


def test_result_that_is_deleted_while_it_is_read_is_not_overwritten(tmp_path: Path) -> None:
    reading, deleted = threading.Event(), threading.Event()

    def grouped(_: memoryview) -> list[int]:
        reading.set()
        assert deleted.wait(30)
        return [1]

    file = SpillFile(str(tmp_path), grouped)
    file["x"] = [b"", b"header", b"a" * 100_000]
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.extend(file["x"]))
    reader.start()
    assert reading.wait(30)
    del file["x"]
    file["y"] = [b"", b"header", b"b" * 100_000]
    deleted.set()
    reader.join(30)
    assert bytes(found[2]) == b"a" * 100_000
    assert list(file) == ["y"]
    # Now the space is free.
    file["z"] = [b"", b"header", b"c" * 100_000]
    assert file._spilled["z"].offset < file._spilled["y"].offset


@pytest.mark.usefixtures("forked_workers")
def test_worker_reads_into_the_arena_and_lends() -> None:
    def spilled(dask_worker: distributed.Worker) -> tuple[str, int]:
        store: Any = dask_worker.data
        slow = store._slow_uncached
        return type(slow).__name__, len(slow.d)

    with (
        dask.config.set({"distributed.worker.memory.target": 0.1}),
        LocalCluster(
            protocol="backhaul",
            n_workers=2,
            threads_per_worker=1,
            memory_limit="1GB",
            dashboard_address=None,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        first, second = client.scheduler_info()["workers"]
        made = client.map(lambda n: np.full(5 * MIB, n), range(8), workers=[first], pure=False)
        distributed.wait(made)
        name, count = client.run(spilled, workers=[first])[first]
        assert name == "FileSlow"
        assert count > 0
        account: Any = backhaul.dask.memory(client)
        assert account[first].spilled_bytes >= count * 5 * MIB
        sums = client.map(np.sum, made, workers=[second], allow_other_workers=False)
        assert client.gather(sums) == [5 * MIB * n for n in range(8)]


def test_switch(tmp_path: Path) -> None:
    def name(dask_worker: distributed.Worker) -> str:
        store: Any = dask_worker.data
        return type(store._slow_uncached).__name__

    with (
        dask.config.set({"distributed.comm.backhaul.spill-file": False}),
        LocalCluster(
            protocol="backhaul", n_workers=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert set(client.run(name).values()) == {"Slow"}


def test_results_that_are_read_ahead_count(tmp_path: Path) -> None:
    store: Any = SpillBuffer(str(tmp_path), target=3_000)
    store.slow.data = FileSlow(store._slow_uncached, MIB)
    for name in "abc":
        store[name] = np.full(250, ord(name), float)
    assert list(store.fast) == ["c"]
    assert ahead_bytes(store) == ahead_bytes({"a": 1}) == 0
    file_of(store).read_ahead(["b", "c", "missing"], lambda: inf)
    assert ahead_bytes(store) == store._slow_uncached.weight_by_key["b"].memory
    assert store["b"][0] == ord("b")
    assert ahead_bytes(store) == 0
