"""Prose is in plain words: the objections per 1,000 lines may only go down."""

from __future__ import annotations

import json
from pathlib import Path

from tests.documents.plain_words import RECORD, Line, Tally, compare, count, objections, prose_of

PYTHON = '''"""What a module is for.

It is told of it.
"""
x = 1  # nobody reads this


def f():
    """Return one."""
    text = "whoever"
'''
RUST = "//! Queue of requests\n//!\n//! Who waits is woken.\n\n/// Whether it is open\nfn f() {}\n"
MARKDOWN = "# Title\n\nWhat is late counts.\n\n```python\nnobody = 1\n```\n"


def found(name: str, text: str) -> dict[int, list[str]]:
    lines = {line.number: objections(line) for line in prose_of(Path(name), text)}
    return {number: each for number, each in sorted(lines.items()) if each}


def test_no_part_has_more_objections_than_its_record() -> None:
    above, _ = compare(count(), json.loads(RECORD.read_text(encoding="utf-8")))
    assert not above


def test_comments_and_docstrings_of_python_count_and_its_texts_do_not() -> None:
    assert found("a.py", PYTHON) == {1: ["begins with What"], 3: ["is told"], 5: ["nobody"]}


def test_comments_of_rust_count() -> None:
    assert found("a.rs", RUST) == {3: ["subject: Who waits"], 5: ["begins with Whether"]}


def test_markdown_counts_outside_of_code_blocks() -> None:
    assert found("a.md", MARKDOWN) == {3: ["subject: What is"]}


def test_a_plain_sentence_has_no_objection() -> None:
    assert objections(Line(1, "Returns the workers that hold `key`.", True)) == []


def test_a_part_without_a_record_may_have_no_objection() -> None:
    above, below = compare({"new": Tally(1000, 1), "old": Tally(1000, 1)}, {"old": 40})
    assert [line.partition(":")[0] for line in above] == ["new"]
    assert [line.partition(":")[0] for line in below] == ["old"]
