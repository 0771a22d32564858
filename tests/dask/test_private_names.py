"""Private names of Dask: one table, its types, and a Dask that lacks one of the names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from backhaul.dask.compat import names, oldest_release
from backhaul.dask.compat.names import NAMES, MissingName, resolve


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_name_is_in_this_release(name: str) -> None:
    assert resolve(name) is getattr(names, name)


@pytest.mark.parametrize(
    "path", ["Worker.nothing", "distributed.worker:nothing", "distributed.nothing", "nothing"]
)
def test_a_name_that_is_missing_is_reported_with_the_releases(path: str) -> None:
    with pytest.raises(MissingName, match=r"is missing from dask .* and distributed ") as raised:
        resolve(path)
    assert raised.value.path == path


def test_a_release_that_is_too_old_is_refused_with_the_supported_range() -> None:
    with pytest.raises(ImportError, match=r"2025.1.0 or later, not with 2024.12.1"):
        oldest_release.check("2024.12.1")
    for version in (oldest_release.OLDEST, "2026.8.0+1.g0123", "2030.10.1", "unknown"):
        oldest_release.check(version)


@pytest.mark.slow
def test_a_missing_name_costs_the_feature_that_needs_it_and_nothing_else() -> None:
    """Of all names, as `make test-all` tries them, some that different features need."""
    features = ["BatchedSend", "HeapSet", "LLGExpr", "SpanMetadata", "SpillBuffer"]
    features += ["cuda_deserialize"]
    features += ["TaskPrefix", "get_address_host", "pool_worker", "zict:Buffer"]
    features += ["Worker.handle_stimulus", "WorkerStateMachine", "Scheduler.update_graph"]
    features += ["distributed.worker._worker_cvar", "WorkerStateMachine._get_task_finished_msg"]
    transport = ["Comm", "offload"]
    command = [sys.executable, "-m", "tests.dask.missing_names", *features, *transport]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    lines = [f"{name} ok" for name in features] + [f"{name} transport" for name in transport]
    assert ended.stdout.splitlines() == [*lines, "0 failed"], ended.stderr
