"""Audit data of extensions: the built one, with a section that objcopy adds."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
import zipfile
import zlib
from pathlib import Path
from typing import Any

from backhaul import _native
from tests.documents.written import ROOT
from tests.wheels.audit_data import SECTION, linked_crates, wrong_with

EXTENSION = Path(_native.__file__)


def wheel_of(folder: Path, data: bytes | None) -> Path:
    """Return a wheel whose extension has a section with the data."""
    extension = folder / EXTENSION.name
    shutil.copy(EXTENSION, extension)
    if data is not None:
        (folder / "data").write_bytes(data)
        command = ["objcopy", f"--add-section={SECTION}={folder / 'data'}", str(extension)]
        subprocess.run(command, check=True)
    wheel = folder / "backhaul-1-cp311-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(extension, f"backhaul/{extension.name}")
    return wheel


def packed(packages: list[dict[str, Any]]) -> bytes:
    return zlib.compress(json.dumps({"packages": packages}).encode())


def locked(*names: str) -> list[dict[str, Any]]:
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    return [
        {"name": each["name"], "version": each["version"]} for each in lock if each["name"] in names
    ]


def test_crates_of_the_lock_pass_and_crates_of_the_build_do_not_count(tmp_path: Path) -> None:
    packages = locked("backhaul-python", "libc", "pyo3", "ring", "rustls")
    packages.append({"name": "cc", "version": "0.0.1", "kind": "build"})
    wheel = wheel_of(tmp_path, packed(packages))
    assert wrong_with(wheel) is None
    assert {name for name, _ in linked_crates(wheel)} == {
        "backhaul-python",
        "libc",
        "pyo3",
        "ring",
        "rustls",
    }


def test_extension_without_audit_data_is_named(tmp_path: Path) -> None:
    name = f"backhaul/{EXTENSION.name}"
    assert wrong_with(wheel_of(tmp_path, None)) == (
        f"has no audit data that can be read: {name} has no section {SECTION}"
    )


def test_audit_data_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for data in (b"not compressed", zlib.compress(b"[]"), zlib.compress(b"no JSON")):
        assert f"section {SECTION} of backhaul/" in str(wrong_with(wheel_of(tmp_path, data)))


def test_crates_that_differ_from_the_lock_are_named(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, packed([{"name": "libc", "version": "0.0.1"}]))
    assert wrong_with(wheel) == (
        "is linked from crates that Cargo.lock has not: [('libc', '0.0.1')]"
    )
    wheel = wheel_of(tmp_path, packed(locked("libc", "pyo3", "ring", "rustls")))
    assert wrong_with(wheel) == "has audit data without backhaul-python"
