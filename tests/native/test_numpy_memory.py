"""NumPy's arrays in an arena: which are, what becomes of their memory, and in which contexts."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from backhaul import Arena, Context, _native, numpy_memory

if TYPE_CHECKING:
    from tests.native.conftest import Eventually, Start

#: A block, at least.
LARGE = 1 << 20
SMALL = 1 << 10


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave NumPy with its own allocator."""
    assert numpy_memory.installed() is None
    yield
    numpy_memory.uninstall()


@pytest.fixture
def arena() -> Arena:
    return Arena()


def live_bytes(arena: Arena) -> int:
    return arena.statistics()["live_bytes"]


def handler_name(array: Any) -> str:
    return str(np._core.multiarray.get_handler_name(array))  # type: ignore[attr-defined]


def test_a_large_array_lies_in_the_arena(arena: Arena) -> None:
    with numpy_memory.arrays_in(arena):
        array = np.empty(LARGE, np.uint8)
    assert live_bytes(arena) >= LARGE
    assert array.flags.owndata
    assert handler_name(array) == "backhaul_arena"
    del array
    assert live_bytes(arena) == 0
    assert arena.statistics()["cached_bytes"] >= LARGE


def test_a_small_array_does_not(arena: Arena) -> None:
    with numpy_memory.arrays_in(arena):
        arrays = [np.ones(SMALL, np.uint8) for _ in range(100)]
    assert live_bytes(arena) == 0
    assert all(array.all() for array in arrays)


def test_a_copy_and_the_result_of_an_operation_lie_there_too(arena: Arena) -> None:
    source = np.arange(LARGE, dtype=np.uint8)
    with numpy_memory.arrays_in(arena):
        results = [source.copy(), source + source, np.sort(source)]
    assert live_bytes(arena) >= 3 * LARGE
    assert (results[0] == source).all()


def test_freed_memory_is_used_again(arena: Arena) -> None:
    with numpy_memory.arrays_in(arena):
        for _ in range(5):
            np.empty(LARGE, np.uint8).fill(1)
    assert arena.statistics()["misses"] == 1
    assert arena.statistics()["hits"] == 4


