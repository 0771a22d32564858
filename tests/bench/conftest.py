"""Runs the command as a user does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

RunJson = Callable[..., dict[str, Any]]


@pytest.fixture
def run_json() -> RunJson:
    """Run ``backhaul`` with arguments and ``--json``, and read its standard output."""

    def run(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "backhaul.cli", *arguments, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run
