"""Reads of a worker in the middle of other operations: no deadlock, and chains go on."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker

from backhaul.dask.compat import activation
from backhaul.dask.compat.names import SpillBuffer
from backhaul.dask.worker.local_queue import line_of
from backhaul.dask.worker.spill_buffer import in_memory
from tests.dask.execution.in_rust import in_rust, inc, keeper_of, watch_nothing
from tests.dask.execution.tasks import cluster

ROOT = Path(__file__).parents[3]


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
def test_chains_go_on_beside_reads_in_the_middle_of_other_operations(what: str, look: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.dask.execution.looking", what, look],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
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


def test_a_look_that_would_wait_for_itself_is_refused() -> None:
    activation.install()

    @cluster(1, timeout=300)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        watch_nothing(worker)
        await in_rust(client, worker)
        line: Any = line_of(worker)
        stream: Any = worker.batched_stream
        with held_elsewhere(line.lock), stream.lock:
            with pytest.raises(RuntimeError, match="cannot be looked at in the midst of that"):
                worker.state.tasks.values()
            # As it is known here
            assert isinstance(worker.data, SpillBuffer)
        assert keeper_of(worker).core is not None
        # A thread without such a lock waits.
        with held_elsewhere(line.lock) as over:
            threading.Timer(0.5, over.set).start()
            assert worker.state.tasks.values() is not None
        assert keeper_of(worker).core is None

    run()


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