def test_zeros_are_zero_in_used_memory(arena: Arena) -> None:
    with numpy_memory.arrays_in(arena):
        for shape in [(LARGE,), (3, LARGE // 2), (LARGE // 8, 8)]:
            np.empty(shape, np.uint8).fill(1)
            zeros = np.zeros(shape, np.uint8)
            assert not zeros.any()
            zeros.fill(1)
    assert arena.statistics()["hits"] > 0


@pytest.mark.parametrize("before", [SMALL, LARGE, 3 * LARGE])
@pytest.mark.parametrize("after", [1, SMALL, LARGE - 1, LARGE + 1, 2 * LARGE, 40 * LARGE])
def test_resizing_keeps_what_there_is(arena: Arena, before: int, after: int) -> None:
    pattern = np.arange(before, dtype=np.uint32)
    with numpy_memory.arrays_in(arena):
        array = pattern.copy()
        array.resize(after)
        kept = min(before, after)
        assert (array[:kept] == pattern[:kept]).all()
        assert not array[kept:].any()
    del array
    assert live_bytes(arena) == 0


def test_an_array_resized_elsewhere_stays_in_its_arena(arena: Arena) -> None:
    with numpy_memory.arrays_in(arena):
        array = np.ones(LARGE, np.uint8)
    array.resize(4 * LARGE, refcheck=False)
    assert live_bytes(arena) >= 4 * LARGE
    assert array.sum() == LARGE


def test_past_the_bound_arrays_are_numpys() -> None:
    arena = Arena(bytes_max=4 * LARGE)
    with numpy_memory.arrays_in(arena):
        arrays = [np.full(LARGE, i, np.uint8) for i in range(10)]
        assert live_bytes(arena) == 4 * LARGE
        for array in arrays:
            array.resize(2 * LARGE, refcheck=False)
    assert [array[:LARGE].sum() for array in arrays] == [i * LARGE for i in range(10)]
    del arrays, array
    assert live_bytes(arena) == 0


def test_an_array_outlives_its_arena() -> None:
    arena = Arena()
    with numpy_memory.arrays_in(arena):
        array = np.ones(LARGE, np.uint8)
    del arena
    gc.collect()
    assert array.all()
    array.resize(2 * LARGE, refcheck=False)
    assert array.sum() == LARGE


def test_an_array_may_be_freed_by_any_thread(arena: Arena) -> None:
    with numpy_memory.arrays_in(arena):
        arrays = [np.empty(LARGE, np.uint8) for _ in range(20)]
    threads = [threading.Thread(target=arrays.clear) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert live_bytes(arena) == 0


def test_nested_arenas_come_back_in_order(arena: Arena) -> None:
    inner = Arena()
    with numpy_memory.arrays_in(arena):
        with numpy_memory.arrays_in(inner):
            assert numpy_memory.installed() is inner
            array = np.empty(LARGE, np.uint8)
        assert numpy_memory.installed() is arena
    assert numpy_memory.installed() is None
    assert live_bytes(inner) >= LARGE
    assert live_bytes(arena) == 0
    assert array.nbytes == LARGE


def test_a_thread_begins_without_unless_told(arena: Arena) -> None:
    numpy_memory.install(arena)
    # Free-threaded 3.14 hands the context on, as does `-X thread_inherit_context=1`
    inherits = getattr(sys.flags, "thread_inherit_context", False)
    with ThreadPoolExecutor(1) as plain:
        assert plain.submit(numpy_memory.installed).result() is (arena if inherits else None)
    with ThreadPoolExecutor(2, initializer=numpy_memory.install, initargs=(arena,)) as told:
        arrays = list(told.map(np.ones, [LARGE] * 8))
    assert live_bytes(arena) >= 8 * 8 * LARGE
    assert all(array.all() for array in arrays)


@pytest.mark.asyncio
async def test_a_task_inherits_it_from_the_one_that_makes_it(arena: Arena) -> None:
    async def find() -> Arena | None:
        return numpy_memory.installed()

    with numpy_memory.arrays_in(arena):
        task = asyncio.ensure_future(find())
    assert await task is arena
    assert await asyncio.ensure_future(find()) is None


def test_a_chosen_allocator_is_respected(arena: Arena) -> None:
    ours = _native.numpy_handler(Arena())
    assert _native.set_default_numpy_handler(ours)
    assert not _native.set_default_numpy_handler(_native.numpy_handler(arena))
    assert _native.current_numpy_handler() is ours


def test_what_is_no_handler_is_refused() -> None:
    for wrong in (np.random.PCG64().capsule, object()):
        with pytest.raises((TypeError, ValueError)):
            numpy_memory.uninstall(wrong)
        with pytest.raises(TypeError):
            _native.arena_of_numpy_handler(wrong)
    assert numpy_memory.installed() is None


def test_tracemalloc_sees_the_arrays(arena: Arena) -> None:
    tracemalloc.start()
    try:
        with numpy_memory.arrays_in(arena):
            array = np.empty(LARGE, np.uint8)
        assert tracemalloc.get_traced_memory()[0] >= array.nbytes
        del array
        assert tracemalloc.get_traced_memory()[0] < LARGE
    finally:
        tracemalloc.stop()


def test_an_array_is_lent_to_a_peer(arena: Arena, eventually: Eventually) -> None:
    with Context(lanes=["shm"], arena=arena) as ours, Context(lanes=["shm"]) as theirs:
        with theirs.listen("127.0.0.1:0") as listener:
            connecting = ours.connect(listener.address)
            b = listener.accept().wait(60)
            a = connecting.wait(60)
        with numpy_memory.arrays_in(arena):
            array = np.arange(LARGE, dtype=np.uint8)
        sending = a.send_frames([array], shared=True)
        (received,) = b.recv_frames().wait(60)
        sending.wait(60)
        assert arena.statistics()["leased_bytes"] >= LARGE
        expected = array.copy()
        # Only the peer has it then, and the sender a moment longer
        del array, sending
        eventually(lambda: arena.statistics()["orphaned_bytes"] >= LARGE)
        with numpy_memory.arrays_in(arena):
            np.empty(LARGE, np.uint8).fill(0)
        assert (np.frombuffer(received, np.uint8) == expected).all()


@pytest.mark.parametrize("seed", range(3))
def test_arrays_hold_what_was_written_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    arena = Arena(bytes_max=8 << 20, cached_bytes_max=2 << 20)
    arrays: list[tuple[Any, int]] = []
    array: Any
    for _ in range(400):
        numpy_memory.uninstall()
        if rng.random() < 0.8:
            numpy_memory.install(arena)
        action = rng.random()
        if action < 0.4:
            value = rng.randrange(256)
            nbytes = rng.choice([100, 5000, 70_000, LARGE, 3 * LARGE]) + rng.randrange(50)
            arrays.append((np.full(nbytes, value, np.uint8), value))
        elif arrays and action < 0.5:
            array, value = arrays[rng.randrange(len(arrays))]
            before = len(array)
            array.resize(rng.choice([10, 70_000, LARGE]) + rng.randrange(50), refcheck=False)
            array[before:] = value
        elif arrays:
            array, value = arrays.pop(rng.randrange(len(arrays)))
            assert (array == value).all()
    assert all((array == value).all() for array, value in arrays)
    array = None
    del arrays
    statistics = arena.statistics()
    assert statistics["live_bytes"] == 0
    assert statistics["refused"] > 0


def test_a_forked_child_has_arrays_of_its_own(start: Start) -> None:
    program = start(
        """
        import os
        import numpy as np
        from backhaul import Arena, numpy_memory

        N = 1 << 20
        arena = Arena()
        numpy_memory.install(arena)
        kept, dropped, grown = np.ones(N), np.ones(N), np.ones(N)
        ready, go = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            kept[:] = 2
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            fresh = np.full(N, 3.0)
            grown.resize(2 * N, refcheck=False)
            well = [(kept == 2).all(), (dropped == 1).all(), (fresh == 3).all(), grown.sum() == N]
            del kept, dropped, grown, fresh
            os._exit(0 if all(well) else 1)
        # The parent does not use its freed memory again: the child may read it.
        del dropped
        others = [np.full(N, 4.0) for _ in range(10)]
        os.read(ready[0], 1)
        assert (kept == 1).all() and (grown == 1).all()
        os.write(go[1], b"x")
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        assert (kept == 1).all() and all((other == 4).all() for other in others)
        print("fine")
        """
    )
    assert program.end() == (0, "fine\n", "")


def test_the_interpreter_ends_with_arrays_alive(start: Start) -> None:
    program = start(
        """
        import sys, threading
        import numpy as np
        from backhaul import Arena, numpy_memory

        arena = Arena()
        numpy_memory.install(arena)
        sys.kept = np.ones(1 << 20)

        def work():
            numpy_memory.install(arena)
            while True:
                np.ones(1 << 20)

        threading.Thread(target=work, daemon=True).start()
        print("fine")
        """
    )
    assert program.end() == (0, "fine\n", "")


def test_without_numpy_there_is_an_import_error(start: Start) -> None:
    program = start(
        """
        import sys
        sys.modules["numpy"] = None
        from backhaul import Arena, numpy_memory
        try:
            numpy_memory.install(Arena())
        except ImportError:
            print("fine")
        """
    )
    assert program.end() == (0, "fine\n", "")
