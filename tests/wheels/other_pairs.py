"""The Python tests with the pairs of Python and Dask that `make test` leaves out: `make test-all`.

`make test` has the oldest Dask on the Python that builds, and the newest Dask on the newest Python
here. An environment of each of the other two stays in ``target/pythons``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests import parts
from tests.wheels import pythons

#: Tests that differ between versions of Python; the rest is Rust, or starts programs of its own
TESTS = ("tests/dask", "tests/native", "tests/ucp", "tests/commands")


def main() -> int:
    """Install, run and sum up; ends with 1 if anything failed, 2 without another Python."""
    parser = argparse.ArgumentParser(prog="other_pairs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--newest", type=Path, help="that Python, instead of the newest here")
    parser.add_argument("tests", nargs="*", default=TESTS, help="what to run on the newest Python")
    chosen = parser.parse_args()
    found = pythons.newer()
    newest: Path | None = chosen.newest or (found.path if found else None)
    if newest is None:
        print(
            "no newer Python than this one is here: BACKHAUL_PYTHONS names some, by path",
            file=sys.stderr,
        )
        return 2
    names = [
        run("newest-python", newest, "dev", chosen.wheel, chosen.tests),
        run("newest-dask", Path(sys.executable), "newest", chosen.wheel, ["tests/dask"]),
    ]
    return parts.main(["summary", *names])


def run(name: str, python: Path, requirements: str, wheel: Path, tests: list[str]) -> str:
    """Run the tests in an environment of their own; gives the name of the part."""
    target = Path(os.environ.get("CARGO_TARGET_DIR") or "target")
    environment = (target / "pythons" / name).resolve()
    ours = environment / "bin" / "python"
    subprocess.run([python, "-m", "venv", "--clear", environment], check=True)
    pip: list[str | Path] = [ours, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    required = f"requirements/hashed/{requirements}.txt"
    subprocess.run([*pip, "--require-hashes", f"--requirement={required}"], check=True)
    # And the benchmarks, whose simulator tests of Dask use
    built = target / "pythons" / "bench-wheel"
    flit: list[str | Path] = [sys.executable, "-m", "flit_core.wheel", "--outdir", built, "python"]
    subprocess.run(flit, check=True)
    wheels = [wheel, *built.glob("*.whl")]
    subprocess.run([*pip, "--no-deps", "--force-reinstall", *wheels], check=True)
    pytest = [str(ours), "-m", "pytest", "-o", f"cache_dir={environment}/pytest_cache", *tests]
    # Programs that tests start by name are those of this environment.
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{ours.parent}{os.pathsep}{before}"
    parts.run(name, pytest)
    os.environ["PATH"] = before
    return name


if __name__ == "__main__":
    sys.exit(main())
