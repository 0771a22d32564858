"""Reads another release of Dask, and says which of the sources that ours rest on are others in it.

    make dask-release VERSION=2026.8.0      what is on the index, into target/dask/2026.8.0
    make dask-release VERSION=/some/folder  a folder that holds ``dask`` and ``distributed``

Nothing of that release is imported, because it may no longer have what ours imports: its sources
are parsed. They are compared with those of the release that is installed here, which was read. The
program prints each function that does something else, with its difference, and the names of
``compat/names.py`` that are gone; changed comments, docstrings, annotations and formatting are left
out (`backhaul.dask.compat.normalized_source`). With ``--write``, which says that the differences
were read, it adds the digests to ``digests.json`` and ``digests_by_file.json`` in
``python/backhaul/dask/compat``. Ends with 1 where
anything has to be read, 2 where there is nothing to compare, else 0.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import inspect
import json
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from backhaul.dask.compat import digests
from backhaul.dask.compat import names as names_module
from backhaul.dask.compat.digests import DIGESTS
from backhaul.dask.compat.function_origin import source_of
from backhaul.dask.compat.instance_patches import INSTANCE_PATCHES, REQUIREMENTS
from backhaul.dask.compat.normalized_source import digest_of, text_hash
from backhaul.dask.compat.patching import Patch, Requirement
from backhaul.dask.compat.process_patches import PATCHES

__all__ = ["Source", "changes", "gone", "main", "sources", "write_digests"]

#: Packages of a release
PACKAGES = ("dask", "distributed")

#: The tables of `write_digests` and `write_digests_of_files`
DIGESTS_BY_NAME = Path(digests.__file__).with_suffix(".json")
DIGESTS_BY_FILE = Path(digests.__file__).with_name("digests_by_file.json")

_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}


@dataclass(frozen=True)
class Source:
    """A function, class or module of Dask's that ours rest on."""

    module: str
    #: Empty for the module itself
    name: str
    #: As lists of patches name it
    names: tuple[str, ...]
    #: Patches that replace and rely on it, for people
    used_by: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module

    @property
    def digests(self) -> set[str]:
        """The digests of what was read."""
        return {digest for name in self.names for digest in DIGESTS.get(name, ())}

    def file_in(self, folder: Path) -> Path:
        """Name its file in the sources of a release."""
        path = folder.joinpath(*self.module.split("."))
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")

    def found_in(self, folder: Path) -> tuple[str, str]:
        """Return its text and its digest in the sources of a release; empty if it is not there.

        The text is that of the last definition of that name with its decorators.
        """
        file = self.file_in(folder)
        if not file.exists():
            return "", ""
        text, tree = _parsed(file)
        found: Any = tree
        for name in filter(None, self.name.split(".")):
            named = [d for d in _definitions(found) if d.name == name]
            if not named:
                return "", ""
            found = named[-1]
        if found is not tree:
            first = min(each.lineno for each in (found, *found.decorator_list)) - 1
            text = "".join(text.splitlines(keepends=True)[first : found.end_lineno])
        return text, _digest(found)


@dataclass(frozen=True)
class Change:
    """A source that is another one than was read."""

    source: Source
    before: str
    after: str
    #: To add, once the source was read; empty if the source is gone
    digest: str

    @property
    def is_known(self) -> bool:
        """Return whether its present source has been read."""
        return self.digest in self.source.digests

    def __str__(self) -> str:
        if not self.after:
            said = "is gone"
        elif self.is_known:
            said = f"differs, and was read: {self.digest}"
        else:
            said = "has to be read"
        lines = [f"{self.source} {said}", f"    used by {', '.join(self.source.used_by)}"]
        difference = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), "as read", "as it is", lineterm=""
        )
        return "\n".join([*lines, *(f"    {line}" for line in difference)])


def sources() -> list[Source]:
    """List what ours rest on, by its place in Dask."""
    names: dict[tuple[str, str], set[str]] = {}
    used_by: dict[tuple[str, str], list[str]] = {}
    replaced: tuple[Patch | Requirement, ...] = (*PATCHES, *INSTANCE_PATCHES, *REQUIREMENTS)
    for patch in replaced:
        for named in patch.read:
            source = source_of(named)
            source = inspect.unwrap(source) if callable(source) else source
            place = (
                (source.__name__, "")
                if inspect.ismodule(source)
                else (source.__module__, source.__qualname__)
            )
            names.setdefault(place, set()).add(named)
            users = used_by.setdefault(place, [])
            if str(patch) not in users:
                users.append(str(patch))
    return [
        Source(module, name, tuple(sorted(known)), tuple(used_by[module, name]))
        for (module, name), known in sorted(names.items())
    ]


def changes(before: Path, after: Path) -> list[Change]:
    """Compare two releases, each a folder that holds ``dask`` and ``distributed``."""
    found = []
    for source in sources():
        # Sources of other libraries belong to their own releases.
        if source.module.split(".")[0] not in PACKAGES:
            continue
        text_before, digest_before = source.found_in(before)
        text_after, digest = source.found_in(after)
        if digest != digest_before:
            found.append(Change(source, text_before, text_after, digest))
    return found


def write_digests(folder: Path, file: Path = DIGESTS_BY_NAME) -> None:
    """Add the digests of a release to the table, and drop what no patch rests on."""
    table: dict[str, tuple[str, ...]] = {}
    for source in sources():
        digest = source.found_in(folder)[1]
        for name in source.names:
            known = DIGESTS.get(name, ())
            table[name] = known if digest in known or not digest else (*known, digest)
    _write(table, file)


