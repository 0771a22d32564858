"""The Python tests on the newest Python here, with each release of Dask: `make test-all`.

`make test` has the oldest one with both. An environment of each pair stays in ``target/pythons``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests import parts
from tests.wheels.pythons import Python, found

RELEASES = {"oldest": "run", "newest": "newest"}
#: What differs between versions of Python; the rest is Rust, or starts programs of its own
TESTS = ("tests/dask", "tests/native", "tests/ucp", "tests/commands")


def main() -> int:
    """Install, run and sum up; ends with 1 if anything failed, 2 without another Python."""
    parser = argparse.ArgumentParser(
        prog="newest_python", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("tests", nargs="*", default=TESTS, help="what to run of the tests")
    chosen = parser.parse_args()
    others = [python for python in found() if python.is_native and not python.is_free_threaded]
    others = [python for python in others if python.version[:2] != sys.version_info[:2]]
    if not others:
        print(
            "no other Python than this one is here: BACKHAUL_PYTHONS names some, by path",
            file=sys.stderr,
        )
        return 2
    names = [run(others[-1], release, chosen.wheel, chosen.tests) for release in RELEASES]
    print(parts.summary(names))
    return 0 if all(parts.read(name).has_passed for name in names) else 1


def run(python: Python, release: str, wheel: Path, tests: list[str]) -> str:
    """Run the tests in an environment of their own; gives the name of the part."""
    name = f"{python.name}-{release}"
    target = Path(os.environ.get("CARGO_TARGET_DIR") or "target")
    environment = (target / "pythons" / name).resolve()
    ours = environment / "bin" / "python"
    if not ours.exists():
        subprocess.run([python.path, "-m", "venv", environment], check=True)
    pip: list[str | Path] = [ours, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    required = [f"requirements/{RELEASES[release]}.txt", "requirements/test.txt"]
    subprocess.run([*pip, *(f"--requirement={file}" for file in required)], check=True)
    subprocess.run([*pip, "--no-deps", "--force-reinstall", wheel], check=True)
    pytest = [str(ours), "-m", "pytest", "-o", f"cache_dir={environment}/pytest_cache", *tests]
    # Programs that tests start by name are those of this environment.
    os.environ["PATH"] = f"{ours.parent}{os.pathsep}{os.environ['PATH']}"
    parts.run(name, pytest)
    return name


if __name__ == "__main__":
    sys.exit(main())
