"""The interpreters that run here and that Backhaul supports: one of each version and kind.

One for another processor is among them where it is named and the kernel has an emulator for it, as
QEMU's: see RELEASING.md. As a program it prints the path of the newest one, for `make`.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Python", "found", "newer"]

OLDEST = (3, 11)
NEWEST = (3, 14)

_ASK = """
import importlib.util, json, platform, sys, sysconfig
print(json.dumps([
    platform.python_implementation(),
    list(sys.version_info[:3]),
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    all(map(importlib.util.find_spec, ("ensurepip", "_ssl", "_ctypes"))),
    sys.executable,
    platform.machine(),
]))
"""


@dataclass(frozen=True, order=True)
class Python:
    """An interpreter."""

    version: tuple[int, int, int]
    is_free_threaded: bool
    path: Path
    #: The processor, as wheels name it
    machine: str = platform.machine()

    @property
    def name(self) -> str:
        """Such as ``3.13`` or ``3.14t``."""
        return f"{self.version[0]}.{self.version[1]}{'t' if self.is_free_threaded else ''}"

    @property
    def is_native(self) -> bool:
        """Tell whether it runs without an emulator."""
        return self.machine == platform.machine()

    def __str__(self) -> str:
        kind = "t" if self.is_free_threaded else ""
        whose = "" if self.is_native else f" for {self.machine}"
        return f"Python {'.'.join(map(str, self.version))}{kind}{whose}"


@functools.cache
def found() -> tuple[Python, ...]:
    """Find them, the oldest first; of two of one version and kind the newer one.

    Looks at those named in ``BACKHAUL_PYTHONS`` (paths, separated by colons), on the path, and at
    what pyenv has. Those without ``ensurepip``, SSL or ctypes are left out: no environment can be
    made with them, or filled.
    """
    pythons: dict[tuple[str, str], Python] = {}
    for path in _candidates():
        python = _asked(path)
        if python is None or not OLDEST <= python.version[:2] <= NEWEST:
            continue
        kind = (python.machine, python.name)
        if kind not in pythons or pythons[kind].version < python.version:
            pythons[kind] = python
    return tuple(sorted(pythons.values()))


def newer() -> Python | None:
    """Find the newest one with a GIL and without an emulator, if it is newer than this one."""
    usual = [each for each in found() if each.is_native and not each.is_free_threaded]
    newest = usual[-1] if usual else None
    return newest if newest and newest.version[:2] > sys.version_info[:2] else None


def _candidates() -> list[Path]:
    named = [Path(path) for path in os.environ.get("BACKHAUL_PYTHONS", "").split(":") if path]
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders += sorted(pyenv.glob("versions/*/bin"))
    on_path = [path for folder in folders for path in sorted(folder.glob("python3.[0-9]*"))]
    # Not python3.12-config, and nothing of the environment that this runs in
    return named + [
        path
        for path in on_path
        if path.name.removeprefix("python3.").rstrip("t").isdigit()
        and not (path.parent.parent / "pyvenv.cfg").exists()
    ]


def _asked(path: Path) -> Python | None:
    """Ask what it is; None if it does not answer, as pyenv's stand-ins, or can do too little."""
    try:
        answer = subprocess.run(
            [path, "-I", "-c", _ASK], capture_output=True, text=True, check=True, timeout=60
        )
        kind, version, is_free_threaded, is_whole, itself, machine = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    if kind != "CPython" or not is_whole:
        return None
    # Not the stand-in of pyenv that was asked
    return Python(tuple(version), is_free_threaded, Path(itself), machine)


if __name__ == "__main__":
    found_newer = newer()
    if found_newer is not None:
        print(found_newer.path)
