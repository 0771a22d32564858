"""Prose is wrapped, so that a change of a sentence is a change of some lines."""

from __future__ import annotations

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
