"""Values that are read before they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import dask.config
import distributed
import numpy as np
import pytest
from distributed import LocalCluster

from backhaul.dask.worker.prefetch import Prefetch
from backhaul.dask.worker.spill_file import FileSlow, SpillFile

MIB = 1 << 20


def unlimited() -> float:
    return inf


class Reads:
    """Reads that wait until they may end."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Event()

    def __call__(self, key: str) -> str:
        self.keys.append(key)
        self.begun.release()
        assert self.may_end.wait(60)
        if key == "bad":
            raise OSError("the disk fails")
        return f"value of {key}"


@pytest.fixture
def reads() -> Reads:
    return Reads()


@pytest.fixture
def prefetch(reads: Reads) -> Iterator[Prefetch[str]]:
    prefetch = Prefetch[str](reads, 100)
    yield prefetch
    reads.may_end.set()
    prefetch.close()


def test_value_is_read_once_and_taken_once(prefetch: Prefetch[str], reads: Reads) -> None:
    prefetch.want({"a": 40, "b": 60}, unlimited)
    assert reads.begun.acquire(timeout=60)
    prefetch.want({"a": 40, "b": 60}, unlimited)
    taken = prefetch.take("a")
    assert taken is not None
    assert prefetch.take("a") is None
    reads.may_end.set()
    assert taken.result(60) == "value of a"
    assert reads.begun.acquire(timeout=60)
    assert sorted(reads.keys) == ["a", "b"]


def test_value_whose_read_has_not_begun_is_for_the_caller(
    prefetch: Prefetch[str], reads: Reads
) -> None:
    prefetch.want({"a": 1, "b": 1, "c": 1}, unlimited)
    # It has two threads.
    for _ in "ab":
        assert reads.begun.acquire(timeout=60)
    assert prefetch.take("c") is None
    assert prefetch.take("unknown") is None
    reads.may_end.set()
    prefetch.close()
    assert sorted(reads.keys) == ["a", "b"]


def test_value_for_a_peer_stays_whatever_is_wanted(prefetch: Prefetch[str], reads: Reads) -> None:
    reads.may_end.set()
    kept = prefetch.keep("a")
    assert kept is not None
    assert kept.result(60) == "value of a"
    prefetch.want({"b": 1}, unlimited)
    prefetch.want({}, unlimited)
    assert prefetch.keep("a") is prefetch.take("a") is kept
    assert prefetch.keep("a") is not kept
    prefetch.discard("a")
    assert prefetch.take("a") is None


def test_bound_holds_in_the_order_of_urgency(prefetch: Prefetch[str], reads: Reads) -> None:
    reads.may_end.set()
    prefetch.want({"a": 60, "b": 60, "c": 1}, unlimited)
    assert reads.begun.acquire(timeout=60)
    taken = prefetch.take("a")
    assert taken is not None
    assert taken.result(60) == "value of a"
    assert prefetch.take("b") is prefetch.take("c") is None
    prefetch.want({"b": 60, "c": 1}, unlimited)
    for _ in "bc":
        assert reads.begun.acquire(timeout=60)
    assert [each.result(60) for key in "bc" if (each := prefetch.take(key))] == [
        "value of b",
        "value of c",
    ]


def test_no_more_is_read_than_there_is_memory_for(prefetch: Prefetch[str], reads: Reads) -> None:
    reads.may_end.set()
    prefetch.want({"a": 10, "b": 10, "c": 1}, lambda: 15)
    assert reads.begun.acquire(timeout=60)
    # A value that is begun stays, and asks for nothing.
    prefetch.want({"a": 10, "b": 10}, lambda: -1)
    assert prefetch.take("b") is prefetch.take("c") is None
    taken = prefetch.take("a")
    assert taken is not None
    assert taken.result(60) == "value of a"


def test_value_that_is_not_wanted_any_more_is_dropped(
    prefetch: Prefetch[str], reads: Reads
) -> None:
    reads.may_end.set()
    prefetch.want({"a": 100}, unlimited)
    assert reads.begun.acquire(timeout=60)
    prefetch.want({"b": 100}, unlimited)
    assert reads.begun.acquire(timeout=60)
    assert prefetch.take("a") is None
    taken = prefetch.take("b")
    assert taken is not None
    assert taken.result(60) == "value of b"
    prefetch.want({"c": 100}, unlimited)
    prefetch.discard("c")
    assert prefetch.take("c") is None


def test_without_a_thread_nothing_is_read_ahead(
    prefetch: Prefetch[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    prefetch.want({"a": 1}, unlimited)
    assert prefetch.take("a") is None
    assert prefetch.keep("a") is None


def test_error_is_for_the_one_who_takes(prefetch: Prefetch[str], reads: Reads) -> None:
    reads.may_end.set()
    prefetch.want({"bad": 1}, unlimited)
    assert reads.begun.acquire(timeout=60)
    taken = prefetch.take("bad")
    assert taken is not None
    with pytest.raises(OSError, match="the disk fails"):
        taken.result(60)


def test_result_that_is_replaced_is_not_the_one_read_before(tmp_path: Path) -> None:
    file = SpillFile(str(tmp_path), lambda _: [1], MIB)
    file["x"] = [b"", b"header", b"before"]
    file.read_ahead(["x", "missing"], unlimited)
    del file["x"]
    with pytest.raises(KeyError):
        file["x"]
    file["x"] = [b"", b"header", b"after"]
    assert bytes(file["x"][2]) == b"after"
    file.read_ahead(["x"], unlimited)
    assert bytes(file["x"][2]) == b"after"
    assert bytes(file["x"][2]) == b"after"
    file.close()


@pytest.mark.usefixtures("forked_workers")
def test_worker_reads_the_inputs_of_its_next_tasks() -> None:
    def watch(dask_worker: distributed.Worker) -> None:
        store: Any = dask_worker.data
        slow = store._slow_uncached
        assert type(slow) is FileSlow
        prefetch: Any = slow._file._prefetch
        taken: list[Any] = []
        prefetch.taken = taken
        original = prefetch.take

        def take(key: Any) -> Any:
            found = original(key)
            taken.append((key, found is not None))
            return found

        prefetch.take = take

    def taken(dask_worker: distributed.Worker) -> list[Any]:
        store: Any = dask_worker.data
        found: list[Any] = store._slow_uncached._file._prefetch.taken
        return found

    with (
        dask.config.set({"distributed.worker.memory.target": 0.2}),
        LocalCluster(
            protocol="backhaul",
            n_workers=1,
            threads_per_worker=1,
            memory_limit="1GB",
            dashboard_address=None,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        (address,) = client.scheduler_info()["workers"]
        made = client.map(lambda n: np.full(MIB, n), range(50), pure=False)
        distributed.wait(made)
        client.run(watch)
        sums = client.map(np.sum, made, pure=False)
        assert client.gather(sums) == [MIB * n for n in range(50)]
        reads = client.run(taken)[address]
        assert {key for key, _ in reads} <= {future.key for future in made}
        assert any(was_ahead for _, was_ahead in reads)
