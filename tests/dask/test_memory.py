"""Arrays of a worker in the arena, and how its memory is counted."""

from __future__ import annotations

import asyncio
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import distributed
import numpy as np
import pytest
from distributed import Client, Nanny, Scheduler, Worker
from distributed.utils_test import gen_cluster

import dask
from backhaul import Arena, _native, numpy_memory
from backhaul.dask import Settings
from backhaul.dask.comm.native_context import shared_arena
from backhaul.dask.compat import activation
from backhaul.dask.worker import memory

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually, Start

HOST = "backhaul://127.0.0.1"
MIB = 1 << 20
DEADLINE_S = 300

cluster = functools.partial(gen_cluster, client=True, scheduler=HOST, nthreads=[(HOST, 2)])


def is_in_arena(*_: object) -> bool:
    """Tell whether an array that is made here lies in an arena."""
    array = np.empty(MIB, np.uint8)
    name = np._core.multiarray.get_handler_name(array)  # type: ignore[attr-defined]
    return bool(name == "backhaul_arena")


async def is_in_arena_on_the_loop() -> bool:
    await asyncio.sleep(0)
    return is_in_arena()


class Answerer:
    """An actor."""

    def answer(self) -> bool:
        return is_in_arena()

    async def answer_on_the_loop(self) -> bool:
        return is_in_arena()


# Where arrays are born


