"""What holds for all tests."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="session", autouse=True)
def modules_are_kept() -> None:
    """Keep what the modules hold out of all garbage collections, of which some tests make many.

    Dask's helpers collect after each test: 0.1 s with pandas, NumPy and hypothesis loaded.
    """
    gc.collect()
    gc.freeze()
