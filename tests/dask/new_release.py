"""Reads another release of Dask, and says which of the sources that ours rest on are others in it.

    make dask-release VERSION=2026.8.0      what is on the index, into target/dask/2026.8.0
    make dask-release VERSION=/some/folder  a folder that holds ``dask`` and ``distributed``

Nothing of that release is imported, as it may no longer have what ours imports: its sources are
read as text. They are compared with those of the release that is installed here, which was read by
somebody. It prints each changed function with its difference, the digests to add to
``patches.py``, ``instance_patches.py`` and ``resource_patches.py``, and the names of
``private.py`` that are gone. Ends with 1 where anything has to be read, 2 where there is nothing to
compare, else 0.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import hashlib
import inspect
import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from backhaul.dask import private
from backhaul.dask.instance_patches import INSTANCE_PATCHES
from backhaul.dask.patches import PATCHES
from backhaul.dask.patching import InstancePatch, Patch, as_dask_has_it

__all__ = ["Source", "changes", "gone", "main", "sources"]

#: What a release brings
PACKAGES = ("dask", "distributed")

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
    #: Digests of what was read
    digests: frozenset[str]
    #: What is replaced and rests on it, for people
    used_by: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module

    def text_in(self, folder: Path) -> str:
        """Read it in the sources of a release; ``""`` if it is not there.

        Gives what `inspect.getsource` would: the last definition of that name with its decorators.
        """
        path = folder.joinpath(*self.module.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if not file.exists():
            return ""
        text, tree = _parsed(file)
        if not self.name:
            return text
        found: Any = tree
        for name in self.name.split("."):
            named = [d for d in _definitions(found) if d.name == name]
            if not named:
                return ""
            found = named[-1]
        first = min(each.lineno for each in (found, *found.decorator_list)) - 1
        return "".join(inspect.getblock(text.splitlines(keepends=True)[first:]))


@dataclass(frozen=True)
class Change:
    """A source that is another one than was read."""

    source: Source
    before: str
    after: str

    @property
    def digest(self) -> str:
        """The digest to add, once it was read; ``""`` if the source is gone."""
        return _digest(self.after)

    @property
    def is_known(self) -> bool:
        """Tell whether somebody has read what it is now."""
        return self.digest in self.source.digests

    def __str__(self) -> str:
        if not self.after:
            said = "is gone"
        elif self.is_known:
            said = f"differs, and was read: {self.digest}"
        else:
            said = f"has to be read; then add {self.digest}"
        lines = [f"{self.source} {said}", f"    used by {', '.join(self.source.used_by)}"]
        difference = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), "as read", "as it is", lineterm=""
        )
        return "\n".join([*lines, *(f"    {line}" for line in difference)])


def sources() -> list[Source]:
    """List what ours rest on, by its place in Dask."""
    digests: dict[tuple[str, str], set[str]] = {}
    used_by: dict[tuple[str, str], list[str]] = {}
    replaced: tuple[Patch | InstancePatch, ...] = (*PATCHES, *INSTANCE_PATCHES)
    for patch in replaced:
        for named, known in patch.read.items():
            source = as_dask_has_it(private.resolve(named))
            source = inspect.unwrap(source) if callable(source) else source
            place = (
                (source.__name__, "")
                if inspect.ismodule(source)
                else (source.__module__, source.__qualname__)
            )
            digests.setdefault(place, set()).update({known} if isinstance(known, str) else known)
            users = used_by.setdefault(place, [])
            if str(patch) not in users:
                users.append(str(patch))
    return [
        Source(module, name, frozenset(known), tuple(used_by[module, name]))
        for (module, name), known in sorted(digests.items())
    ]


def changes(before: Path, after: Path) -> list[Change]:
    """Compare two releases, each a folder that holds ``dask`` and ``distributed``."""
    found = [
        Change(source, source.text_in(before), source.text_in(after))
        for source in sources()
        # What other libraries have is of their own releases.
        if source.module.split(".")[0] in PACKAGES
    ]
    return [change for change in found if change.before != change.after]


def gone(after: Path) -> list[str]:
    """List the names that `backhaul.dask.private` imports and a release does not have."""
    _, tree = _parsed(Path(private.__file__).with_suffix(".pyi"))
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
        print(f"{name} is gone, and private.py imports it")
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
    return text, ast.parse(text, str(file))


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


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12] if text else ""


if __name__ == "__main__":
    sys.exit(main())
