"""The guide to resources runs as it stands, its blocks one after another as one program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs/guides/gpus-as-resources.md"


@pytest.mark.timeout(360)
def test_the_guide_to_resources_runs_as_it_stands(tmp_path: Path) -> None:
    pytest.importorskip("dask.array")
    text = GUIDE.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert len(blocks) >= 6
    program = ""
    for block in blocks:
        # Errors show the line of the guide.
        program += "\n" * (text[: block.start(1)].count("\n") - program.count("\n")) + block[1]
    # A file, which the processes of workers import, too
    file = tmp_path / "guide.py"
    file.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