@pytest.mark.parametrize("execution", [True, False])
def test_arrays_of_every_kind_of_task_are_born_in_the_arena(execution: bool) -> None:
    @cluster(config={"distributed.comm.backhaul.hot-path.execution": execution})
    async def check(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        worker.executors["mine"] = ThreadPoolExecutor(1)
        assert await client.submit(is_in_arena)
        assert await client.submit(is_in_arena_on_the_loop)
        for executor in ("offload", "mine"):
            with dask.annotate(executor=executor):
                assert await client.submit(is_in_arena, executor), executor
        with distributed.span("some"):
            assert await client.submit(is_in_arena, "span")
        # More tasks than threads at first, and one that leaves its thread.
        assert all(await client.gather(client.map(is_in_arena, range(20))))
        assert await client.submit(lambda: (distributed.secede(), is_in_arena())[1])
        assert await client.submit(is_in_arena, "after")
        actor = await client.submit(Answerer, actor=True)
        assert await actor.answer()
        assert await actor.answer_on_the_loop()

    activation.uninstall()
    try:
        check()
    finally:
        activation.install()


@cluster(config={"distributed.comm.backhaul.arena.allocate": False})
async def test_a_switch_leaves_arrays_to_numpy(
    client: Client, scheduler: Scheduler, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not await client.submit(is_in_arena)


@cluster()
async def test_only_tasks_of_workers_are_concerned(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    assert not is_in_arena()
    assert not await asyncio.to_thread(is_in_arena)


@cluster()
async def test_an_allocator_that_a_task_chooses_is_its_own(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    def choose() -> int:
        arena = Arena()
        with numpy_memory.arrays_in(arena):
            kept = np.empty(MIB, np.uint8)
        return arena.statistics()["live_bytes"] - kept.nbytes

    assert await client.submit(choose) == 0


# How memory is counted


#: In a process that shares nothing else: 32 MiB in an arena, borrowed from itself.
COUNTING = """
import os
import time
import types
import numpy as np
import psutil
from backhaul import Arena, Context, numpy_memory
from backhaul._native import MemoryWatch
from backhaul.dask.compat import activation
from backhaul.dask.worker import memory

MIB = 1 << 20
DEADLINE_S = 300
arena = Arena()
watch = MemoryWatch(
    arena, kept_bytes=1 << 40, window_s=3600, idle_s=3600, interval_s=3600
)
ours, theirs = Context(lanes=["shm"], arena=arena), Context(lanes=["shm"])
with theirs.listen("127.0.0.1:0") as listener:
    connecting = ours.connect(listener.address)
    b = listener.accept().wait(300)
    a = connecting.wait(300)
with numpy_memory.arrays_in(arena):
    array = np.ones(32 * MIB, np.uint8)
a.send_frames([array], shared=True)
(received,) = b.recv_frames().wait(300)
view = np.frombuffer(received, np.uint8)
assert view.sum() == array.sum()
assert arena.statistics()["leased_bytes"] == view.nbytes

def until(is_done):
    give_up_at = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < give_up_at
        # A message wakes the engine, which drops what it has sent.
        a.send_frames([b"more"])
        b.recv_frames().wait(300)

def seems():
    return psutil.Process().memory_info().rss

def found():
    return memory.process_memory_bytes(watch)

def is_about(found_bytes, expected_bytes):
    assert abs(found_bytes - expected_bytes) < 3 * MIB, (found_bytes, expected_bytes)

"""

BORROWED = """
# Mapped by the owner twice, as the block is copy-on-write, and by the borrower.
is_about(found(), seems() - 64 * MIB)
before = found()
# A page that is written to is a copy.
view[: 8 * MIB] = 2
is_about(found(), before + 8 * MIB)
# Freed here and still borrowed, so that it counts at the borrower: here as well.
del array
until(lambda: arena.statistics()["orphaned_bytes"] >= 32 * MIB)
is_about(found(), before + 8 * MIB)
del view, received
until(lambda: arena.statistics()["orphaned_bytes"] == 0)
arena.trim(0)
is_about(found(), before - 32 * MIB)
"""

FREE = """
before = found()
with numpy_memory.arrays_in(arena):
    other = np.ones(16 * MIB, np.uint8)
    is_about(found(), before + 16 * MIB)
    del other
assert arena.statistics()["cached_bytes"] >= 16 * MIB
is_about(found(), before)
assert seems() > before + 16 * MIB
"""

OTHER = """
before = found()
file = os.fdopen(os.memfd_create("other"), "w+b")
file.truncate(16 * MIB)
np.memmap(file, np.uint8, "r+")[:] = 1
other = np.memmap(file, np.uint8, "r")
other.sum()
is_about(found(), before + 16 * MIB)
"""

NANNY = """
terminated = []
monitor = types.SimpleNamespace(callback=lambda: terminated.append(1))
manager = types.SimpleNamespace(
    memory_limit=2 * (seems() - 16 * MIB), memory_terminate_fraction=0.5
)
nanny = types.SimpleNamespace(
    periodic_callbacks={"memory_monitor": monitor}, memory_manager=manager, pid=os.getpid()
)
memory.install_for_nanny(nanny)
memory.install_for_nanny(nanny)
found()
monitor.callback()
assert terminated == []
# It holds as much by itself.
manager.memory_limit -= 128 * MIB
monitor.callback()
assert terminated == [1]
manager.memory_limit += 1 << 30
monitor.callback()
assert terminated == [1, 1]
# Free blocks do not count, as the worker itself says.
with numpy_memory.arrays_in(arena):
    np.ones(64 * MIB, np.uint8)
manager.memory_limit = 2 * (seems() - 72 * MIB)
monitor.callback()
assert terminated == [1, 1, 1]
# A guard that acts has some time, until it has done what it can, or far too much is used.
manager.memory_limit = 2 * (found() - 8 * MIB)
watch.set_stage(memory.GUARD_ACTS)
found()
monitor.callback()
assert terminated == [1, 1, 1]
watch.set_stage(memory.GUARD_IS_DONE)
found()
monitor.callback()
assert terminated == [1, 1, 1, 1]
watch.set_stage(memory.GUARD_ACTS)
found()
manager.memory_limit = MIB
monitor.callback()
assert terminated == [1, 1, 1, 1, 1]
del terminated[3:]
watch.set_stage(0)
manager.memory_limit = 2 * (seems() - 72 * MIB)
counted = found()
is_about(seems() - memory.uncounted_bytes(os.getpid()), counted)
monitor.callback()
assert terminated == [1, 1, 1]
"""


#: Measures as the kernel does, too: each page in proportion to the mappings of it. This process has
#: all of those of its arena. A page of the arena that is not mapped now may count or not.
PROPORTIONAL = """
def proportional():
    taken, unmapped = 0, arena.statistics()["resident_bytes"]
    with open("/proc/self/smaps") as mappings:
        for line in mappings:
            words = line.split()
            if not words[0].endswith(":"):
                is_of_arena = "/memfd:backhaul-arena" in line
            elif words[0] == "Pss:":
                taken += 1024 * int(words[1])
                unmapped -= is_of_arena * 1024 * int(words[1])
            elif words[0] == "Anonymous:":
                unmapped += is_of_arena * 1024 * int(words[1])
    return taken, unmapped

def resident_but_for_doubles():
    return seems() - memory._doubled_or_borrowed_bytes(os.getpid())

def check(what):
    counted, kept, (taken, unmapped) = found(), resident_but_for_doubles(), proportional()
    grown = taken - first["taken"]
    margin = 0.04 * abs(grown) + 2 * MIB
    for name, bytes_found in (("counted", counted), ("for the nanny", kept)):
        seen = bytes_found - first[name]
        is_right = grown - margin < seen < grown + unmapped + margin
        assert is_right, (what, name, seen, grown, unmapped)

def lend(sent):
    a.send_frames([sent], shared=True)
    (got,) = b.recv_frames().wait(300)
    borrowed = np.frombuffer(got, np.uint8)
    assert borrowed.sum() == sent.sum()
    return borrowed

def trim(live_bytes):
    # The sender drops what was sent when it comes to it; returned leases are noticed here.
    until(lambda: arena.statistics()["live_bytes"] <= 1.2 * live_bytes)
    arena.trim(0)

del array, view, received
trim(0)
first = {"counted": found(), "for the nanny": resident_but_for_doubles()}
first["taken"], _ = proportional()
# In whole huge pages, and in blocks that end within one.
for nbytes, count in ((16 * MIB, 4), (5 * MIB // 4, 48)):
    with numpy_memory.arrays_in(arena):
        arrays = [np.ones(nbytes, np.uint8) for _ in range(count)]
    check("made")
    views = [lend(each) for each in arrays]
    check("lent, and read at both ends")
    for each in arrays[::2]:
        each[: nbytes // 2] = 2
    check("written to by the owner")
    for borrowed in views[1::2]:
        borrowed[: nbytes // 2] = 3
    check("written to by the borrower")
    del views[: count // 2], borrowed
    arena.statistics()
    check("half of them returned")
    del arrays[count // 4 :], each
    trim(len(arrays) * nbytes)
    check("most of them freed, a part of these borrowed")
    del views[:]
    # Not even now does what is freed here count as memory of others.
    counted = found()
    trim(len(arrays) * nbytes)
    assert counted < found() + 2 * MIB
    check("returned, too")
    del arrays[:]
    trim(0)
    check("freed")
"""


@pytest.mark.parametrize(
    "checks",
    [
        pytest.param(BORROWED, id="what is borrowed counts once"),
        pytest.param(PROPORTIONAL, id="no page counts twice while arrays are lent and freed"),
        pytest.param(FREE, id="free blocks do not count"),
        pytest.param(OTHER, id="other shared memory counts"),
        pytest.param(NANNY, id="a nanny does not end a worker for what it borrows"),
    ],
)
def test_the_memory_of_a_process_counts_borrowed_memory_once(start: Start, checks: str) -> None:
    program = start("-c", COUNTING + checks)
    assert program.wait() == 0, program.output


@cluster(worker_kwargs={"memory_limit": "4 GiB"})
async def test_a_worker_reports_it_and_is_prepared_once(
    client: Client, scheduler: Scheduler, worker: Worker, eventually: Eventually
) -> None:
    measure = worker.monitor.get_process_memory
    activation.install_for(worker)
    assert worker.monitor.get_process_memory is measure
    # Nothing is borrowed or free here, in a process that may have run other tests.
    (resident,) = memory._status_bytes("self", b"VmRSS:")
    assert abs(resident - memory.uncounted_bytes(os.getpid()) - measure()) < 3 * MIB
    worker.monitor.get_process_memory = lambda: 123  # type: ignore[method-assign]
    worker.monitor.update()
    await worker.heartbeat()
    await eventually(lambda: scheduler.workers[worker.address].metrics["memory"] == 123)


#: In a process of its own: a limit of 100 MiB more than it has, of which it uses 16 MiB.
SHORTAGE = """
import numpy as np
from backhaul import Arena, numpy_memory
from backhaul._native import MemoryWatch

MIB = 1 << 20
DEADLINE_S = 300
arena = Arena()

def watch_with(**limit):
    return MemoryWatch(
        arena, kept_bytes=1 << 40, window_s=3600, idle_s=3600, interval_s=3600, **limit
    )

watch = watch_with(limit_bytes=watch_with().look()[0] + 100 * MIB)
with numpy_memory.arrays_in(arena):
    used = np.ones(16 * MIB, np.uint8)
    np.ones(32 * MIB, np.uint8)
counted, resident = watch.look()
assert arena.statistics()["cached_bytes"] >= 32 * MIB
assert abs(resident - counted - 32 * MIB) < 3 * MIB, (resident, counted)
# Room for what is used, and for a part of what is free.
private = np.ones(74 * MIB, np.uint8)
counted, resident = watch.look()
assert arena.statistics()["cached_bytes"] < 12 * MIB
assert resident < counted + 13 * MIB
assert resident < watch.look()[1] + 3 * MIB
assert used.all() and private.all()
# Past the limit, arrays are private.
with numpy_memory.arrays_in(arena):
    more = np.ones(32 * MIB, np.uint8)
assert arena.statistics()["live_bytes"] == 16 * MIB
del private, more
watch.look()
with numpy_memory.arrays_in(arena):
    more = np.ones(32 * MIB, np.uint8)
assert arena.statistics()["live_bytes"] == 48 * MIB
"""


def test_free_blocks_give_way_to_private_memory(start: Start) -> None:
    program = start("-c", SHORTAGE)
    assert program.wait() == 0, program.output


def test_free_blocks_follow_demand() -> None:
    arena = Arena()

    def watch_with(idle_s: float = 3600) -> _native.MemoryWatch:
        # After its first look, the thread of the watch sleeps until the test has ended.
        return _native.MemoryWatch(
            arena, kept_bytes=8 * MIB, window_s=3600, idle_s=idle_s, interval_s=3600
        )

    def cached_bytes(watch: _native.MemoryWatch) -> int:
        watch.look()
        return arena.statistics()["cached_bytes"]

    watch = watch_with()
    held = [arena.take(nbytes) for nbytes in (8 * MIB, 16 * MIB, 32 * MIB)]
    held.clear()
    # All of it was taken and used within the window.
    assert cached_bytes(watch) == 56 * MIB
    # A watch that has seen no demand.
    del watch
    watch = watch_with()
    assert 0 < cached_bytes(watch) <= 8 * MIB
    held.append(arena.take(MIB))
    watch = watch_with(idle_s=0)
    assert cached_bytes(watch) == 0
    assert arena.statistics()["live_bytes"] == MIB


def arrays_of_two_sizes() -> dict[str, int]:
    """Fill 160 MiB in arrays of 16 MiB, drop these, and fill as much in arrays of 10 MiB."""
    for nbytes in (16 * MIB, 10 * MIB):
        arrays = [np.ones(nbytes, np.uint8) for _ in range(160 * MIB // nbytes)]
        del arrays[1:]
    return worker_arena()


@cluster(worker_kwargs={"memory_limit": "4 GiB"})
async def test_a_worker_keeps_no_more_than_its_peak_and_gives_that_back(
    client: Client, scheduler: Scheduler, worker: Worker, eventually: Eventually
) -> None:
    found = await client.submit(arrays_of_two_sizes)
    # One array of each size lives at the same time, and there is a floor.
    assert found["resident_bytes"] < (160 + 2 * 16 + 8 + 8) * MIB, found
    await eventually(lambda: worker_arena()["cached_bytes"] <= 8 * MIB)


def worker_arena() -> dict[str, int]:
    arena = shared_arena(Settings.current())
    assert arena is not None
    return arena.statistics()


@gen_cluster(client=True, scheduler=HOST, nthreads=[(HOST, 1)], Worker=Nanny)
async def test_a_nanny_is_prepared(client: Client, scheduler: Scheduler, nanny: Nanny) -> None:
    callback = nanny.periodic_callbacks["memory_monitor"].callback
    assert isinstance(callback, memory.NannyMonitor)
    callback()
    assert await client.submit(is_in_arena)
    assert nanny.pid is not None
