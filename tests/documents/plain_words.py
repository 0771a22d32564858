"""Check of plain words: counts wording that CONTRIBUTING.md rules out, against a record.

Reads comments and docstrings of Python and Rust, and Markdown outside of code blocks. The record,
`plain_words.json`, holds for each part of the checkout the most objections per 1,000 lines of prose
that it may have. A figure of the record may only go down.

    python -m tests.documents.plain_words            compare with the record; status 1 above it
    python -m tests.documents.plain_words PATH ...   list each objection in files or folders
    python -m tests.documents.plain_words --lower    write the lower figures into the record
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Line", "Tally", "count", "objections", "prose_of"]

ROOT: Final = Path(__file__).resolve().parents[2]
RECORD: Final = Path(__file__).with_name("plain_words.json")
FOLDERS: Final = (
    "python",
    "crates",
    "docs",
    "tests",
    "benches",
    "examples",
    "fuzz",
    "recipe",
    "requirements",
)
SUFFIXES: Final = frozenset({".py", ".pyi", ".rs", ".md"})
#: Folders below these names hold nothing that is written by hand
GENERATED: Final = frozenset({"target", "__pycache__", "corpus"})

#: Parts of the checkout by the beginning of a path; the first that fits counts
PARTS: Final = {
    "python/backhaul/dask/": "python/backhaul/dask",
    "tests/dask/": "tests/dask",
    "crates/dask": "crates/dask*",
    "docs/": "docs",
    "README.md": "root documents",
    "CONTRIBUTING.md": "root documents",
    "CHANGELOG.md": "root documents",
    "RELEASING.md": "root documents",
    "": "the rest",
}

#: A part that is this much below the record, per 1,000 lines, gets a hint to lower the record
SLACK_PER_1000: Final = 4.0
#: A new figure of the record is this much above the count, because a change that deletes plain
#: lines raises the rate of the others
ROOM_PER_1000: Final = 1

#: Words and phrases that have a plain or a standard term
PHRASES: Final = re.compile(
    r"\b("
    r"nobody|somebody|anybody|whoever|whomever|whom|strangers?"
    r"|whatever of|as ever|of ours|of theirs|of (?:its|their) own accord|to be had|is had"
    r"|let(?:s|ting)? go of|let go|hea(?:rs?|rd) of"
    r"|(?:is|are|was|were|been|be) told|t(?:ell|ells|old) of"
    r"|makes of|gets? on with|sees? to it|in the midst|come to pass|has come to"
    r")\b",
    re.IGNORECASE,
)
#: First words of a docstring that hide the subject or the verb
FIRST_WORD: Final = re.compile(r"(What|Who|Whom|Whose|Whoever|Whatever|Whether|Those|Have)\b")
#: A sentence whose subject is a relative clause
SUBJECT: Final = re.compile(r"(?:^|[.;:] )(Who|What|Whoever|Whatever|Those (?:that|who)) [a-z]+")
#: These explain what the check looks for, so they contain the words
EXEMPT: Final = frozenset({"tests/documents/plain_words.py"})


class Line(NamedTuple):
    """One line of prose."""

    number: int
    text: str
    #: Whether the line is the first of a docstring
    is_first: bool


class Tally(NamedTuple):
    """Lines of prose of one part, and objections to them."""

    lines: int
    objections: int

    @property
    def per_1000(self) -> float:
        """Give the objections per 1,000 lines."""
        return 1000 * self.objections / self.lines if self.lines else 0.0


def prose_of(path: Path, text: str) -> Iterator[Line]:
    """Yield the lines of prose of one file."""
    if path.suffix == ".rs":
        return _rust(text)
    return _markdown(text) if path.suffix == ".md" else _python(text)


def objections(line: Line) -> list[str]:
    """List the wording in one line that has a plainer form."""
    found = [match[0] for match in PHRASES.finditer(line.text)]
    first = FIRST_WORD.match(line.text) if line.is_first else None
    subject = None if first else SUBJECT.search(line.text)
    if first:
        found.append(f"begins with {first[0]}")
    elif subject:
        found.append(f"subject: {subject[0].lstrip('.;: ')}")
    return found


def count() -> dict[str, Tally]:
    """Count lines of prose and objections in each part of the checkout."""
    lines: dict[str, int] = defaultdict(int)
    found: dict[str, int] = defaultdict(int)
    for path in [*sorted(ROOT.glob("*.md")), *_files(FOLDERS)]:
        part = _part_of(path)
        for line in prose_of(path, path.read_text(encoding="utf-8")):
            lines[part] += 1
            found[part] += len(objections(line))
    return {part: Tally(lines[part], found[part]) for part in lines}


def _files(places: Iterable[str]) -> Iterator[Path]:
    """Yield the files with prose among some files and folders."""
    for place in places:
        path = ROOT / place
        for each in [path] if path.is_file() else sorted(path.rglob("*")):
            inner = each.relative_to(ROOT)
            is_source = each.suffix in SUFFIXES and GENERATED.isdisjoint(inner.parts)
            if is_source and str(inner) not in EXEMPT:
                yield each


def _part_of(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    return next(part for start, part in PARTS.items() if name.startswith(start))


def _python(text: str) -> Iterator[Line]:
    """Yield comments and docstrings."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Line(token.start[0], token.string.lstrip("#: ").strip(), False)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and (doc := ast.get_docstring(node, clean=False)):
            start = node.body[0].lineno
            for offset, line in enumerate(doc.splitlines()):
                if line.strip():
                    yield Line(start + offset, line.strip(), offset == 0)


