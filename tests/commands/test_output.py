"""An output that cannot be written is an error in words."""

from __future__ import annotations

import subprocess
import sys

import pytest

# One topic of the doctor: the others are printed by the same function.
DOCTOR = ["doctor limits", "doctor limits --json"]
COMMANDS = ["--version", "--help", "info", "info --json", *DOCTOR, "topology"]


def run(arguments: str, redirected: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "backhaul", *arguments.split()]
    return subprocess.run(
        ["/bin/sh", "-c", f'"$@" {redirected}', "sh", *command],
        stderr=subprocess.PIPE,
        encoding="utf-8",
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_full_output_is_one_line(
    arguments: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    done = run(arguments, "> /dev/full")
    assert done.stderr == "Error: the output cannot be written: No space left on device\n"
    assert done.returncode == 2


def test_who_reads_no_further_is_no_error_in_words() -> None:
    done = run("info --json", "| head -c 1 > /dev/null")
    assert done.stderr == ""
