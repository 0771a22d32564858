"""Design pages are short: at most 1,500 words each, with figures elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.written import ROOT

WORDS_MAX = 1500
#: Longer pages, with the most words that each may have: a number may only go down
LONGER = {
    "cuda.md": 1650,
    "fabric.md": 5950,
    "launch-plans.md": 1700,
    "memory.md": 3270,
    "topology.md": 1550,
    "wire-format.md": 5720,
}
PAGES = sorted((ROOT / "docs" / "design").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_design_page_has_few_words(page: Path) -> None:
    words = len(page.read_text(encoding="utf-8").split())
    assert words <= LONGER.get(page.name, WORDS_MAX)