def _rust(text: str) -> Iterator[Line]:
    """Yield comments that have a line for themselves; a run of `///` or `//!` is a docstring."""
    was_doc = False
    for number, line in enumerate(text.splitlines(), 1):
        comment = line.strip()
        is_doc = comment.startswith(("///", "//!"))
        if comment.startswith("//"):
            yield Line(number, comment.lstrip("/!").strip(), is_doc and not was_doc)
        was_doc = is_doc


def _markdown(text: str) -> Iterator[Line]:
    """Yield the lines outside of code blocks."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and line.strip():
            yield Line(number, line.strip(), False)


def compare(tallies: Mapping[str, Tally], record: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Compare counts with the record.

    Returns
    -------
    above, below : list of str
        A sentence for each part with more objections than the record allows, and for each part
        with so few that the record should be lowered.
    """
    above, below = [], []
    for part, tally in tallies.items():
        limit = record.get(part, 0)
        line = f"{part}: {tally.per_1000:.1f} objections per 1,000 lines of prose, record {limit}"
        if tally.per_1000 > limit:
            above.append(line)
        elif tally.per_1000 + SLACK_PER_1000 < limit:
            below.append(line)
    return above, below


def _list(places: list[str]) -> None:
    for path in _files(places):
        for line in prose_of(path, path.read_text(encoding="utf-8")):
            for objection in objections(line):
                name = path.relative_to(ROOT)
                print(f"{name}:{line.number}: [{objection}] {line.text[:110]}")


def main(arguments: list[str]) -> int:
    """Run the command; the status is 1 if a part is above the record."""
    if arguments and arguments != ["--lower"]:
        _list([str(Path(place).absolute().relative_to(ROOT)) for place in arguments])
        return 0
    record: dict[str, int] = json.loads(RECORD.read_text(encoding="utf-8"))
    tallies = count()
    if arguments:
        lowered = {
            part: min(record.get(part, sys.maxsize), math.ceil(tally.per_1000) + ROOM_PER_1000)
            for part, tally in sorted(tallies.items())
        }
        RECORD.write_text(json.dumps(lowered, indent=2) + "\n", encoding="utf-8")
        return 0
    above, below = compare(tallies, record)
    for line in above:
        print(f"too many: {line}; to list them: python -m tests.documents.plain_words PATH")
    for line in below:
        print(f"fewer: {line}; lower the record: python -m tests.documents.plain_words --lower")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
