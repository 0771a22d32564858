"""Builds and imports what a source distribution holds, without a network: ``make sdist``.

Beside it, the build takes what ``cargo fetch`` has put into cargo's cache, a Rust toolchain, a C
compiler and maturin: `docs/decisions/0018`. The built wheel is imported and thrown
away, so that the compiler does not optimize.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Final

#: Cargo's profile for developers, under the name that maturin builds
QUICK: Final = {
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "256",
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "0",
}


def main(source: Path) -> None:
    """Build it, and import what was built in a new environment."""
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    for name in ("PYO3_PYTHON", "VIRTUAL_ENV"):
        environment.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        _fetch(unpacked)
        offline = {**environment, **QUICK, "CARGO_NET_OFFLINE": "true"}
        built = Path(folder) / "built"
        pip: list[str | Path] = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--disable-pip-version-check",
        ]
        pip += ["--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(built)]
        subprocess.run([*pip, source.resolve()], check=True, env=offline, cwd=folder)
        (wheel,) = built.iterdir()
        python = Path(folder) / "environment" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        install: list[str | Path] = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            wheel,
        ]
        subprocess.run(install, check=True)
        subprocess.run([python, "-I", "-c", "import backhaul"], check=True, cwd=folder)
        print(f"{source.name} builds without a network: {wheel.name}")


def _fetch(unpacked: Path) -> None:
    """Fetch the crates, in the versions of the lock file.

    Cargo takes the crates out of the lock file that the source distribution does not have, such as
    those for tests. Any other change is a mistake.
    """
    path = unpacked / "Cargo.lock"
    before = _versions(path)
    subprocess.run(["cargo", "fetch"], cwd=unpacked, check=True)
    if others := _versions(path) - before:
        raise AssertionError(f"not the versions of Cargo.lock: {sorted(others)}")


def _versions(lock: Path) -> set[tuple[str, str]]:
    packages = tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
    return {(package["name"], package["version"]) for package in packages}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
