"""Threads that share the Rust parts of the Dask backend: no refusal, and nothing is lost.

On a Python with the GIL they switch often; on a free-threaded one they run at once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from distributed.protocol.serialize import ToPickle

from backhaul._native import FairNetwork, Links, ResourcePools, ResourceRequest, SchedulerCore
from backhaul.dask.serialize import codec
from tests.threads import THREADS, at_once, switching_often

ROUNDS = 300


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    with switching_often():
        yield


def test_threads_share_a_scheduler_core() -> None:
    core = SchedulerCore()

    def come_and_go(number: int) -> int:
        address = f"backhaul://{number}"
        for turn in range(ROUNDS):
            core.handle_worker_added(
                "join",
                float(turn),
                address=address,
                name=address,
                host="here",
                nthreads=1,
                memory_limit=1 << 30,
                status="running",
                resources={},
                bandwidth_bytes_per_s=1e8,
            )
            core.handle_client_added(address)
            assert address in core.dump()["workers"]
            assert core.worker_bytes(address) == 0
            core.take_transitions()
            core.take_messages()
            if turn < ROUNDS - 1:
                core.handle_worker_removed("leave", float(turn), address, True, True)
        return 1

    assert sum(at_once(come_and_go)) == THREADS
    assert sorted(core.dump()["workers"]) == [f"backhaul://{n}" for n in range(THREADS)]


class _Looks:
    """Asks a core as it is collected, in the middle of whatever makes objects."""

    def __init__(self, core: SchedulerCore, seen: list[int]) -> None:
        self.core, self.seen, self.self = core, seen, self

    def __del__(self) -> None:
        self.seen.append(self.core.task_count())


def test_a_finalizer_in_the_midst_of_a_call_is_answered() -> None:
    core = SchedulerCore()
    for number in range(50):
        core.handle_client_added(f"client-{number}")
    seen: list[int] = []
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(50):
            _Looks(core, seen)
            core.dump()
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert seen == [0] * 50


def test_threads_share_the_pools_of_a_worker() -> None:
    pools = ResourcePools({"GPU": 4, "DISK": 3.0})
    request = ResourceRequest({"GPU": 1.0, "DISK": 0.5})

    def take_and_give(_: int) -> int:
        taken = 0
        for _ in range(ROUNDS):
            lease = pools.take(request)
            if lease is None:
                continue
            taken += 1
            held = pools.held(lease)
            assert len(held["GPU"]) == 1
            assert pools.amounts()["GPU"][1] <= 3.0
            pools.give_back(lease)
        return taken

    assert sum(at_once(take_and_give)) > 0
    assert pools.leases == 0
    assert pools.amounts() == {"DISK": (3.0, 3.0), "GPU": (4.0, 4.0)}


def test_threads_share_the_table_of_links() -> None:
    figures = (1e9, 1e-5)
    links = Links(same_host=figures, other_host=figures, device=figures, links_max=1000)
    links.add_worker("tcp://first", "token-first", "host-0")

    def come_and_ask(number: int) -> int:
        for _ in range(ROUNDS):
            links.add_worker(f"tcp://{number}", f"token-{number}", f"host-{number % 2}")
            assert links.seconds("tcp://first", f"tcp://{number}", 1000) > 0
            links.rows()
            assert f"tcp://{number}" in links.workers()
        return 1

    assert sum(at_once(come_and_ask)) == THREADS
    assert len(links) == THREADS + 1


def test_threads_share_a_network() -> None:
    network = FairNetwork([1e9])

    def start(_: int) -> list[int]:
        return [network.start(0.0, [0], 1e6) for _ in range(ROUNDS)]

    flows = [flow for flows in at_once(start) for flow in flows]
    assert len(set(flows)) == ROUNDS * THREADS
    end_s = network.next_end()
    assert end_s is not None
    # All share the link, so they end at once.
    assert len(network.finish(end_s)) == ROUNDS * THREADS


def test_threads_write_messages_that_others_change() -> None:
    """A written message is that of one moment, or refused; never torn."""
    shared: dict[str, Any] = {"op": "x", "values": {}, "names": set()}

    def change_or_write(number: int) -> int:
        written = 0
        for i in range(ROUNDS):
            if number % 2:
                shared["values"][f"{number}-{i % 50}"] = [i] * 3
                shared["values"].pop(f"{number}-{(i + 25) % 50}", None)
                shared["names"].add(f"{number}-{i % 50}")
                shared["names"].discard(f"{number}-{(i + 25) % 50}")
                continue
            try:
                frames = codec.dumps(shared)
            except RuntimeError:
                # It changed in the middle of the walk, as msgpack refuses, too.
                continue
            found = codec.loads([memoryview(bytearray(frame)) for frame in frames])
            assert all(list(value) == [value[0]] * 3 for value in found["values"].values())
            assert len(found["names"]) == len(set(found["names"]))
            written += 1
        return written

    assert sum(at_once(change_or_write)) > 0


def _add(a: int, b: int) -> int:
    return a + b


def test_threads_share_the_functions_that_the_codec_knows() -> None:
    def there_and_back(number: int) -> bool:
        def local(x: int) -> int:
            return x + number

        right = True
        for i in range(ROUNDS // 3):
            frames = codec.dumps([ToPickle(local), ToPickle(_add), {"key": i}])
            ours, theirs, rest = codec.loads([memoryview(bytearray(frame)) for frame in frames])
            right &= ours(1) == 1 + number and theirs(1, 2) == 3 and rest == {"key": i}
        return right

    assert all(at_once(there_and_back))
