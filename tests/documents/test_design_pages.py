"""Documents are short, design pages at most 1,500 words each, and name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.written import ROOT

WORDS_MAX = 1500
#: Longer pages, with the most words that each may have: a number may only go down
LONGER = {
    "fabric.md": 2900,
    "wire-format.md": 4450,
}
#: Limits of the pages for newcomers, and of all documents below docs/, which may only go down
FIRST = {"README.md": 900, "CONTRIBUTING.md": 1500}
ALL_MAX = 60_000
#: Files of Dask
OF_DASK = {"dask/order.py"}
FOLDERS = ("python", "crates", "tests", "benches", "docs")
PAGES = sorted((ROOT / "docs" / "design").glob("*.md"))


def words_of(text: str) -> int:
    """Count the tokens with a letter or a digit, so not the bars and dashes of tables."""
    return sum(any(character.isalnum() for character in token) for token in text.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_design_page_has_few_words(page: Path) -> None:
    assert words_of(page.read_text(encoding="utf-8")) <= LONGER.get(page.name, WORDS_MAX)


@pytest.mark.parametrize("name", FIRST)
def test_what_is_read_first_has_few_words(name: str) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").split()) <= FIRST[name]


def test_all_documents_have_no_more_words_than_before() -> None:
    pages = (ROOT / "docs").rglob("*.md")
    assert sum(words_of(page.read_text(encoding="utf-8")) for page in pages) <= ALL_MAX


def test_bars_and_dashes_of_tables_are_not_words() -> None:
    assert words_of("| a | `b_1` |\n|---|:--:|\n| – | 3 % |") == 3


@pytest.fixture(scope="module")
def files() -> set[str]:
    """Return the files of the checkout, each with all ends of its path."""
    found: set[str] = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.*"):
            parts = path.relative_to(ROOT).parts
            found.update("/".join(parts[start:]) for start in range(len(parts)))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_design_page_names_files_that_exist(page: Path, files: set[str]) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = set(re.findall(r"`([\w/.-]+\.(?:py|rs|md|toml|json))`", text))
    assert named - files - OF_DASK == set()
