"""Prose is wrapped, so that a change of a sentence is a change of some lines; tables are tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.documents.written import ROOT

WIDTH = 100
FOLDERS = ("docs", "crates", "examples", "tests", "benches", "recipe", "requirements", "fuzz")


def documents() -> Iterator[Path]:
    yield from ROOT.glob("*.md")
    for folder in FOLDERS:
        yield from (ROOT / folder).rglob("*.md")


def too_long(text: str) -> Iterator[int]:
    """Find lines that could be broken: not tables, titles, code, nor one long word."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        said = line.lstrip()
        if said.startswith("```"):
            is_code = not is_code
        elif is_code or said.startswith(("|", "#", "<")):
            continue
        elif len(line) > WIDTH and " " in said[2:WIDTH]:
            yield number


def test_lines_of_prose_are_wrapped() -> None:
    found = {file: list(too_long(file.read_text(encoding="utf-8"))) for file in documents()}
    assert len(found) > 60
    assert {str(file.relative_to(ROOT)): lines for file, lines in found.items() if lines} == {}


def test_what_cannot_be_broken_may_be_long() -> None:
    words, word = "words " * 20, "word" * 30
    text = f"- {words}\n\n# {words}\n| {words}\n- {word}\n```\n{words}\n```\n{words}\n"
    assert list(too_long(text)) == [1, 9]


def without_head(text: str) -> Iterator[int]:
    """Find rows after an empty line: they are no rows, and are shown with their bars."""
    is_code, before = False, ""
    lines = text.splitlines()
    for number, (line, after) in enumerate(zip(lines, [*lines[1:], ""], strict=True), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        is_first = line.startswith("|") and not before.startswith("|")
        if is_first and not is_code and not re.fullmatch(r"\|[-:| ]+\|", after):
            yield number
        before = line


def test_rows_of_tables_follow_a_head() -> None:
    found = {file: list(without_head(file.read_text(encoding="utf-8"))) for file in documents()}
    assert {str(file.relative_to(ROOT)): lines for file, lines in found.items() if lines} == {}
    assert list(without_head("| a |\n|---|\n| b |\n\n| c |\n")) == [5]
