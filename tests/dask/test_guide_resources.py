"""The code of ``docs/guides/gpus-as-resources.md`` runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

GUIDE = Path(__file__).parents[2] / "docs/guides/gpus-as-resources.md"


def test_the_guide_to_resources_runs_as_it_stands() -> None:
    pytest.importorskip("dask.array")
    text = GUIDE.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert len(blocks) >= 6
    names: dict[str, Any] = {"__name__": "guide_to_resources"}
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        # Errors show the line of the guide.
        code = compile("\n" * line + block[1], str(GUIDE), "exec")
        exec(code, names)
