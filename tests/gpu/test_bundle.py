"""What is packed for a machine with a GPU, and what is run there, is all here."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.gpu import bundle, run

ROOT = Path(__file__).parents[2]
TESTS = {
    argument
    for step in run.steps()
    for argument in step.command
    if argument.startswith("tests/") or argument.endswith(".py")
}


@pytest.mark.parametrize("path", sorted(TESTS))
def test_what_is_run_there_is_in_the_checkout(path: str) -> None:
    assert (ROOT / path).exists()


def test_what_is_not_packed_is_pinned() -> None:
    pinned = {
        Requirement(line).name.lower()
        for path in (ROOT / "requirements").glob("*.txt")
        for line in path.read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }
    assert pinned >= bundle.NOT_PACKED
