"""Digests of sources: what they leave out, and that each Python makes the same ones."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import subprocess
import textwrap
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import distributed
import pytest
from distributed import Client, Worker, batched

import dask
from backhaul.dask.compat import normalized_source
from backhaul.dask.compat.digests import DIGESTS
from backhaul.dask.compat.function_origin import source_of
from backhaul.dask.compat.normalized_source import (
    block_at,
    class_line,
    digest_of,
    parsed_digest,
    source_digest,
)
from backhaul.dask.compat.patching import READ_RELEASES
from tests.dask.new_release import DIGESTS_BY_FILE, digests_of_files
from tests.wheels.pythons import found

FUNCTION = '''
@decorated
async def submit(self, name: str, *rest: int, key: str | None = None, **named: bool) -> list[str]:
    """Return something."""
    # A comment
    total: int = 3
    later: str
    for each in rest:
        pass
        total += each
    text = """
not indented
"""
    return [name, text, f"{total!r:>{total}}", *map(str, named)]
'''
DATACLASS = '''
@dataclass
class Event:
    """An event."""

    key: str
    kind: ClassVar[str] = "event"
    fields: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        return self.key

    @property
    def first(self) -> int:
        return self.fields[0]
'''
MODULE = '''
"""A module."""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT: int = 10
'''


def digest(text: str) -> str:
    return digest_of(ast.parse(text))


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        (FUNCTION, "# A comment", "# Another comment\n\n    # and one more"),
        (
            FUNCTION,
            '"""Return something."""',
            '"""Return another thing.\n\n    In two lines.\n    """',
        ),
        (FUNCTION, "name: str,", "name: Key,"),
        (FUNCTION, "*rest: int, key: str | None = None", "*rest, key=None"),
        (FUNCTION, " -> list[str]", ""),
        (FUNCTION, "total: int = 3", "total = 3"),
        (FUNCTION, "    later: str\n", ""),
        (FUNCTION, "        pass\n", ""),
        (FUNCTION, "[name, text,", "[\n        name,\n        text,"),
        (FUNCTION, "total += each", "total += (each)  # type: ignore[operator]"),
        (DATACLASS, "key: str", "key: Key"),
        (DATACLASS, "list[int]", "List[int]"),
        (DATACLASS, "return self.key", "return f'<Event {self.key}>'"),
        (MODULE, '"""A module."""', '"""A module that is described at length."""'),
        (MODULE, "import Callable", "import Callable, Iterator"),
        (MODULE, "LIMIT: int = 10", "LIMIT = 10"),
    ],
)
def test_a_change_without_an_effect_keeps_the_digest_of_a_source(
    text: str, before: str, after: str
) -> None:
    assert before in text
    assert digest(text.replace(before, after)) == digest(text)


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        (FUNCTION, "total: int = 3", "total: int = 4"),
        (FUNCTION, "total: int = 3", "total: int = True"),
        (FUNCTION, "key: str | None = None", "key: str | None = ''"),
        (FUNCTION, "*rest: int, key", "key"),
        (FUNCTION, "@decorated\n", ""),
        (FUNCTION, "async def", "def"),
        (FUNCTION, "submit(", "submits("),
        (FUNCTION, "not indented", " not indented"),
        (FUNCTION, "!r", "!s"),
        (FUNCTION, "        total += each", "    total += each"),
        (FUNCTION, "total += each", "total -= each"),
        (DATACLASS, "    key: str\n", ""),
        (DATACLASS, "key: str", "key: str = ''"),
        (DATACLASS, "kind: ClassVar[str]", "kind: str"),
        (DATACLASS, "fields[0]", "fields[1]"),
        (DATACLASS, "@dataclass", "@dataclass(slots=True)"),
        (MODULE, "import sys\n", ""),
        (MODULE, "LIMIT: int = 10", "LIMIT: int = 11"),
    ],
)
def test_a_change_of_behaviour_changes_the_digest_of_a_source(
    text: str, before: str, after: str
) -> None:
    assert before in text
    assert digest(text.replace(before, after)) != digest(text)


def test_a_plain_class_may_declare_attributes_and_one_that_reads_them_may_not() -> None:
    plain = "class A:\n    key: str\n    def f(self): ...\n"
    assert digest(plain) == digest(plain.replace("    key: str\n", ""))
    slots = plain + "    __slots__ = tuple(__annotations__)\n"
    assert digest(slots) != digest(slots.replace("    key: str\n", ""))


def test_a_block_ends_where_its_statement_ends() -> None:
    indented = textwrap.indent(FUNCTION.replace("not indented", "no indent"), "    ")
    indented = indented.replace('    no indent\n    """', 'no indent\n"""')
    text = f"class A:\n{indented}\n    # The next\n    def g(self): ...\n\nx = 1\n"
    lines = text.splitlines(keepends=True)
    (whole,) = (each for each in ast.parse(text).body if isinstance(each, ast.ClassDef))
    assert digest_of(block_at(lines, lines.index("    @decorated\n"))) == digest_of(whole.body[0])
    assert digest_of(block_at(lines, 0)) == digest_of(whole)
    with pytest.raises(SyntaxError):
        block_at(["def f(\n", "    a,\n"], 0)


@functools.cache
def parts_of(file: str) -> dict[int, ast.AST]:
    """Return each function and class of a file, by its first line."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {
        min(each.lineno for each in (part, *part.decorator_list)) - 1: part
        for part in ast.walk(ast.parse(Path(file).read_text("utf-8")))
        if isinstance(part, kinds)
    }


