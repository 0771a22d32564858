"""Builds the wheels: ``make wheels``.

For each target one for every Python from 3.11 on (the stable ABI, which PyO3 calls abi3), and one
for free-threaded 3.14, as there is no stable ABI without the GIL before 3.15. That Python need not
be here: maturin knows what there is to know of it. zig compiles the C of dependencies and links
against the C library that a target names, so that neither a container nor a compiler for another
machine is needed. cargo-auditable records the crates in each extension.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.wheels.unwinder import linked_against

TARGETS = (
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
)
MUSL_TARGETS = ("x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl")
#: Program that maturin starts in the place of cargo
CARGO = Path(__file__).with_name("auditable_cargo.sh")
#: Pythons without the GIL that get a wheel of their own, as maturin names them
FREE_THREADED = ("python3.14t",)
#: The oldest C library that a wheel asks for: glibc 2.28 of 2018, musl 1.2 of 2021
GLIBC, MUSL = "manylinux_2_28", "musllinux_1_2"


def main() -> int:
    """Build what can be built here, and say what cannot; ends with 1 if a target is missing."""
    parser = argparse.ArgumentParser(prog="build", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("dist"))
    parser.add_argument("--musl", action="store_true", help="for musl, too")
    parser.add_argument("targets", nargs="*", help=f"default: {', '.join(TARGETS)}")
    chosen = parser.parse_args()
    targets = chosen.targets or [*TARGETS, *(MUSL_TARGETS if chosen.musl else ())]
    # maturin looks for zig where its Python is.
    tools = Path(sys.executable).parent
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CARGO": str(CARGO)}
    # They name the interpreter of another environment.
    for name in ("PYO3_PYTHON", "VIRTUAL_ENV"):
        environment.pop(name, None)
    build = [
        str(tools / "maturin"),
        "build",
        "--release",
        "--locked",
        "--zig",
        "--out",
        str(chosen.out),
    ]
    chosen.out.mkdir(parents=True, exist_ok=True)
    for old in chosen.out.glob("*.whl"):
        old.unlink()
    missing = [target for target in targets if not _has_target(target)]
    for target in targets:
        if target in missing:
            continue
        library = MUSL if "musl" in target else GLIBC
        command = [*build, "--target", target, "--compatibility", library]
        for interpreter in (None, *FREE_THREADED):
            print(f"Building for {target}, {interpreter or 'any Python'}", flush=True)
            whose = ["--interpreter", interpreter] if interpreter else []
            subprocess.run([*command, *whose], env=_linking(target, environment), check=True)
    for target in missing:
        print(f"Rust cannot build for {target} here: rustup target add {target}", file=sys.stderr)
    return 1 if missing else 0


def _linking(target: str, environment: dict[str, str]) -> dict[str, str]:
    """Add the options of the linker to an environment."""
    # The same one each time, or cargo would build everything again.
    folder = Path(environment.get("CARGO_TARGET_DIR", "target")).resolve() / "unwinder" / target
    folder.mkdir(parents=True, exist_ok=True)
    # Cargo takes the first of these that is there.
    names = ("RUSTFLAGS", f"CARGO_TARGET_{target.replace('-', '_').upper()}_RUSTFLAGS")
    name = next((name for name in names if name in environment), names[-1])
    options = [environment.get(name, ""), *linked_against(target, folder)]
    return {**environment, name: " ".join(options).strip()}


def _has_target(target: str) -> bool:
    """Tell whether there is a standard library for it, after asking rustup for one."""
    folder = subprocess.run(
        ["rustc", "--print", "target-libdir", "--target", target],
        capture_output=True,
        text=True,
        check=True,
    )
    if Path(folder.stdout.strip()).exists():
        return True
    if shutil.which("rustup") is None:
        return False
    asked = subprocess.run(["rustup", "target", "add", target], check=False, timeout=120)
    return asked.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
