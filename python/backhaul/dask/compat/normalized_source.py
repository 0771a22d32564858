"""Digests of Python source that leave out what does not change how a program behaves.

Two sources with one digest may differ in comments, docstrings, annotations and formatting. A digest
is the same on each version of Python: the fields of the syntax tree are written down here, as what
`ast.dump` and `ast.unparse` write differs from version to version.

A process that starts a worker or scheduler needs hundreds of them, and to parse each function takes
milliseconds. So the digests of the files of the releases that were read lie in
``digests_by_file.json``, by a hash of the file and the name in it; ``make dask-release WRITE=1``
writes them.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import linecache
import re
import sys
from collections.abc import Callable, Sequence
from importlib.resources import files
from types import FunctionType
from typing import Any, Final, TypeAlias

__all__ = ["block_at", "class_line", "digest_of", "parsed_digest", "source_digest", "text_hash"]

_Put: TypeAlias = Callable[[str], Any]

#: Number of hexadecimal digits of a digest
_DIGITS: Final = 12

#: Fields that say how a source is written or typed, and not what it does
_LEFT_OUT: Final = frozenset(
    {"ctx", "kind", "type_comment", "type_ignores", "type_params", "annotation", "returns"}
)

#: Names in the annotation of an attribute that `dataclasses` looks for
_FIELD_KINDS: Final = ("ClassVar", "InitVar", "KW_ONLY")

#: Lines of files, and their hash
_hashes: dict[str, tuple[list[str], str]] = {}

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)

#: Methods that show or check an object. They are left out of the digest of a class, as what rests
#: on a whole class has Dask's own objects shown and checked by Dask's own methods.
_SHOWN: Final = re.compile(r"__repr__|_repr_html_|_?validate\w*")


@functools.cache
def source_digest(source: Any) -> str:
    """Digest the source of a function, class or module; ``""`` without a source."""
    return _read_digest(source) or parsed_digest(source)


def _read_digest(source: Any) -> str | None:
    """Look up the digest of a source whose file was read; None if the file is another one."""
    if inspect.ismodule(source):
        file, name = source.__file__, ""
    elif isinstance(source, type):
        file, name = (
            getattr(sys.modules.get(source.__module__), "__file__", None),
            source.__qualname__,
        )
    else:
        source = inspect.unwrap(source)
        if not isinstance(source, FunctionType):
            return None
        file, name = source.__code__.co_filename, source.__code__.co_qualname
    return _digests_by_file().get(_hash_of(file), {}).get(name) if file else None


@functools.cache
def _digests_by_file() -> dict[str, dict[str, str]]:
    text = files(__package__).joinpath("digests_by_file.json").read_text("utf-8")
    table: dict[str, dict[str, str]] = json.loads(text)
    return table


def text_hash(text: str) -> str:
    """Hash the text of a file to 12 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def _hash_of(file: str) -> str:
    """Hash a file as `inspect` reads it."""
    lines = linecache.getlines(file)
    known = _hashes.get(file)
    # The same list for as long as nothing else is known of the file
    if known is None or known[0] is not lines:
        known = _hashes[file] = lines, text_hash("".join(lines))
    return known[1]


def parsed_digest(source: Any) -> str:
    """Digest a source as `source_digest`, whatever was read.

    Only the lines of a function or class are parsed: the whole module takes 0.1 s.
    """
    try:
        if inspect.ismodule(source):
            return digest_of(ast.parse(inspect.getsource(source)))
        line = class_line(source) if isinstance(source, type) else None
        if line is None:
            lines, line = inspect.findsource(inspect.unwrap(source))
        else:
            lines = linecache.getlines(inspect.getsourcefile(source) or "")
        return digest_of(block_at(lines, line))
    except (OSError, TypeError, SyntaxError):
        return ""


def class_line(source: type) -> int | None:
    """Find the first line of a class, or of its first decorator; None if several may be meant.

    Until Python 3.13 `inspect` parses the whole module for that.
    """
    lines = linecache.getlines(inspect.getsourcefile(source) or "")
    start = re.compile(rf"class {re.escape(source.__qualname__)}\b")
    found = [number for number, line in enumerate(lines) if start.match(line)]
    if len(found) != 1:
        return None
    (first,) = found
    while first > 0 and lines[first - 1].startswith("@"):
        first -= 1
    return first


