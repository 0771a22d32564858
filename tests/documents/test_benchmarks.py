"""Pages of benchmarks: each table of figures has a machine, a date and a command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.written import ROOT

PAGES = ROOT / "docs" / "benchmarks"
#: The index names machines and dates in columns; the others record tests, which have no machine
WITHOUT_CAPTIONS = {"index.md", "upstream-tests.md", "differential.md"}
FIGURES = sorted(page for page in PAGES.glob("*.md") if page.name not in WITHOUT_CAPTIONS)
#: The first words of a table that explains and has no figures
EXPLAINS = "| case | what runs |"
CAPTION = re.compile(r"\*(Machine [A-Z]), (written down on )?\d{4}-\d\d-\d\d\.\*")
COMMANDS = re.compile(
    r"(backhaul|cargo) bench\b|benches\.python\s|make (run|gpu-test)|perf record"
    r"|--example scheduler_growth|tests/dask/test_placement_hosts\.py|command was not noted"
)


def machines() -> set[str]:
    """Return the machines that the index describes."""
    named = re.findall(r"^- \*(Machine [A-Z])\*", (PAGES / "index.md").read_text(), re.MULTILINE)
    return set(named)


def test_there_are_pages_with_figures() -> None:
    assert len(FIGURES) >= 8
    assert len(machines()) >= 6


@pytest.mark.parametrize("page", FIGURES, ids=lambda page: page.name)
def test_each_table_of_figures_has_one_machine_and_one_date(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    bare = []
    for number, line in enumerate(lines):
        is_head = line.startswith("|") and not lines[number - 1].startswith("|")
        if is_head and not line.startswith(EXPLAINS):
            caption = CAPTION.fullmatch(lines[number - 2])
            if caption is None or caption[1] not in machines():
                bare.append((number + 1, line, lines[number - 2]))
    assert not bare


@pytest.mark.parametrize("page", FIGURES, ids=lambda page: page.name)
def test_each_section_with_figures_has_a_command_before_them(page: Path) -> None:
    for section in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        before = section.partition("\n*Machine ")[0]
        if before != section:
            assert COMMANDS.search(before), section.partition("\n")[0]


def test_each_row_of_the_index_has_a_date_and_a_page() -> None:
    text = (PAGES / "index.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert len(rows) >= 10
    for row in rows:
        assert re.search(r"\d{4}-\d\d-\d\d \|", row), row
        for page in re.findall(r"\]\(([a-z-]+\.md)", row.rpartition(" | ")[2]):
            assert (PAGES / page).is_file(), row
