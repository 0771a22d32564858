"""Runs a job on each of some releases of ``distributed``: `tests.dask.any_release` with each.

    python -m tests.dask.releases --wheel FILE [RELEASE ...]

An environment for each release stays in ``target/releases``. Ends with 1 if a job failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

__all__ = ["RELEASES", "main"]

#: Releases that ``make test-all`` tries, the oldest supported one first
RELEASES: Final = (
    "2025.1.0",
    "2025.5.1",
    "2025.9.1",
    "2025.12.0",
    "2026.1.2",
    "2026.3.0",
    "2026.6.0",
    "2026.7.1",
    "2026.8.0",
)

#: Seconds for one release, whatever else the machine does
_TIMEOUT_S: Final = 900


def main() -> int:
    """Install each release beside the wheel, and run the job."""
    parser = argparse.ArgumentParser(prog="releases", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("releases", nargs="*", default=RELEASES)
    chosen = parser.parse_args()
    began = time.monotonic()
    passed = [_passes(release, chosen.wheel) for release in chosen.releases]
    failed = len(passed) - sum(passed)
    counts = f"{failed} failed, {sum(passed)} passed" if failed else f"{sum(passed)} passed"
    # As pytest closes, for `tests/parts.py`
    print(f"{counts} in {time.monotonic() - began:.2f}s")
    return 0 if all(passed) else 1


def _passes(release: str, wheel: Path) -> bool:
    target = Path(os.environ.get("CARGO_TARGET_DIR") or "target")
    environment = (target / "releases" / release).resolve()
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet"]
    pip.append("--disable-pip-version-check")
    subprocess.run([*pip, f"dask[array]=={release}", f"distributed=={release}"], check=True)
    subprocess.run([*pip, "--no-deps", "--force-reinstall", wheel], check=True)
    # The wheel is installed without its dependencies, so that they do not change the release.
    subprocess.run([*pip, "click", "rich", "numpy"], check=True)
    job: list[str | Path] = [python, "-m", "tests.dask.any_release"]
    # The wheel is tried, not the sources beside the tests.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        ended = subprocess.run(job, timeout=_TIMEOUT_S, env=environ, check=False)
    except subprocess.TimeoutExpired:
        print(f"distributed {release}: the job did not end within {_TIMEOUT_S} s", flush=True)
        return False
    print(f"distributed {release}: {'passed' if ended.returncode == 0 else 'failed'}", flush=True)
    return ended.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
