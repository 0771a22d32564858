"""Results in memory are bounded by what the rest of a worker's process leaves of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from backhaul.dask.compat.names import SpillBuffer
from backhaul.dask.worker.spill_buffer import leave_room

TARGET_BYTES = 4_000


@pytest.mark.parametrize(("unmanaged", "kept"), [(0, 4), (1_000, 4), (3_000, 2), (9_000, 1)])
def test_results_have_what_the_process_leaves_them(
    tmp_path: Path, unmanaged: int, kept: int
) -> None:
    store = SpillBuffer(str(tmp_path), target=TARGET_BYTES)
    for number in range(8):
        leave_room(store, unmanaged, TARGET_BYTES + 1_000)
        store[f"a{number}"] = b"a" * 900
    assert len(store.fast) == kept
    assert len(store.slow) == 8 - kept
    # Room that comes back is used.
    leave_room(store, 0, TARGET_BYTES + 1_000)
    for number in range(8):
        assert store[f"a{number}"] == b"a" * 900
    assert len(store.fast) == 4


def test_a_store_that_is_not_dasks_has_no_bound() -> None:
    store = {"a": b"a"}
    leave_room(store, 9_000, TARGET_BYTES)
    assert store == {"a": b"a"}
