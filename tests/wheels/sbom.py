"""Checks the software bill of materials of a wheel: CycloneDX, with the crates of ``Cargo.lock``.

maturin writes it into ``*.dist-info/sboms/``, where PEP 770 has it.
"""

from __future__ import annotations

import json
import tomllib
import zipfile
from pathlib import Path
from typing import Final

__all__ = ["third_party", "wrong_with"]

_LOCK: Final = Path(__file__).parents[2] / "Cargo.lock"
#: Crates that every wheel is built from
_LEAST: Final = frozenset({"libc", "pyo3", "ring", "rustls"})


def third_party(wheel: Path) -> set[tuple[str, str]]:
    """Return name and version of each crate that is not of this workspace.

    Raises
    ------
    KeyError, ValueError
        If the wheel has no bill, several, or one of another format.
    """
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (
            name
            for name in archive.namelist()
            if ".dist-info/sboms/" in name and name.endswith(".cyclonedx.json")
        )
        bill = json.loads(archive.read(name))
    if bill["bomFormat"] != "CycloneDX":
        raise ValueError(f"its format is {bill['bomFormat']}")
    found = {(each["name"], each["version"]) for each in bill["components"]}
    return {(name, version) for name, version in found if not name.startswith("backhaul")}


def wrong_with(wheel: Path) -> str | None:
    """Return what is wrong with the bill of a wheel; None if nothing is."""
    try:
        listed = third_party(wheel)
    except (KeyError, ValueError) as error:
        return f"has no bill of materials that can be read: {error}"
    lock = tomllib.loads(_LOCK.read_text(encoding="utf-8"))
    locked = {(each["name"], each["version"]) for each in lock["package"]}
    if listed - locked:
        return f"lists crates that Cargo.lock has not: {sorted(listed - locked)}"
    missing = _LEAST - {name for name, _ in listed}
    return f"does not list {', '.join(sorted(missing))}" if missing else None
