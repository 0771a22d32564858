"""Native classes and functions have in `help()` the text of their stubs."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import backhaul
from backhaul import _native

STUBS = sorted((Path(backhaul.__file__).parent / "_stubs").glob("*.pyi"))
STUBBED = [node for path in STUBS for node in ast.parse(path.read_text(encoding="utf-8")).body]
DOCUMENTED = (ast.ClassDef, ast.FunctionDef)

#: Documented by the data model of Python, or for notebooks alone
SPECIAL = "_"


def definitions() -> list[tuple[str, str | None]]:
    found = []
    for node in STUBBED:
        if isinstance(node, DOCUMENTED):
            found.append((node.name, ast.get_docstring(node)))
        if isinstance(node, ast.ClassDef):
            found += [
                (f"{node.name}.{member.name}", ast.get_docstring(member))
                for member in node.body
                if isinstance(member, ast.FunctionDef) and not member.name.startswith(SPECIAL)
            ]
    return found


def native(name: str) -> Any:
    found: Any = _native
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize(("name", "text"), definitions())
def test_help_says_what_the_stub_says(name: str, text: str | None) -> None:
    assert text, f"{name} has no docstring in the stub"
    assert inspect.getdoc(native(name)) == text


def test_everything_native_is_in_the_stub() -> None:
    names = {name for name, _ in definitions()}
    classes = [getattr(_native, name) for name in _native.__all__ if name[0].isupper()]
    there = {
        f"{each.__name__}.{member}"
        for each in classes
        if isinstance(each, type)
        for member in vars(each)
        if not member.startswith(SPECIAL)
    }
    assert there <= names


@pytest.mark.parametrize("name", ["Endpoint.send", "Context.connect", "Request.wait", "Arena.take"])
def test_help_shows_the_parameters(name: str) -> None:
    (member,) = (
        node
        for each in STUBBED
        if isinstance(each, ast.ClassDef) and each.name == name.partition(".")[0]
        for node in each.body
        if isinstance(node, ast.FunctionDef) and node.name == name.partition(".")[2]
    )
    arguments = member.args
    wanted = [each.arg for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
    assert list(inspect.signature(native(name)).parameters) == wanted
