"""Results of exchanges in each step of which a worker is killed: a short part of the soak."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from distributed import Client

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

soak: Any = importlib.import_module("tests.soak.exchange")
kill_points: Any = importlib.import_module("tests.soak.kill_points")

#: Job, step, call of the step, microseconds of delay (None: after the call), whether blocks spill
CASES = [
    ("join", "transfer", 2, 100, False),
    ("sort", "bundle", 1, None, False),
    ("join", "unpack", 2, 0, True),
    ("shuffle", "spill", 2, 0, True),
    ("rechunk", "assemble", 2, None, False),
]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Connect to two workers, which are restarted when they die."""
    with soak.cluster_of_two() as client:
        yield client


@pytest.mark.parametrize(("job", "phase", "call", "delay_us", "spills"), CASES)
def test_a_worker_that_dies_costs_no_row(
    client: Client, tmp_path: Path, job: str, phase: str, call: int, delay_us: Any, spills: bool
) -> None:
    point = kill_points.KillPoint(phase, call, delay_us, marker="", spills=spills)
    inputs, rows = (3, 60) if job == "rechunk" else (10, 2_000)
    plan = soak.Plan(seed=1, job=job, inputs=inputs, rows=rows, how="inner", point=point)
    assert soak.run(client, plan, tmp_path) == soak.Run("right", killed=True)


def test_seeds_choose_all_jobs_and_steps() -> None:
    plans = [soak.draw(seed) for seed in range(200)]
    assert plans == [soak.draw(seed) for seed in range(200)]
    assert {plan.job for plan in plans} == set(soak.JOBS)
    assert {plan.point.phase for plan in plans} == set(kill_points.PHASES)
