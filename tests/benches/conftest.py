"""Runs the development benchmarks as a developer does: in the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
RunJson = Callable[..., dict[str, Any]]


@pytest.fixture
def run_json() -> RunJson:
    """Run ``python -m benches.python … --json``, and read its standard output."""

    def run(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "benches.python", *arguments, "--json"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=100, check=False, cwd=CHECKOUT
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run
