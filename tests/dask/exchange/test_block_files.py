"""Blocks in files: their content, how long a file lives, and results that must not be spilled."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, wait

from backhaul.dask.compat.names import SpillBuffer
from backhaul.dask.exchange import cluster
from tests.dask.exchange.conftest import Parts, kept
from tests.dask.exchange.test_equal import arrow_frame, check, collection, frame

dd = pytest.importorskip("dask.dataframe")
pytest.importorskip("pyarrow")

from backhaul.dask.exchange import block_files  # noqa: E402
from backhaul.dask.exchange.block_files import keeps_references  # noqa: E402
from backhaul.dask.exchange.blocks import Block, Bundle, FileBlock  # noqa: E402
from backhaul.dask.exchange.columns import schema_of  # noqa: E402
from backhaul.dask.worker import eviction  # noqa: E402


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scheduler of this process give blocks no memory, so that all go to files."""
    original = cluster._view_of

    def view_of(scheduler: Any) -> Any:
        view = original(scheduler)
        return cluster.ClusterView(view.threads, view.free_bytes, 0, view.reason, view.has_files)

    monkeypatch.setattr(cluster, "_view_of", view_of)


def open_files(dask_worker: Any) -> int:
    """Count the files without a name that a worker has open in its directory."""
    directory = os.path.realpath(dask_worker.local_directory)
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return sum(link.startswith(directory) and link.endswith("(deleted)") for link in links)


@pytest.mark.parametrize("how", ["inner", "outer"])
def test_merges_by_files_are_equal(parts: Parts, no_memory: None, how: str) -> None:
    left, right = frame(21, 3000), frame(22, 2000, "other")

    def merged() -> Any:
        return collection(left, 10).merge(
            collection(right, 3), on="key", how=how, shuffle_method="p2p", broadcast=False
        )

    check(parts, merged)


def test_arrow_tables_in_files_are_equal(parts: Parts, no_memory: None) -> None:
    pandas = arrow_frame(25, 500)
    shuffled = lambda: collection(pandas, 4).shuffle("key", npartitions=9, shuffle_method="p2p")  # noqa: E731
    check(parts, shuffled)


def test_partitions_that_differ_from_their_meta_are_equal(parts: Parts, no_memory: None) -> None:
    pandas = frame(23, 400)[["key", "value", "value_t", "value_i"]]
    pieces = [pandas[:100], pandas[100:150].astype({"value_i": "f8"}), pandas[150:]]

    def shuffled() -> Any:
        return dd.from_map(
            lambda number: pieces[number], range(3), meta=pandas.iloc[:0], enforce_metadata=False
        ).shuffle("key", npartitions=4, shuffle_method="p2p")

    check(parts, shuffled)


def test_files_are_closed_with_the_exchange(
    client: Client, exchanged: list[bool], no_memory: None
) -> None:
    shuffled = kept(collection(frame(24, 3000), 20).shuffle("key", shuffle_method="p2p"))
    outputs = client.persist(shuffled)
    wait(outputs)
    assert exchanged == [True]
    for _ in range(3000):
        if not any(client.run(open_files).values()):
            break
        client.run(gc.collect)
    assert not any(client.run(open_files).values())


def file_block(directory: Path) -> FileBlock:
    file = block_files.BlockFile.create(str(directory))
    return FileBlock(file, file.append(memoryview(b"block")), 5)


def test_another_process_reads_a_file_that_has_no_name(tmp_path: Path) -> None:
    block = file_block(tmp_path)
    assert list(tmp_path.iterdir()) == []
    program = (
        "import os, pickle, sys\n"
        "block = pickle.loads(sys.stdin.buffer.read())\n"
        "sys.stdout.buffer.write(os.pread(block._file.descriptor, 5, block._offset))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(block), capture_output=True, timeout=60
    )
    assert found.stdout == b"block"


def test_a_closed_file_is_no_file_of_another_exchange(tmp_path: Path) -> None:
    pickled = pickle.dumps(file_block(tmp_path))
    gc.collect()
    other = file_block(tmp_path)
    with pytest.raises(OSError, match=r"/fd/|has closed"):
        pickle.loads(pickled)
    del other


def test_bundles_and_blocks_in_files_are_never_spilled(tmp_path: Path) -> None:
    store = SpillBuffer(str(tmp_path / "spilled"), target=60_000_000)
    assert not keeps_references(store)
    eviction.install(store)
    assert keeps_references(store)
    block = file_block(tmp_path)
    store["bundle"] = Bundle([block])
    store["file"] = block
    store["memory"] = Block(np.zeros(30_000_000, np.uint8))
    store["other"] = np.zeros(40_000_000, np.uint8)
    assert set(store.disk) == {"memory"}
    assert store.evict() >= 40_000_000
    assert set(store.disk) == {"memory", "other"}
    assert store.evict() == -1
    assert set(store.memory) == {"bundle", "file"}
    bundle = store["bundle"]
    assert isinstance(bundle, Bundle)
    assert bundle.blocks == [block]


def test_a_full_disk_keeps_blocks_in_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from backhaul.dask.exchange import plans, tasks

    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(block_files.block_store, "file_for", fail)
    pandas = frame(25, 50)[["key", "value"]]
    plan = plans.FramePlan(
        token="full",
        meta=pandas.iloc[:0],
        schema=schema_of(pandas.iloc[:0]),
        partitions=2,
        wanted=None,
        number_column=None,
        keys=("key",),
        keeps_index=True,
        memory_bytes=0,
    )
    with caplog.at_level(logging.WARNING, "backhaul.dask.exchange.transfers"):
        block = tasks.transfer(pandas, plan)
    assert isinstance(block, Block)
    assert "No space left on device" in caplog.text


@pytest.mark.parametrize("filesystem", ["arrow", "fsspec"])
def test_parquet_of_any_size_is_exchanged(
    client: Client, exchanged: list[bool], no_memory: None, tmp_path: Path, filesystem: str
) -> None:
    pandas = frame(26, 600)[["key", "value", "value_t", "value_d"]].reset_index(drop=True)
    for number in range(3):
        pandas[200 * number : 200 * number + 200].to_parquet(tmp_path / f"{number}.parquet")
    inputs = dd.read_parquet(tmp_path, filesystem=filesystem)
    merged = inputs.merge(inputs[["key", "value_t"]], on="key", broadcast=False)
    found = kept(merged).compute()
    expected = pandas.merge(pandas[["key", "value_t"]], on="key")
    assert len(found) == len(expected)
    assert found["value"].sum() == pytest.approx(expected["value"].sum())
    assert exchanged == [True]
    exchanged.clear()
    ordered = kept(inputs[inputs["value"] > -9].sort_values("key", shuffle_method="p2p")).compute()
    assert ordered["key"].tolist() == sorted(pandas["key"])
    assert exchanged == [True]