def test_every_source_of_dask_has_the_digest_of_its_part_of_the_whole_file() -> None:
    """A block that is parsed alone has the digest of its part of the tree of the file."""
    for name in DIGESTS:
        source = inspect.unwrap(source_of(name))
        file = inspect.getsourcefile(source)
        assert file is not None
        if inspect.ismodule(source):
            part: ast.AST = ast.parse(inspect.getsource(source))
        else:
            line = class_line(source) if isinstance(source, type) else inspect.findsource(source)[1]
            assert line is not None
            part = parts_of(file)[line]
        assert source_digest(source) == digest_of(part) in DIGESTS[name], name
        again = ast.parse(ast.unparse(part))
        assert digest_of(again if inspect.ismodule(source) else again.body[0]) == digest_of(part)


def test_the_source_of_a_class_is_found_as_inspect_finds_it() -> None:
    read = map(source_of, DIGESTS)
    classes = {source for source in read if isinstance(source, type)}
    assert len(classes) > 5
    for each in (*classes, Worker, Client):
        assert class_line(each) == inspect.findsource(each)[1]
    assert source_digest(type("Worker", (), {"__module__": "nowhere"})) == ""
    assert source_digest(3) == ""


_PRINT = """
import ast, importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("normalized", sys.argv[1])
normalized = importlib.util.module_from_spec(spec)
spec.loader.exec_module(normalized)
for file in sys.argv[2:]:
    print(normalized.digest_of(ast.parse(pathlib.Path(file).read_text("utf-8"))))
"""


def test_each_python_makes_the_same_digests() -> None:
    installed = Path(dask.__file__).parent.parent
    files = sorted((installed / "distributed").glob("*.py")) + sorted(installed.glob("dask/*.py"))
    assert len(files) > 80
    own = [digest(file.read_text("utf-8")) for file in files]
    others = [python for python in found() if python.is_native]
    assert others
    for python in others:
        command = [
            str(python.path),
            "-I",
            "-c",
            _PRINT,
            normalized_source.__file__,
            *map(str, files),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        assert ended.stdout.split() == own, python


@pytest.mark.skipif(
    distributed.__version__ not in READ_RELEASES, reason="another release than those that were read"
)
def test_the_table_of_files_has_the_digests_of_what_is_installed() -> None:
    folder = Path(dask.__file__).parent.parent
    table = json.loads(DIGESTS_BY_FILE.read_text("utf-8"))
    by_file = digests_of_files(folder)
    assert len(by_file) > 20
    assert {file: table.get(file) for file in by_file} == by_file
    for source in map(source_of, DIGESTS):
        assert source_digest(source) == parsed_digest(source), source


def test_a_file_that_was_not_read_is_parsed(tmp_path: Path) -> None:
    read = inspect.getsource(batched)
    changed = tmp_path / "changed.py"
    before = "self.message_count += len("
    assert before in read
    changed.write_text(read.replace(before, "self.message_count -= len("), "utf-8")
    spec = spec_from_file_location("changed_batched", changed)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    digests = {
        name: source_digest(getattr(module.BatchedSend, name))
        for name in ("send", "_background_send")
    }
    known = {name: DIGESTS[f"BatchedSend.{name}"] for name in digests}
    assert [name for name in digests if digests[name] in known[name]] == ["_background_send"]
