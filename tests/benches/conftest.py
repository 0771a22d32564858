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
Run = Callable[..., str]
RunJson = Callable[..., dict[str, Any]]


@pytest.fixture
def run() -> Run:
    """Run ``python -m benches.python …``, and read its standard output."""

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "benches.python", *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=100, check=False, cwd=CHECKOUT
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def run_json(run: Run) -> RunJson:
    """As `run`, with ``--json``, and read what it prints."""

    def run_json(*arguments: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(run(*arguments, "--json"))
        return answer

    return run_json
