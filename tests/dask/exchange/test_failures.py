"""Results of the exchange where workers die, and where they have little memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from distributed import Client, Event, LocalCluster, get_worker, wait

import dask
from tests.dask.exchange.conftest import kept

dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def make(number: int, *, inputs: int, rows: int, name: str) -> Any:
    """Make an input partition: each key once in all partitions."""
    keys = number + inputs * np.random.default_rng(number).permutation(rows)
    return pd.DataFrame({"key": keys, name: keys * 2.0, f"{name}_t": keys.astype(str)})


def collection(inputs: int, rows: int, name: str) -> Any:
    meta = make(0, inputs=1, rows=1, name=name).iloc[:0]
    return dd.from_map(make, range(inputs), inputs=inputs, rows=rows, name=name, meta=meta)


def check(merged: Any, count: int) -> None:
    found = kept(merged).compute().sort_values("key").reset_index(drop=True)
    keys = np.arange(count)
    expected = pd.DataFrame({"key": keys})
    for name in ("left", "right"):
        expected[name] = keys * 2.0
        expected[f"{name}_t"] = pd.array(keys.astype(str), dtype="str")
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)


def held(frame: Any, *, event: str) -> Any:
    """Return an output once a worker was killed; the first one names its worker."""
    reached = Event(f"{event}-reached")
    if not reached.is_set():
        reached.set()
        get_worker().log_event("exchange-holder", get_worker().name)
        Event(event).wait(300)
    return frame


@pytest.mark.parametrize("inputs", [4, 20])
def test_a_killed_worker_costs_no_row(exchanged: list[bool], inputs: int) -> None:
    rows = 6000 // inputs
    with (
        LocalCluster(
            protocol="backhaul",
            n_workers=2,
            threads_per_worker=2,
            dashboard_address=None,
            memory_limit=0,
        ) as cluster,
        Client(cluster) as client,
    ):
        merged = collection(inputs, rows, "left").merge(
            collection(inputs, rows, "right"), on="key", broadcast=False
        )
        event = f"go-{inputs}"
        waiting = kept(merged.map_partitions(held, event=event, meta=merged._meta))
        outputs = client.persist(waiting)
        assert Event(f"{event}-reached").wait(300)
        killed = cluster.workers[0]
        process = killed.process.process._process
        process.kill()
        Event(event).set()
        wait(outputs, timeout=300)
        assert exchanged == [True]
        check(outputs, inputs * rows)


def spilled(dask_worker: Any) -> int:
    return int(dask_worker.data.spilled_total.disk)


def writes_files(dask_worker: Any) -> bool:
    from backhaul.dask.exchange.block_files import block_store

    return block_store.writes_for(dask_worker)


def test_more_rows_than_memory_are_exchanged_and_merged(exchanged: list[bool]) -> None:
    inputs, rows = 12, 50_000
    with (
        dask.config.set(
            {
                # Of the limit, which is more than a process needs
                "distributed.worker.memory.target": 0.02,
                "distributed.worker.memory.spill": False,
                "distributed.worker.memory.pause": False,
                "distributed.worker.memory.terminate": False,
            }
        ),
        LocalCluster(
            protocol="backhaul",
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=None,
            memory_limit="1GB",
        ) as cluster,
        Client(cluster) as client,
    ):
        merged = collection(inputs, rows, "left").merge(
            collection(inputs, rows, "right"), on="key", broadcast=False
        )
        assert all(client.run(writes_files).values())
        optimized = kept(merged)
        outputs = client.persist(optimized)
        wait(outputs, timeout=300)
        assert exchanged == [True]
        assert any(client.run(spilled).values())
        check(outputs, inputs * rows)
