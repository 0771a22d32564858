"""A worker's state machine and Dask's are equal on random events; `make differential` for more."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.dask.forked import Forks


@pytest.fixture(scope="module")
def differential() -> Iterator[Forks]:
    """Run random events in processes apart: hashes of upstream's tasks are others there."""
    with Forks("tests.dask.worker_core.__main__") as forks:
        yield forks


closely = pytest.param(
    ["--every"],
    marks=pytest.mark.once(reason="streams that are compared now and then have the same events"),
    id="every",
)


@pytest.mark.parametrize("looks", [pytest.param([], id="now-and-then"), closely])
def test_equal_with_the_state_in_rust(differential: Forks, looks: list[str]) -> None:
    ended = differential("--seeds", "48", *looks)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for what in ("transitions", "lived through", "taken over"):
        counted = re.search(rf"'{what}': (\d+)", ended.stdout)
        assert counted, ended.stdout
        assert int(counted[1]) > 50, ended.stdout


# A value that was stored for an event stayed although the event had another use for its task; the
# source of a fetch was chosen by the priority that a task had when it was first to be fetched.
@pytest.mark.parametrize("seed", [84022455, 84027360, 85004590, 87032398, 88013279])
def test_streams_that_differed(differential: Forks, seed: int) -> None:
    ended = differential("--seeds", "1", "--first", str(seed))
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("broken", ["count", "log"])
def test_what_is_left_out_is_noticed(differential: Forks, broken: str) -> None:
    ended = differential("--seeds", "4", "--break", broken)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "upstream has" in ended.stdout
    # The step is named after which the difference was there; counters are in no log.
    closely = differential("--seeds", "4", "--break", broken, "--every")
    assert differences(ended.stdout) == differences(closely.stdout)


def differences(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("seed ")]
