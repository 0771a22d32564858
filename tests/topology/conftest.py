"""Runs the command as a user does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

FIXTURES = Path(__file__).parents[2] / "crates/topology/tests/fixtures"


@pytest.fixture
def run() -> Run:
    """Run ``backhaul topology`` with arguments, in a locale without UTF-8."""

    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "backhaul.cli", "topology", *arguments]
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0"},
        )

    return run
