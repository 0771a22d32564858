"""Requirements with hashes: writes ``requirements/hashed/*.txt`` from ``requirements/*.txt``.

    python -m tests.hashes

Each file of ``requirements/`` becomes one list of exact versions with the SHA-256 of every archive
that pip may choose on Linux (glibc, x86_64 and aarch64, the supported Pythons with and without the
GIL), and of the source distribution. ``make`` installs from these files, so pip refuses an archive
that has changed since. uv asks the package index; nothing is downloaded but metadata.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

__all__ = ["FOLDER", "SOURCES", "main", "pinned", "wanted"]

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "requirements" / "hashed"
#: Parts of other files, or of what is packed for a machine with a GPU: not installed alone
PARTS: Final = frozenset({"common.txt", "complete.txt", "gpu.txt", "test.txt"})
#: The oldest Python that is supported
OLDEST: Final = "3.11"
SOURCES: Final = [
    path for path in sorted((ROOT / "requirements").glob("*.txt")) if path.name not in PARTS
]
INTERPRETERS: Final = re.compile(r"py3|cp3\d|cp31[0-4]|py2")
PLATFORMS: Final = re.compile(r"any|(many)?linux.*_(x86_64|aarch64)")


def pinned(path: Path) -> Iterator[Requirement]:
    """Give the requirements of a file and of those that it names."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("-r "):
            yield from pinned(path.parent / line.removeprefix("-r "))
        elif line and not line.startswith("#"):
            yield Requirement(line)


def wanted(filename: str) -> bool:
    """Return whether pip may choose an archive on a machine that is supported."""
    if not filename.endswith(".whl"):
        return True
    *_, tags = parse_wheel_filename(filename)
    return any(
        INTERPRETERS.fullmatch(tag.interpreter) and PLATFORMS.fullmatch(tag.platform)
        for tag in tags
    )


def _hashes(requirements: list[Requirement]) -> dict[str, list[str]]:
    """Ask the index for the hashes of the archives of each requirement.

    A requirement of a requirement that is not listed is a mistake, because pip refuses it.
    """
    with tempfile.TemporaryDirectory() as folder:
        listed = "".join(f"  {str(each)!r},\n" for each in requirements)
        project = Path(folder) / "pyproject.toml"
        project.write_text(
            f'[project]\nname = "hashes"\nversion = "0"\nrequires-python = ">={OLDEST}"\n'
            f"dependencies = [\n{listed}]\n"
            "[tool.uv]\nenvironments = [\"sys_platform == 'linux'\"]\n"
        )
        environment = {name: text for name, text in os.environ.items() if name != "VIRTUAL_ENV"}
        command = [sys.executable, "-m", "uv", "lock", "--quiet", "--no-python-downloads"]
        subprocess.run(command, cwd=folder, env=environment, check=True)
        lock = tomllib.loads((Path(folder) / "uv.lock").read_text())
    found: dict[str, list[str]] = {}
    for package in lock["package"]:
        if package["name"] == "hashes":
            continue
        archives = [*package.get("wheels", []), *filter(None, [package.get("sdist")])]
        found[f"{package['name']}=={package['version']}"] = sorted(
            archive["hash"] for archive in archives if wanted(archive["url"].rpartition("/")[2])
        )
    return found


def main() -> int:
    """Write all files; ends with 1 where a file lacks a requirement of its packages."""
    FOLDER.mkdir(exist_ok=True)
    for source in SOURCES:
        requirements = sorted(pinned(source), key=lambda each: canonicalize_name(each.name))
        hashes = _hashes(requirements)
        listed = {f"{canonicalize_name(each.name)}{each.specifier}" for each in requirements}
        if missing := hashes.keys() - listed:
            print(f"{source.name} lacks {', '.join(sorted(missing))}", file=sys.stderr)
            return 1
        lines = [f"# Made of requirements/{source.name} by `make hashes`.\n"]
        for each in requirements:
            known = hashes[f"{canonicalize_name(each.name)}{each.specifier}"]
            parts = [str(each), *(f"--hash={digest}" for digest in known)]
            lines.append(" \\\n    ".join(parts) + "\n")
        (FOLDER / source.name).write_text("".join(lines), encoding="utf-8")
        print(f"{source.name}: {len(requirements)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
