"""Two ways to the file of spilled results: through the page cache, and around it."""

from __future__ import annotations

import mmap
import os
import random
from pathlib import Path

import pytest

from backhaul.dask.worker.file_access import AccessCosts, FileAccess, Way
from backhaul.dask.worker.spill_file import SpillFile

pytest.importorskip("numpy", reason="without NumPy no memory is known to be aligned")

MIB = 1 << 20
#: Seconds a byte
FAST, SLOW = 1e-9, 4e-9


def aligned(data: bytes) -> memoryview:
    memory = mmap.mmap(-1, max(len(data), 1))
    memory[: len(data)] = data
    return memoryview(memory)[: len(data)]


def choose_and_learn(costs: AccessCosts, direct: float, cached: float) -> Way:
    way = costs.choose()
    costs.wrote(way, MIB, MIB * (direct if way is Way.DIRECT else cached))
    return way


@pytest.mark.parametrize(
    ("direct", "cached", "cheaper"), [(FAST, SLOW, Way.DIRECT), (SLOW, FAST, Way.CACHED)]
)
def test_cheaper_way_is_chosen_and_the_other_one_tried_again(
    direct: float, cached: float, cheaper: Way
) -> None:
    costs = AccessCosts()
    ways = [choose_and_learn(costs, direct, cached) for _ in range(200)]
    assert set(ways[:4]) == set(Way)
    assert [index for index, way in enumerate(ways) if index >= 4 and way is not cheaper] == [
        64,
        128,
        192,
    ]


def test_reads_count_once_both_are_known() -> None:
    costs = AccessCosts()
    for _ in range(4):
        choose_and_learn(costs, FAST, SLOW)
    costs.read(Way.DIRECT, MIB, MIB * 8 * SLOW)
    assert costs.choose() is Way.DIRECT
    costs.read(Way.CACHED, MIB, MIB * FAST)
    assert costs.choose() is Way.CACHED


def test_change_of_a_disk_is_learned() -> None:
    costs = AccessCosts()
    for _ in range(100):
        choose_and_learn(costs, FAST, SLOW)
    # Its write-back has begun to wait for another program.
    ways = [choose_and_learn(costs, 10 * SLOW, SLOW) for _ in range(1_000)]
    assert ways[-32:].count(Way.CACHED) >= 31


def is_cached(access: FileAccess, offset: int, nbytes: int) -> bool:
    """Tell whether bytes could be read without the disk."""
    try:
        return os.preadv(access.descriptor, [bytearray(nbytes)], offset, os.RWF_NOWAIT) == nbytes
    except BlockingIOError:
        return False


@pytest.fixture
def access(tmp_path: Path) -> FileAccess:
    access = FileAccess(str(tmp_path))
    probe = aligned(bytes(2 * MIB))
    if access.write(0, [probe], []) is not Way.DIRECT or is_cached(access, 0, MIB):
        pytest.skip(f"the file system of {tmp_path} always has a page cache")
    return access


def test_direct_writes_leave_no_pages_behind(access: FileAccess) -> None:
    data = random.Random(1).randbytes(2 * MIB)
    body = aligned(data)
    assert access.write(0, [body], [memoryview(b"rest")]) is Way.DIRECT
    assert not is_cached(access, 0, MIB)
    # The first writes go both ways, in turn.
    assert access.write(4 * MIB, [body], []) is Way.CACHED
    assert is_cached(access, 4 * MIB, MIB)
    for offset, way in ((0, Way.DIRECT), (0, Way.CACHED), (4 * MIB, Way.DIRECT)):
        found = aligned(bytes(2 * MIB))
        access.read(offset, [found], way)
        assert bytes(found) == data
    rest = memoryview(bytearray(4))
    access.read(2 * MIB, [rest])
    assert bytes(rest) == b"rest"


def test_memory_that_is_not_aligned_goes_through_the_cache(access: FileAccess) -> None:
    data = random.Random(2).randbytes(2 * MIB)
    body = aligned(b"x" * 64 + data)[64:]
    assert access.write(0, [body], []) is Way.CACHED
    assert access.write(4 * MIB, [aligned(data)], []) is Way.DIRECT
    found = aligned(bytes(2 * MIB + 64))[64:]
    access.read(4 * MIB, [found], Way.DIRECT)
    assert bytes(found) == data


def test_refusal_of_the_file_system_is_no_error(access: FileAccess) -> None:
    data = random.Random(3).randbytes(2 * MIB)
    # No block begins there.
    assert access.write(1, [aligned(data)], []) is Way.CACHED
    assert access.write(4 * MIB, [aligned(data)], []) is Way.CACHED
    found = aligned(bytes(2 * MIB))
    access.read(1, [found], Way.DIRECT)
    assert bytes(found) == data


def test_end_of_the_file_is_an_error(access: FileAccess) -> None:
    for way in Way:
        with pytest.raises(OSError, match="ends at"):
            access.read(16 * MIB, [aligned(bytes(MIB))], way)


@pytest.mark.parametrize("seed", range(10))
def test_results_come_back_both_ways(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    counts: dict[int, list[int]] = {}
    file = SpillFile(str(tmp_path), lambda header: counts[int(bytes(header))])
    written: dict[int, list[bytes]] = {}
    sizes = (0, 1, 4095, 64 << 10, (64 << 10) + 1, MIB, MIB + 4097)
    for key in range(12):
        groups = counts[key] = [random_.randint(1, 3) for _ in range(random_.randint(0, 3))]
        frames = [random_.randbytes(random_.choice(sizes)) for _ in range(sum(groups))]
        written[key] = [b"", str(key).encode(), *frames]
        file[key] = [frame if random_.random() < 0.3 else aligned(frame) for frame in written[key]]
        if random_.random() < 0.3:
            dropped = random_.choice(list(written))
            del written[dropped], file[dropped]
    for key, frames in written.items():
        assert [bytes(frame) for frame in file[key]] == frames
    file.close()
