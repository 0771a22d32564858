"""Checks the audit data of a wheel: the crates of the extension, in the extension itself.

cargo-auditable writes them into the section ``.dep-v0`` of what it links, as compressed JSON.
Scanners of known defects find the crates there after the metadata of a wheel is lost: in an image,
or in a copy of the shared library.
"""

from __future__ import annotations

import json
import struct
import tomllib
import zipfile
import zlib
from pathlib import Path
from typing import Final

__all__ = ["SECTION", "linked_crates", "wrong_with"]

SECTION: Final = ".dep-v0"
_LOCK: Final = Path(__file__).parents[2] / "Cargo.lock"
#: Crates that every extension is linked from
_LEAST: Final = frozenset({"backhaul-python", "libc", "pyo3", "ring", "rustls"})


def linked_crates(wheel: Path) -> set[tuple[str, str]]:
    """Return name and version of each crate that is linked into the extension of a wheel.

    Raises
    ------
    ValueError
        If the extension has no audit data, or none that can be read.
    """
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        data = _section(archive.read(name))
    if data is None:
        raise ValueError(f"{name} has no section {SECTION}")
    try:
        packages = json.loads(zlib.decompress(data))["packages"]
        return {
            (each["name"], each["version"])
            for each in packages
            if each.get("kind", "runtime") == "runtime"
        }
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"section {SECTION} of {name}: {error!r}") from None


def _section(elf: bytes) -> bytes | None:
    """Return the section of the audit data of an ELF file of 64 bits; None if it has none."""
    (headers,) = struct.unpack_from("<Q", elf, 0x28)
    size, number, names = struct.unpack_from("<3H", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", elf, headers + at * size) for at in range(number)]
    strings = sections[names][4]
    for name, _, _, _, offset, length in sections:
        end = elf.index(b"\0", strings + name)
        if elf[strings + name : end] == SECTION.encode():
            return elf[offset : offset + length]
    return None


def wrong_with(wheel: Path) -> str | None:
    """Return what is wrong with the audit data of a wheel; None if nothing is."""
    try:
        linked = linked_crates(wheel)
    except ValueError as error:
        return f"has no audit data that can be read: {error}"
    lock = tomllib.loads(_LOCK.read_text(encoding="utf-8"))
    locked = {(each["name"], each["version"]) for each in lock["package"]}
    if linked - locked:
        return f"is linked from crates that Cargo.lock has not: {sorted(linked - locked)}"
    missing = _LEAST - {name for name, _ in linked}
    return f"has audit data without {', '.join(sorted(missing))}" if missing else None
