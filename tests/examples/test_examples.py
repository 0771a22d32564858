"""Every example runs as it stands, and its page names it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

Done = subprocess.CompletedProcess[str]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples"
PROGRAMS = sorted(FOLDER.glob("*.py"))
RUST = sorted((ROOT / "crates" / "fabric" / "examples").glob("*.rs"))
PAGE = ROOT / "docs" / "examples.md"

#: Of a machine that is busy with other things
WATCHDOG_S = 300
AT_ONCE = 3

pytestmark = pytest.mark.timeout(2 * WATCHDOG_S)

#: Packages that it needs beside Backhaul, where they are not part of every environment
NEEDS = {"tls_cluster.py": "cryptography", "dask_local_cluster.py": "pandas"}


def test_there_are_ten_of_them_and_the_page_links_to_each() -> None:
    assert len(PROGRAMS) >= 10
    linked = set(re.findall(r"\]\(\.\./([^)]+)\)", PAGE.read_text(encoding="utf-8")))
    assert {str(path.relative_to(ROOT)) for path in (*PROGRAMS, *RUST)} <= linked


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Path, Future[Done]]]:
    """Run all of them, several at a time: each waits for half of its time."""
    folder = tmp_path_factory.mktemp("examples")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {program: pool.submit(run, program, folder) for program in PROGRAMS}


def run(program: Path, folder: Path) -> Done:
    return subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        env={**os.environ, "PYTHONWARNINGS": "error::ResourceWarning"},
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        check=False,
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_it_runs_as_it_stands(program: Path, runs: dict[Path, Future[Done]]) -> None:
    if program.name in NEEDS:
        pytest.importorskip(NEEDS[program.name])
    done = runs[program].result()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip(), "an example says what it did"
