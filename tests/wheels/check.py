"""Checks what is to be published, and tries the wheel of this machine: ``make wheels``.

auditwheel says which C library a wheel asks for, abi3audit whether it keeps to the stable ABI,
twine whether its metadata can be shown, `unwinder` whose unwinder it has, `sbom` whether it lists
its crates, `audit_data` whether its extension does. Then each wheel is installed into a new
environment of each Python that is found for it, with the extra ``dask``, and ``smoke.py`` and
``unwinder.py`` run there; without an emulator ``readme.py``, too.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.wheels import audit_data, sbom, unwinder
from tests.wheels.pythons import Python, found

SMOKE = Path(__file__).with_name("smoke.py")
README = Path(__file__).with_name("readme.py")
#: Tags that a wheel may ask for
ALLOWED = re.compile(r"(manylinux_2_(\d+)|musllinux_1_2)_\w+")
GLIBC_MAX = 28


def main(folder: Path) -> int:
    """Check all in a folder; ends with 1 if anything is wrong."""
    wheels, sources = sorted(folder.glob("backhaul-*.whl")), sorted(folder.glob("*.tar.gz"))
    benches = sorted(folder.glob("backhaul_bench-*.whl"))
    if not wheels or len(benches) != 1:
        print(f"{folder} has no wheel of Backhaul, or not one of its benchmarks", file=sys.stderr)
        return 1
    wrong = [wheel.name for wheel in wheels if not _keeps_its_word(wheel)]
    for wheel in wheels:
        for part in (unwinder, sbom, audit_data):
            if (said := part.wrong_with(wheel)) is not None:
                wrong.append(f"{wheel.name} {said}")
    tools = Path(sys.executable).parent
    stable = [wheel for wheel in wheels if "-abi3-" in wheel.name]
    if stable and not _runs([tools / "abi3audit", "--strict", "--summary", *stable]):
        wrong.append("abi3audit")
    if not _runs([tools / "twine", "check", "--strict", *wheels, *benches, *sources]):
        wrong.append("twine")
    tried = 0
    unfit = set(wheels)
    for python in found():
        fitting = [wheel for wheel in wheels if _fits(wheel, python)]
        if not fitting:
            print(f"{python}: no wheel for it")
            continue
        tried += 1
        unfit -= set(fitting)
        if not _works(fitting[0], benches[0], python):
            wrong.append(f"{fitting[0].name} under {python}")
    for wheel in sorted(unfit):
        print(f"not run, as no Python here takes it: {wheel.name}")
    for each in wrong:
        print(f"wrong: {each}", file=sys.stderr)
    print(f"{len(wheels)} wheels, {tried} Pythons: {'wrong' if wrong else 'all is well'}")
    return 1 if wrong or not tried else 0


def _keeps_its_word(wheel: Path) -> bool:
    """Tell whether a wheel asks for no newer C library than its name says."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    # It breaks its lines by the length of the name.
    words = " ".join(shown.stdout.split())
    said = re.search(r'consistent with the following platform tag: "(\w+)"', words)
    print(f"{wheel.name}: {said[1] if said else shown.stdout + shown.stderr}")
    if said is None or not (allowed := ALLOWED.fullmatch(said[1])):
        return False
    return allowed[2] is None or int(allowed[2]) <= GLIBC_MAX


def _fits(wheel: Path, python: Python) -> bool:
    _, _, tag, abi, system = wheel.stem.split("-")
    if not system.endswith(python.machine) or "musl" in system:
        return False
    if python.is_free_threaded:
        return abi == f"cp{python.version[0]}{python.version[1]}t"
    return abi == "abi3" and int(tag.removeprefix("cp3")) <= python.version[1]


def _works(wheel: Path, bench: Path, python: Python) -> bool:
    """Install both into a new environment, and run what is to work there.

    README's blocks are left out where an emulator would take minutes for each.
    """
    with tempfile.TemporaryDirectory() as folder:
        ours = Path(folder) / "bin" / "python"
        install: list[str | Path] = [
            ours,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        return (
            _runs([python.path, "-m", "venv", folder])
            and _runs([*install, f"{wheel.resolve()}[dask]", bench.resolve()])
            and _runs([ours, "-I", SMOKE])
            and _runs([ours, "-I", Path(unwinder.__file__).resolve(), "--run"])
            and (not python.is_native or _runs([ours, "-I", README]))
        )


def _runs(command: Sequence[str | Path]) -> bool:
    return subprocess.run(command, check=False, timeout=1800).returncode == 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