def digest_of(tree: ast.AST) -> str:
    """Digest a function, class or module to 12 hexadecimal digits."""
    written: list[str] = []
    _write(tree, written.append)
    text = "\0".join(written).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:_DIGITS]


def block_at(lines: Sequence[str], first: int) -> ast.stmt:
    """Parse the function or class that begins in a line of a file, with its decorators.

    `first` is the number of the line of the first decorator, or of ``def`` or ``class``; 0 for the
    first line. `SyntaxError` if none begins there.
    """
    indent = _indent(lines[first])
    end = first
    while True:
        end += 1
        while end < len(lines) and not 0 <= _indent(lines[end]) <= indent:
            end += 1
        # A line that is indented less may belong to a string, or to brackets that are open, and
        # the text is not complete before it.
        try:
            return _parsed("".join(lines[first:end]))
        except SyntaxError:
            if end >= len(lines):
                raise


def _indent(line: str) -> int:
    """Return the number of spaces before a statement; -1 of a line without one."""
    text = line.lstrip()
    return -1 if not text or text.startswith("#") else len(line) - len(text)


def _parsed(block: str) -> ast.stmt:
    if not block[0].isspace():
        return ast.parse(block).body[0]
    # Indented below a condition, so that strings of several lines keep their text
    condition = ast.parse(f"if True:\n{block}").body[0]
    assert isinstance(condition, ast.If)
    return condition.body[0]


def _write(node: ast.AST, put: _Put) -> None:
    """Write down a node: its class, and each field that has anything in it."""
    put(type(node).__name__)
    for name in node._fields:
        if name in _LEFT_OUT:
            continue
        value = getattr(node, name, None)
        if value is None:
            continue
        if isinstance(value, ast.AST):
            put(name)
            _write(value, put)
        elif not isinstance(value, list):
            put(name)
            put(repr(value))
        elif value:
            put(name)
            if isinstance(node, ast.ClassDef) and name == "body":
                _write_class_body(node, put)
            elif isinstance(value[0], ast.stmt):
                _write_statements(value, put)
            else:
                _write_parts(value, put)


def _write_parts(parts: Sequence[Any], put: _Put) -> None:
    put("[")
    for part in parts:
        if isinstance(part, ast.AST):
            _write(part, put)
        else:
            # A name, or None: `global`, a key of a dictionary after ``**``
            put(repr(part))
    put("]")


def _write_statements(statements: Sequence[ast.stmt], put: _Put) -> None:
    put("[")
    for statement in statements:
        _write_statement(statement, put)
    put("]")


def _write_statement(statement: ast.stmt, put: _Put) -> None:
    if isinstance(statement, ast.AnnAssign):
        if statement.value is not None:
            _write(ast.Assign([statement.target], statement.value), put)
    elif not _is_idle(statement):
        _write(statement, put)


def _write_class_body(node: ast.ClassDef, put: _Put) -> None:
    has_fields = bool(node.bases or node.decorator_list) or any(
        isinstance(part, ast.Name) and part.id == "__annotations__"
        for statement in node.body
        if isinstance(statement, ast.Assign)
        for part in ast.walk(statement.value)
    )
    put("[")
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and has_fields:
            _write_field(statement, put)
        elif not isinstance(statement, _FUNCTIONS) or not _SHOWN.fullmatch(statement.name):
            _write_statement(statement, put)
    put("]")


def _write_field(statement: ast.AnnAssign, put: _Put) -> None:
    """Write down an attribute that may be a field of a dataclass."""
    _write(statement, put)
    for part in ast.walk(statement.annotation):
        for name in (getattr(part, each, None) for each in ("id", "attr", "value")):
            for kind in _FIELD_KINDS:
                if isinstance(name, str) and kind in name:
                    put(kind)


def _is_idle(statement: ast.stmt) -> bool:
    """Tell whether a statement does nothing: a docstring, ``...``, ``pass``, names for types."""
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return not statement.orelse
        case ast.FunctionDef():
            return any(
                isinstance(d, ast.Name) and d.id == "overload" for d in statement.decorator_list
            )
        case _:
            return type(statement).__name__ == "TypeAlias"
