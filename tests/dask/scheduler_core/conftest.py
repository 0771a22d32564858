"""What the tests of a running scheduler on the core have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dask
from backhaul.dask.scheduler_core import live

ENGINE = "distributed.comm.backhaul.hot-path.scheduler-engine"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the next graph be the core's right after an escape."""
    monkeypatch.setattr(live, "PAUSE_PER_CHANGE", 0.0)


@pytest.fixture(params=[False, True], ids=["python", "engine"])
def by_engine(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Handle hot messages in Python, then on the engine's thread."""
    with dask.config.set({ENGINE: request.param}):
        yield request.param
