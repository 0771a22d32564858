"""Reads of a worker in the middle of other operations: no deadlock, and chains go on."""

from __future__ import annotations

import re
import threading
from _thread import RLock as _RLock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker

from backhaul._locks import is_owned
from backhaul.dask.comm import inbox, threaded_stream
from backhaul.dask.compat import activation
from backhaul.dask.compat.names import SpillBuffer
from backhaul.dask.worker import spill_buffer
from backhaul.dask.worker.core import ownership
from backhaul.dask.worker.local_queue import local_queue_of
from backhaul.dask.worker.spill_buffer import in_memory
from tests.dask.execution.in_rust import in_rust, inc, state_owner_of, watch_nothing
from tests.dask.execution.tasks import cluster
from tests.dask.forked import Forks


@pytest.fixture(scope="module")
def looking() -> Iterator[Forks]:
    """Run the reads in processes apart, which a deadlock would stop."""
    with Forks("tests.dask.execution.looking") as forks:
        yield forks


@pytest.mark.parametrize(
    ("what", "look"),
    [
        ("spilled", "data"),
        ("spilled", "repr"),
        ("sent", "repr"),
        ("sent", "tasks"),
        ("finalizer", "data"),
        ("finalizer", "tasks"),
    ],
)
def test_chains_go_on_beside_reads_in_the_middle_of_other_operations(
    looking: Forks, what: str, look: str
) -> None:
    ended = looking(what, look)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    # A thread that has ended with an error
    assert "CRITICAL" not in said, said
    # A finalizer that was refused
    assert "Exception ignored" not in said, said
    counted = re.search(r"looked (\d+) times beside (\d+) chains", ended.stdout)
    assert counted, said
    assert int(counted[1]) > 10, said
    assert int(counted[2]) > 2, said


@contextmanager
def held_elsewhere(lock: Any) -> Iterator[threading.Event]:
    """Hold a lock in another thread until the event is set."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    try:
        yield over
    finally:
        over.set()
        thread.join()


def test_a_read_waits_for_the_state_with_the_locks_of_the_stream_and_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    activation.install()

    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        watch_nothing(worker)
        line: Any
        stream: Any = worker.batched_stream
        data: Any = worker.data
        monkeypatch.setattr(ownership, "_REST_S", 0.001)
        for lock in (stream.lock, data.lock):
            await in_rust(client, worker)
            line = local_queue_of(worker)
            # One lock guards the state and the store.
            assert data.lock is data.fast.lock is data.slow.lock is line.lock
            with held_elsewhere(line.lock) as over:
                threading.Timer(0.5, over.set).start()
                with lock:
                    assert worker.state.tasks.values() is not None
            assert state_owner_of(worker).core is None

    run()


def test_threads_take_locks_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[str] = []
    held = threading.local()

    def ranked(rank: int) -> Callable[[], Any]:
        """Make locks that note a wait with a lock of a higher rank, or of the same."""

        class Ranked(_RLock):  # type: ignore[misc]
            def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
                ranks = held.__dict__.setdefault("ranks", [])
                if blocking and not is_owned(self) and any(each >= rank for each in ranks):
                    wrong.append(f"{rank} behind {ranks}")
                taken: bool = super().acquire(blocking, timeout)
                if taken:
                    ranks.append(rank)
                return taken

            def release(self) -> None:
                super().release()
                held.ranks.remove(rank)

            def __enter__(self) -> bool:  # type: ignore[override]
                return self.acquire()

            def __exit__(self, *_: object) -> None:
                self.release()

        return Ranked

    # The inbox, the state with the store, and the stream, for which no such thread waits
    for rank, module in enumerate((inbox, spill_buffer)):
        monkeypatch.setattr(module, "RLock", ranked(rank))
    monkeypatch.setattr(threaded_stream, "RLock", ranked(0))
    for name in ("_REST_S", "_REST_MAX_S"):
        monkeypatch.setattr(ownership, name, 0.001)
    activation.install()

    @cluster(2, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        watch_nothing(worker)
        for _ in range(3):
            await in_rust(client, worker)
            futures = client.map(inc, range(100), pure=False)
            futures = [client.submit(inc, future, pure=False) for future in futures]
            assert await client.gather(futures) == list(range(2, 102))
            assert set(worker.data) <= set(worker.state.tasks)

    run()
    assert not wrong


class OwnStore(dict[Any, Any]):
    """A store of a program's own, with a lock of another kind than Dask's."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_a_store_may_have_a_lock_of_any_kind() -> None:
    activation.install()

    @cluster(1, timeout=300, worker_kwargs={"data": OwnStore})
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        watch_nothing(worker)
        assert isinstance(worker.data, OwnStore)
        for _ in range(20):
            futures = client.map(inc, range(5), pure=False)
            assert await client.gather(futures) == [1, 2, 3, 4, 5]
            assert {future.key for future in futures} <= set(worker.state.tasks)
        assert list(scheduler.workers) == [worker.address]

    run()


class Slow:
    """An object that is pickled until it may go on."""

    begun, over = threading.Event(), threading.Event()

    def __reduce__(self) -> Any:
        self.begun.set()
        assert self.over.wait(60)
        return Slow, ()


def test_a_thread_lets_go_of_nothing_while_any_is_written_to_disk(tmp_path: Path) -> None:
    data = SpillBuffer(str(tmp_path), target=10_000)
    data["slow"] = Slow()
    data["other"] = 1
    assert in_memory(data, ["other"]) == [1]
    thread = threading.Thread(target=data.evict)
    thread.start()
    try:
        assert Slow.begun.wait(60)
        # Else zict's `evict` could raise, which Dask's never does.
        assert in_memory(data, ["slow"]) is None
        assert in_memory(data, ["other"]) is None
    finally:
        Slow.over.set()
        thread.join()
    assert in_memory(data, ["other"]) == [1]
    assert in_memory(data, ["slow"]) is None
