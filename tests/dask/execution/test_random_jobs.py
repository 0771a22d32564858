"""A few of the random jobs: ``python -m tests.dask.execution.random_jobs`` runs more of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import dask
from backhaul.dask.compat import activation
from tests.dask.execution.random_jobs import run_seed


@pytest.mark.parametrize("seed", range(8))
def test_random_jobs_end_as_they_should_and_leave_nothing(seed: int, tmp_path: Path) -> None:
    activation.install()
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        asyncio.run(run_seed(seed))
