"""Each line that the source writes to a log is in ``docs/operations.md``, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "operations.md"

LOGGERS = {"logger", "log", "app_log"}
LEVELS = {"info", "warning", "error", "exception", "critical"}

#: Lines that the source does not spell out where it writes them: what it has there, and what the
#: document says.
ELSEWHERE = {
    "{warning}": "… is open to every process that reaches it",
    "text": "Failed to serialize (…); falling back to pickle. Be aware that this may be slow.",
    "refusal": "the refusal of a worker's place",
    "……": "cannot speak Backhaul with …",
    "…: …": "the settings follow",
}


def lines_of_rust() -> Iterator[tuple[str, str]]:
    """Find lines with their places."""
    for path in sorted(ROOT.glob("crates/*/src/**/*.rs")):
        source = path.read_text(encoding="utf-8")
        for call in re.finditer(r"tracing::(?:warn|error)!\((.*?)\);?\n", source, re.DOTALL):
            literals = re.findall(r'"((?:[^"\\]|\\.)*)"', call[1])
            assert literals, f"{path}: {call[0]} has no text of its own"
            line = literals[-1]
            number = source.count("\n", 0, call.start()) + 1
            line = line if line in ELSEWHERE else re.sub(r"\{[^}]*\}", "…", line)
            yield line, f"{path.relative_to(ROOT)}:{number}"


def lines_of_python() -> Iterator[tuple[str, str]]:
    """Find lines with their places."""
    for path in sorted(ROOT.glob("python/backhaul/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr=level), args=[text, *_]
                ) if name in LOGGERS and level in LEVELS and not isinstance(text, ast.Starred):
                    yield text_of(text).strip().partition("\n")[0], place
                case ast.Call(func=ast.Name(id="log_refusal"), args=[_, text, *_]):
                    yield text_of(text), place


def text_of(node: ast.expr) -> str:
    """Write a format with … for what differs; what is no text, as it is in the source."""
    match node:
        case ast.Constant(value=str(text)):
            return re.sub(r"%#?[srdx]", "…", text)
        case ast.JoinedStr(values=parts):
            return "".join(
                text_of(part) if isinstance(part, ast.Constant) else "…" for part in parts
            )
        case _:
            return ast.unparse(node)


def test_every_line_of_the_source_is_in_the_document_and_the_other_way_round() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    found = {
        ELSEWHERE.get(line, line): place for line, place in (*lines_of_rust(), *lines_of_python())
    }
    assert len(found) > 50
    missing = {place: line for line, place in found.items() if line not in document}
    assert not missing, "these lines belong into docs/operations.md, too"
    told = document.partition("\n## Log lines\n")[2]
    first_cells = re.findall(r"^\| (`.*?`) \| ", told, re.MULTILINE)
    listed = {line for cell in first_cells for line in re.findall(r"`([^`]+)`", cell)}
    assert len(listed) > 50
    # Message of the native module about its own log, which is no event of its own.
    surplus = listed - set(found) - {"… earlier messages were dropped"}
    assert not surplus, "no source has these lines of docs/operations.md"


def test_the_longest_part_of_a_line_from_elsewhere_is_in_the_source() -> None:
    paths = [*ROOT.glob("crates/*/src/**/*.rs"), *ROOT.glob("python/backhaul/**/*.py")]
    source = " ".join(path.read_text(encoding="utf-8") for path in paths)
    parts = [max(line.split("…"), key=len) for line in ELSEWHERE.values() if "…" in line]
    assert parts
    assert [part for part in parts if part not in source] == []
