"""Two processes that run the same programs over two protocols."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parents[3]


class Side:
    """One process that runs programs over one protocol.

    Parameters
    ----------
    protocol : str
        The protocol.
    log : pathlib.Path
        File for what programs and workers print.
    """

    def __init__(self, protocol: str, log: Path) -> None:
        self.protocol = protocol
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def begin(self, name: str) -> None:
        """Has the process run a program."""
        if self._process is None or self._process.poll() is not None:
            self._process = self._started()
        assert self._process.stdin is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Waits for the end of the program and returns what was observed."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            tail = self._log.read_text(errors="replace")[-6000:]
            pytest.fail(f"the process over {self.protocol} ended:\n{tail}")
        observed: dict[str, Any] = json.loads(line)
        return observed

    def close(self) -> None:
        """Ends the process and its cluster."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _started(self) -> subprocess.Popen[str]:
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.dask.like_tcp.runner", self.protocol],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=_ROOT,
                env={**os.environ, "PYTHONHASHSEED": "0"},
            )


@pytest.fixture(scope="session")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """Both sides: ``tcp`` and ``backhaul``, or those that ``BACKHAUL_LIKE_TCP`` names."""
    folder = tmp_path_factory.mktemp("like_tcp")
    first, second = os.environ.get("BACKHAUL_LIKE_TCP", "tcp,backhaul").split(",")
    both = Side(first, folder / "first.log"), Side(second, folder / "second.log")
    yield both
    for side in both:
        side.close()