def _write(table: Mapping[str, object], file: Path) -> None:
    """Write a table with a line for each key."""
    lines = (
        f"{json.dumps(key)}: {json.dumps(table[key], sort_keys=True)}" for key in sorted(table)
    )
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def digests_of_files(folder: Path) -> dict[str, dict[str, str]]:
    """Return the digests of a release by the hash of a file, and the name in it.

    Names that a file defines several times are left out.
    """
    found: dict[str, dict[str, str]] = {}
    for source in sources():
        digest = source.found_in(folder)[1]
        file = source.file_in(folder)
        if digest and _times_defined(file)[source.name] <= 1:
            found.setdefault(text_hash(_parsed(file)[0]), {})[source.name] = digest
    return found


def write_digests_of_files(folder: Path, file: Path = DIGESTS_BY_FILE) -> None:
    """Add those digests of a release to the table."""
    table = json.loads(file.read_text("utf-8")) if file.exists() else {}
    _write(table | digests_of_files(folder), file)


def gone(after: Path) -> list[str]:
    """List the names that `backhaul.dask.compat.names` imports and a release does not have."""
    _, tree = _parsed(Path(names_module.__file__).with_suffix(".pyi"))
    missing = []
    for statement in ast.walk(tree):
        if not isinstance(statement, ast.ImportFrom) or statement.module is None:
            continue
        if statement.module.split(".")[0] not in PACKAGES:
            continue
        path = after.joinpath(*statement.module.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        there = set(_names(_parsed(file)[1])) if file.exists() else set()
        for alias in statement.names:
            is_module = (path / f"{alias.name}.py").exists() or (path / alias.name).is_dir()
            if alias.name not in there and not is_module:
                missing.append(f"{statement.module}.{alias.name}")
    return missing


def main(arguments: list[str] | None = None) -> int:
    """Say what is different in another release."""
    parser = argparse.ArgumentParser(prog="new_release", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="holds dask and distributed of that release")
    parser.add_argument(
        "--against",
        type=Path,
        default=Path(dask.__file__).parent.parent,
        help="the same of a release that was read (default: what is installed here)",
    )
    parser.add_argument(
        "--write", action="store_true", help="the differences were read: add the digests"
    )
    chosen = parser.parse_args(arguments)
    for folder in (chosen.folder, chosen.against):
        for package in PACKAGES:
            if not (folder / package / "__init__.py").exists():
                print(f"{folder} does not hold the sources of {package}", file=sys.stderr)
                return 2
    changed = changes(chosen.against, chosen.folder)
    missing = gone(chosen.folder)
    for change in changed:
        print(change, end="\n\n")
    for name in missing:
        print(f"{name} is gone, and names.py imports it")
    if chosen.write:
        write_digests(chosen.folder)
        write_digests_of_files(chosen.folder)
    unread = [change for change in changed if not change.is_known]
    print(
        f"{_release(chosen.folder)} against {_release(chosen.against)}: "
        f"of {len(sources())} sources "
        f"{len(changed)} differ, {len(unread)} have to be read; {len(missing)} names are gone"
    )
    return 1 if unread or missing else 0


def _release(folder: Path) -> str:
    """Name a release by what its installer left."""
    found = sorted(folder.glob("distributed-*.dist-info"))
    return found[-1].name.removesuffix(".dist-info").replace("-", " ") if found else str(folder)


@functools.cache
def _parsed(file: Path) -> tuple[str, ast.Module]:
    text = file.read_text("utf-8")
    return text, _tree(text)


@functools.cache
def _tree(text: str) -> ast.Module:
    """Parse a text, once for all releases that have the same."""
    return ast.parse(text)


@functools.cache
def _times_defined(file: Path) -> Counter[str]:
    """Count the definitions of each name in a file."""
    return Counter(_qualified(_parsed(file)[1], ""))


def _qualified(within: ast.AST, before: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(within):
        if isinstance(child, _DEFINITIONS):
            name = before + child.name
            yield name
            inner = f"{name}." if isinstance(child, ast.ClassDef) else f"{name}.<locals>."
            yield from _qualified(child, inner)
        else:
            yield from _qualified(child, before)


@functools.cache
def _digest(found: ast.AST) -> str:
    return digest_of(found)


def _definitions(within: ast.AST) -> Iterator[Any]:
    """List functions and classes of a module or class, as this Python would define them."""
    for child in ast.iter_child_nodes(within):
        if isinstance(child, _DEFINITIONS):
            yield child
        elif isinstance(child, ast.If) and (holds := _holds(child.test)) is not None:
            yield from _definitions(ast.Module(child.body if holds else child.orelse, []))
        elif isinstance(child, (ast.If, ast.Try, ast.ExceptHandler, ast.With)):
            yield from _definitions(child)


def _holds(test: ast.expr) -> bool | None:
    """Tell whether a condition on the version of Python holds here; None of any other one."""
    match test:
        case ast.Compare(
            left=ast.Attribute(value=ast.Name(id="sys"), attr="version_info"),
            ops=[operation],
            comparators=[ast.Tuple() as version],
        ) if type(operation) in _COMPARISONS:
            compare = _COMPARISONS[type(operation)]
            return compare(sys.version_info[:], ast.literal_eval(version))
        case _:
            return None


def _names(within: ast.AST) -> Iterator[str]:
    """List the names that a module has: defined, assigned or imported."""
    for child in ast.iter_child_nodes(within):
        if isinstance(child, _DEFINITIONS):
            yield child.name
        elif isinstance(child, (ast.Import, ast.ImportFrom)):
            for alias in child.names:
                yield alias.asname or alias.name.split(".")[0]
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        else:
            yield from _names(child)


if __name__ == "__main__":
    sys.exit(main())
