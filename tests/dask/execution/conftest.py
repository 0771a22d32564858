"""Fixtures for tests of how tasks are executed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from backhaul.dask.compat import activation
from backhaul.dask.worker import task_start
from tests.dask.execution import early, tasks
from tests.dask.execution.tasks import Path


@pytest.fixture(autouse=True)
def fresh_globals() -> Iterator[None]:
    tasks.gate.clear()
    tasks.entered = threading.Semaphore(0)
    tasks.seen.clear()
    tasks.runs.clear()
    yield
    tasks.gate.set()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Note which tasks threads begin early."""
    yield from early.watch(monkeypatch)


@pytest.fixture(params=["backhaul", "dask"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test with our way, and with Dask's own."""
    path = Path(request.param == "backhaul")
    monkeypatch.setattr(task_start, "start_execution", path.start)
    activation.install()
    assert "hot-path.execution" in {patch.switch for patch in activation.installed()}
    return path
