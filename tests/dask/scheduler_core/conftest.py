"""Shared parts of the tests of a running scheduler on the core."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from distributed import utils_test

import dask
from backhaul.dask.scheduler.core import adoption_pause

ENGINE = "distributed.comm.backhaul.hot-path.scheduler-engine"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the state back to the core with the next graph after an escape, never before."""
    monkeypatch.setattr(adoption_pause, "PAUSE_PER_CHANGE", 0.0)
    monkeypatch.setattr(adoption_pause, "COME_BACK_S", 3600.0)


@pytest.fixture(params=[False, True], ids=["python", "engine"])
def by_engine(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Handle hot messages in Python, then on the engine's thread."""
    with configured({ENGINE: request.param}):
        yield request.param


@contextlib.contextmanager
def configured(settings: Mapping[str, Any]) -> Iterator[None]:
    """Set what tests of `gen_test` are to find, too: they go back to what Dask's module keeps."""
    with dask.config.set(settings), dask.config.set(settings, config=utils_test.original_config):
        yield
