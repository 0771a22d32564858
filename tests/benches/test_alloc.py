"""Small real runs: figures of recycled memory hold on glibc only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from backhaul_bench.dask_cluster import BenchmarkFailed
from benches.python.alloc import Allocator, fill_twice

if TYPE_CHECKING:
    from tests.benches.conftest import RunJson


def has_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except ValueError:
        return False


@pytest.mark.skipif(not has_glibc(), reason="its settings are glibc's")
def test_recycled_memory_needs_no_new_pages(run_json: RunJson) -> None:
    report = run_json("alloc", "--size", "32MiB", "--repetitions", "1")
    assert report["schema"] == "backhaul.benches.alloc/1"
    stock, *others = report["rows"]
    assert [row["allocator"] for row in report["rows"]] == ["stock", "recycled", "backhaul"]
    for row in others:
        assert row["second_page_faults"][0] < stock["second_page_faults"][0]
    for row in report["rows"]:
        assert row["first_page_faults"][0] > 0
        assert row["first_seconds"][0] > 0
        assert row["ratio"] > 0


def test_an_allocator_is_installed_by_name_before_the_first_array() -> None:
    assert len(fill_twice(Allocator(install="gc:disable"), 4096)) == 2
    with pytest.raises(BenchmarkFailed, match="no attribute 'allocator'"):
        fill_twice(Allocator(install="gc:allocator"), 4096)
