"""The Python of pages that teach runs as it stands, each page as one program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.written import ROOT

#: Of a machine that is busy with other things
WATCHDOG_S = 300

pytestmark = pytest.mark.timeout(WATCHDOG_S + 30)

#: Pages, and words that their output has
PAGES = {
    "index.md": ["."],
    "first-ten-minutes.md": ["sum ", "lanes {'shm'}", "same process"],
    "tutorials/taxi.md": [
        "fare_per_km",
        "array: ",
        "lanes: ['shm']",
        "lent_bytes",
        "links known: ",
    ],
    "guides/which-lane.md": ["shm", "same host and user"],
    "users/dask-one-machine.md": ["45"],
    "users/python.md": ["[0 2 4 6 8]"],
    "users/ucx-py.md": [],
}


def program_of(page: str) -> str:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert blocks, page
    return "\n".join(blocks)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs_as_it_stands(page: str, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    file = tmp_path / "page.py"
    file.write_text(program_of(page), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=tmp_path,
        # Another program may have the port that the dashboard would begin with.
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for word in PAGES[page]:
        assert word in done.stdout


def test_every_new_page_with_python_is_run_here() -> None:
    """Pages of `users`, tutorials and the first ten minutes have no code that is not run."""
    docs = ROOT / "docs"
    folders = [docs / "users", docs / "tutorials"]
    pages = [docs / "first-ten-minutes.md", *(page for each in folders for page in each.glob("*"))]
    with_code = {
        str(page.relative_to(ROOT / "docs"))
        for page in pages
        if "```python\n" in page.read_text(encoding="utf-8")
    }
    assert with_code <= set(PAGES)
