"""The reference of the configuration: keys, defaults and meanings from ``backhaul-dask.yaml``.

The file has a comment behind each key, which goes on in lines of comment alone. The valid values of
a key are those that ``config/settings.py`` parses, and names in its errors.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from tests.documents.written import ROOT

__all__ = ["DEFAULTS", "entries", "flat", "page"]

ROOT_KEY = "distributed.comm.backhaul"

SOURCES = ROOT / "python" / "backhaul" / "dask"
DEFAULTS = SOURCES / "backhaul-dask.yaml"

#: Keys that are read by others than ``_read`` and ``_require`` of ``config/settings.py``
ALLOWED_ELSEWHERE = {
    "secret": "16 to 1024 bytes of text",
    "secret-file": "a path",
    "contact-host": "a host",
    "contact-interface": "a name of a network interface",
    "resources": "a mapping of names to counts, amounts, lists of ids, or `all`",
}

#: Kinds of values in the errors of ``config/settings.py``, and in the page
KINDS = {
    "true or false": "boolean",
    "a size like '64MiB'": "size",
    "a time like '50us' or '5s'": "time",
    "a whole number": "integer",
}

#: How items are broken into lines
WRAPPED: dict[str, Any] = {"subsequent_indent": "  ", "break_on_hyphens": False}

_LINE = re.compile(r"^( *)([a-z-]+): *(.*?)(?: *# (.*))?$")

HEAD = """# Configuration

Every key of [`backhaul-dask.yaml`](../../python/backhaul/dask/backhaul-dask.yaml): kind of value,
default, meaning. A key is set in a file below `~/.config/dask`, by `dask.config.set` before the
cluster starts, or as an environment variable: `distributed.comm.backhaul.spin` is
`DASK_DISTRIBUTED__COMM__BACKHAUL__SPIN`, with `_` for each hyphen.

A size is like `64MiB`, a time like `50us` or `5s`. A default of `null` leaves the choice to
Backhaul. An invalid value raises `ValueError` with the key, the value and what is allowed. Values
are read when a listener or a comm is made. See also [tuning](../guides/tuning.md) and
[limits](../operations.md).
"""


@dataclass
class Key:
    """One key of the file."""

    name: str
    default: str
    comment: list[str] = field(default_factory=list)

    @property
    def meaning(self) -> str:
        text = " ".join(self.comment)
        return re.sub(r"\bdocs/(\S+?\.md)", lambda found: f"[{found[1]}](../{found[1]})", text)


def entries() -> Iterator[tuple[Key, bool]]:
    """List keys in their order, and whether each is a section rather than a value."""
    above: list[tuple[int, str]] = []
    last: Key | None = None
    listed: list[tuple[Key, bool]] = []
    for line in DEFAULTS.read_text(encoding="utf-8").splitlines():
        if line.lstrip().startswith("#"):
            if last is not None:
                last.comment.append(line.strip(" #"))
            continue
        found = _LINE.match(line)
        assert found, f"a line that is no key: {line!r}"
        indent, name, default, comment = len(found[1]), found[2], found[3], found[4]
        above = [each for each in above if each[0] < indent]
        last = Key(".".join([*(each[1] for each in above), name]), default)
        if comment:
            last.comment.append(comment)
        above.append((indent, name))
        listed.append((last, not default))
    yield from listed


def allowed() -> dict[str, str]:
    """Return what ``config/settings.py`` allows for each key, in the words of its errors."""
    tree = ast.parse((SOURCES / "config" / "settings.py").read_text(encoding="utf-8"))
    words: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_ALLOWED":
            assert isinstance(node.value, ast.Dict)
            for name, text in zip(node.value.keys, node.value.values, strict=True):
                assert name is not None
                words[ast.unparse(name)] = ast.literal_eval(text)
    said = dict(ALLOWED_ELSEWHERE)
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name(id="_read" | "_require"),
                args=[ast.Constant(value=str(key)), ast.Name(id=parse)],
            ) if parse in words:
                said[key] = words[parse]
            case ast.Call(
                func=ast.Name(id="_limit"),
                args=[ast.Constant(value=str(section)), ast.Constant(value=str(key))],
            ):
                said[f"{section}.{key}"] = words["_count"]
    return said


def page() -> str:
    """Write the page: a list for each section, in the order of the file."""
    said = allowed()
    meanings = {"distributed.comm.backhaul": "", "backhaul": ""}
    rows: dict[str, list[str]] = {name: [] for name in meanings}
    for key, is_section in entries():
        if is_section:
            if key.name not in ("distributed", "distributed.comm"):
                meanings[key.name] = key.meaning
                rows.setdefault(key.name, [])
            continue
        section, _, last = key.name.rpartition(".")
        below = key.name.removeprefix(f"{ROOT_KEY}.").removeprefix("backhaul.")
        may_be = said.get(below)
        if may_be is None:
            assert isinstance(yaml.safe_load(key.default), bool), f"{key.name}: what may it be?"
            may_be = "true or false"
        kind = KINDS.get(may_be, may_be)
        item = f"- `{last}` ({kind}, `{key.default}`): {key.meaning}"
        rows[section].append(textwrap.fill(item, 100, **WRAPPED))
    rows["backhaul"] = rows.pop("backhaul")  # last
    parts = [HEAD]
    for section, listed in rows.items():
        below = section.removeprefix(f"{ROOT_KEY}.")
        parts.append(f"## {below}\n")
        if below != section:
            sentence = ". ".join(filter(None, [f"Below `{section}`", meanings[section]]))
            parts.append(textwrap.fill(sentence, 100, **WRAPPED).replace("\n  ", "\n") + "\n")
        parts += [*listed, ""]
    return "\n".join(parts)


def flat(tree: Any, above: str = "") -> Iterator[str]:
    """List the keys of a tree that have values."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}"
