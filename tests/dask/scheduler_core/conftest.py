"""What the tests of a running scheduler on the core have in common."""

from __future__ import annotations

import pytest

from backhaul.dask.scheduler_core import live


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the next graph be the core's right after an escape."""
    monkeypatch.setattr(live, "PAUSE_PER_CHANGE", 0.0)
