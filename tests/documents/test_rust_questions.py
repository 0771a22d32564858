"""Methods of the Rust code whose names ask something only look."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: A function whose name is a question, up to its body
QUESTION = re.compile(
    r"fn (?P<name>(?:is|are|has|wants|may|can|needs)_\w+)\s*(?:<[^(]*>)?"
    r"\((?P<parameters>[^)]*)\)[^{;]*(?P<end>[{;])"
)

#: Changes that `&self` does not rule out, and results that are not looked at
ACT = re.compile(
    r"\.(?:store|swap|fetch_\w+|push\w*|pop\w*|insert|remove|clear|write\w*|send\w*|notify\w*"
    r"|take(?=\(\))|replace|retain|progress|bump)\(|let _ ="
)

#: Why a question acts all the same
ALLOWED = {
    ("crates/shm/src/doorbell.rs", "is_semaphore"): "tries it with a doorbell of its own",
}


def body(text: str, start: int) -> str:
    """Return what stands between the brace at a place and the one that closes it."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start:at]
    raise ValueError("a brace is not closed")


def acting_questions(text: str) -> set[str]:
    """Return the names of the questions in a source that change something."""
    acting = set()
    for found in QUESTION.finditer(text):
        said = body(text, found.start("end")) if found["end"] == "{" else ""
        if "&mut self" in found["parameters"] or ACT.search(said):
            acting.add(found["name"])
    return acting


def test_questions_change_nothing() -> None:
    acting = set()
    for path in ROOT.glob("crates/*/src/**/*.rs"):
        if "tests" in path.parts or path.stem == "tests":
            continue
        name = str(path.relative_to(ROOT))
        acting |= {(name, question) for question in acting_questions(path.read_text())}
    assert acting - ALLOWED.keys() == set(), "rename them to verbs, or have them only look"
    assert ALLOWED.keys() - acting == set(), "no longer needed"


def test_a_question_that_acts_is_found() -> None:
    assert acting_questions("fn is_out(&mut self) -> bool { self.out }") == {"is_out"}
    assert acting_questions("fn has_room(&mut self) -> bool;") == {"has_room"}
    assert acting_questions("fn is_up(&self) -> bool { self.up.swap(true) }") == {"is_up"}
    assert (
        acting_questions("fn is_up(&self) -> bool { if a { b } else { self.up.load(c) } }") == set()
    )
    assert acting_questions("fn take_up(&mut self) -> bool { self.up }") == set()
