"""Files that are packed for a machine with a GPU, and programs that run there, are all here."""

from __future__ import annotations

import subprocess
import venv
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


def test_an_environment_has_what_that_of_the_machine_has(tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    venv.create(machine, with_pip=False, symlinks=True)
    (packages,) = machine.glob("lib/python*/site-packages")
    (packages / "only_there.py").write_text("NAME = 'the machine'\n")
    code = "import pathlib, sys, run; print(run.make_venv(pathlib.Path(sys.argv[1])))"
    made = subprocess.run(
        [machine / "bin/python", "-c", code, tmp_path / "made"],
        cwd=Path(run.__file__).parent,
        capture_output=True,
        check=True,
        text=True,
    )
    found = subprocess.run(
        [made.stdout.strip(), "-c", "import only_there; print(only_there.NAME)"],
        capture_output=True,
        check=True,
        text=True,
    )
    assert found.stdout == "the machine\n"
