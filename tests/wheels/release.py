"""Release rehearsal: ``make release-check`` does what a release does, except for the uploads.

    python -m tests.wheels.release [STEP …]

Each step prints its time. A step that needs a tool that is absent is reported as left out, with
the reason. Without names all steps run; the names are those of `STEPS`, in their order.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["STEPS", "LeftOut", "disagreements", "main", "notes"]

ROOT: Final = Path(__file__).resolve().parents[2]
TOOLS: Final = Path(sys.executable).parent
#: Conda's names of packages that the index for pip calls otherwise
CONDA_NAMES: Final = {"dask": "dask-core"}
IMAGE: Final = "backhaul:release-check"
HEALTH_TIMEOUT_S: Final = 120.0


class LeftOut(Exception):
    """A step cannot run on this machine; the message has the reason."""


class Failed(Exception):
    """A step has found a mistake."""


def disagreements(root: Path, tags: Sequence[str]) -> list[str]:
    """List the files whose version differs from that of ``Cargo.toml``.

    Parameters
    ----------
    root : Path
        The checkout.
    tags : sequence of str
        Tags of the commit that is to be released. One that begins with ``v`` has to name the
        version.
    """
    cargo = tomllib.loads((root / "Cargo.toml").read_text())["workspace"]
    version: str = cargo["package"]["version"]
    lock = tomllib.loads((root / "Cargo.lock").read_text())["package"]
    found = {
        f"Cargo.toml, dependency {name}": entry["version"]
        for name, entry in cargo["dependencies"].items()
        if "path" in entry and "version" in entry
    }
    found |= {
        f"Cargo.lock, {package['name']}": package["version"]
        for package in lock
        if "source" not in package
    }
    for name, pattern in (
        ("recipe/recipe.yaml", r'^  version: "(.+)"$'),
        ("CITATION.cff", r"^version: (.+)$"),
        ("CHANGELOG.md", r"^## \[(\d.*?)\]"),
        ("python/pyproject.toml", r'^version = "(.+)"$'),
        ("python/pyproject.toml, dependency backhaul", r'"backhaul==(.+)"'),
    ):
        text = (root / name.partition(",")[0]).read_text()
        match = re.search(pattern, text, re.MULTILINE)
        found[name] = match[1] if match else "absent"
    found |= {f"tag {tag}": tag.removeprefix("v") for tag in tags if tag.startswith("v")}
    return [
        f"{where}: {other}, not {version}" for where, other in found.items() if other != version
    ]


def notes(changelog: str, version: str) -> str:
    """Return the section of a version, which becomes the text of the release.

    Raises
    ------
    ValueError
        If there is no such section, or an empty one.
    """
    pattern = rf"^## \[{re.escape(version)}\].*?\n(.*?)(?=^## |\Z)"
    match = re.search(pattern, changelog, re.MULTILINE | re.DOTALL)
    if match is None or not match[1].strip():
        raise ValueError(f"CHANGELOG.md has no section [{version}]")
    return match[1].strip() + "\n"


def _versions() -> None:
    """Compare versions, tag and changelog; refuse changes that are not committed."""
    changed = _output("git", "status", "--porcelain", "--untracked-files=no")
    if changed:
        raise Failed(f"not committed:\n{changed}")
    tags = _output("git", "tag", "--points-at", "HEAD").split()
    if wrong := disagreements(ROOT, tags):
        raise Failed("\n".join(wrong))
    try:
        notes((ROOT / "CHANGELOG.md").read_text(), _version())
    except ValueError as error:
        raise Failed(str(error)) from None
    _run("cargo", "metadata", "--locked", "--format-version=1", "--no-deps", quiet=True)


def _recipe() -> None:
    """Render the conda recipe, and compare what it needs with ``pyproject.toml``."""
    try:
        import rattler_build
    except ImportError:
        raise LeftOut("rattler-build is not installed: requirements/wheels.txt") from None
    compilers = {"c_compiler": ["gcc"], "rust_compiler": ["rust"], "c_stdlib": ["sysroot"]}
    recipe = rattler_build.Stage0Recipe.from_file(ROOT / "recipe" / "recipe.yaml")
    (rendered,) = recipe.render(rattler_build.VariantConfig(compilers))
    needs = rendered.recipe.to_dict()["requirements"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wrong = [
        f"recipe.yaml: {key} of conda are {sorted(theirs)}, of pip {sorted(ours)}"
        for key, theirs, ours in (
            ("run", _pairs(needs["run"]), _conda([*project["dependencies"], _python(project)])),
            (
                "run_constraints",
                _pairs(needs["run_constraints"]),
                _conda(project["optional-dependencies"]["dask"]),
            ),
        )
        if theirs != ours
    ]
    if wrong:
        raise Failed("\n".join(wrong))


def _python(project: dict[str, Any]) -> str:
    return f"python{project['requires-python']}"


def _conda(requirements: Sequence[str]) -> set[tuple[str, str]]:
    # The notes are printed by a Python that has no packages.
    from packaging.requirements import Requirement

    parsed = [Requirement(text) for text in requirements]
    return {(CONDA_NAMES.get(each.name, each.name), str(each.specifier)) for each in parsed}


def _pairs(specs: Sequence[str]) -> set[tuple[str, str]]:
    return {(name, rest.strip()) for name, _, rest in (spec.partition(" ") for spec in specs)}


def _crates() -> None:
    """Package the crates for crates.io and build each from its package."""
    _run("cargo", "publish", "--workspace", "--dry-run", "--locked", "--quiet")


def _sdist() -> None:
    """Build the source distribution, and the wheel from it without a network."""
    _run("make", "--no-print-directory", "sdist")


def _wheels() -> None:
    """Build the wheels, check them, and try those that a Python here takes."""
    _run("make", "--no-print-directory", "wheels")


def _extras() -> None:
    """Install a wheel without extras, then what messages of Backhaul tell to install."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "bin" / "python"
        _run(sys.executable, "-m", "venv", folder)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run(*pip, str(_wheel()))
        asked = subprocess.run(
            [python, "-c", "import backhaul.dask"], capture_output=True, text=True
        )
        advice = re.search(r"pip install 'backhaul\[dask\]'", asked.stderr)
        if asked.returncode == 0 or advice is None:
            raise Failed(f"backhaul.dask without Dask does not say what to install: {asked.stderr}")
        _run(*pip, "backhaul[dask]")
        _run(str(python), "-I", str(Path(__file__).with_name("smoke.py")))
        bench = [str(python.with_name("backhaul")), "bench", "p2p", "--sizes=8", "--rounds=1"]
        asked = subprocess.run(bench, capture_output=True, text=True)
        if "pip install 'backhaul[bench]' (with --find-links dist" not in asked.stderr:
            raise Failed(f"the absent benchmarks do not say what to install: {asked.stderr}")
        _run(*pip, "--find-links", str(ROOT / "dist"), "backhaul[bench]")
        _run(*bench, quiet=True)


def _image() -> None:
    """Check the Dockerfile; with buildah and a base image, build it and run its health check."""
    hadolint = shutil.which("hadolint", path=f"{TOOLS}{os.pathsep}{os.environ['PATH']}")
    if hadolint is None:
        raise LeftOut("hadolint is not installed: requirements/wheels.txt")
    _run(hadolint, str(ROOT / "Dockerfile"))
    if not _works("buildah", "info"):
        raise LeftOut("the Dockerfile is well-formed, but buildah does not run here")
    base = os.environ.get("BACKHAUL_IMAGE_BASE")
    if base is None and not _works("buildah", "pull", "--quiet", _base()):
        raise LeftOut("the base of the image cannot be pulled; BACKHAUL_IMAGE_BASE names another")
    _wheel()
    chosen = [f"--build-arg=BASE={base}"] if base else []
    _run("buildah", "build", "--format=docker", "--quiet", *chosen, "--tag", IMAGE, str(ROOT))
    container = _output("buildah", "from", IMAGE)
    inside = ["buildah", "run", container, "--"]
    try:
        config = json.loads(_output("buildah", "inspect", IMAGE))["Docker"]["config"]
        user = config.get("User", "root")
        if user.partition(":")[0] in ("", "0", "root"):
            raise Failed("processes of the image belong to root")
        with subprocess.Popen([*inside, *config["Cmd"]], stderr=subprocess.PIPE) as scheduler:
            try:
                _wait_for_health([*inside, *config["Healthcheck"]["Test"][1:]], scheduler)
                print(f"the image answers its health check as user {user}")
            finally:
                scheduler.terminate()
    finally:
        _run("buildah", "rm", container, quiet=True)


def _base() -> str:
    """Return the base that the Dockerfile names."""
    (base,) = re.findall(r"^ARG BASE=(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return str(base)


def _wait_for_health(check: list[str], scheduler: subprocess.Popen[bytes]) -> None:
    """Repeat a health check until it passes."""
    deadline = time.monotonic() + HEALTH_TIMEOUT_S
    while scheduler.poll() is None and time.monotonic() < deadline:
        if _works(*check):
            return
        time.sleep(0.5)
    ended = scheduler.poll()
    state = "runs" if ended is None else f"ended with {ended}"
    raise Failed(f"the health check of the image fails while its scheduler {state}")


def _works(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _wheel() -> Path:
    """Return the wheel in ``dist`` that this Python takes, after building one if there is none."""
    for _ in range(2):
        found = sorted((ROOT / "dist").glob("backhaul-*-abi3-*x86_64.whl"))
        if found:
            return found[0]
        _run("make", "--no-print-directory", "wheel")
    raise Failed("make wheel leaves no wheel in dist")


def _version() -> str:
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())
    return str(cargo["workspace"]["package"]["version"])


def _output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _run(*command: str, quiet: bool = False) -> None:
    # They name the interpreter of another environment.
    unnamed = ("PYO3_PYTHON", "VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS")
    environment = {name: text for name, text in os.environ.items() if name not in unnamed}
    output = subprocess.DEVNULL if quiet else None
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=output, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}")


#: In this order: mistakes that are found soon come first
STEPS: Final[dict[str, Callable[[], None]]] = {
    "versions": _versions,
    "recipe": _recipe,
    "crates": _crates,
    "sdist": _sdist,
    "wheels": _wheels,
    "extras": _extras,
    "image": _image,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; ends with 1 if any has found a mistake."""
    parser = argparse.ArgumentParser(prog="release", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--notes", action="store_true", help="print the notes of this version")
    parser.add_argument("steps", nargs="*", choices=[*STEPS, []], metavar="STEP")
    parsed = parser.parse_args(arguments)
    if parsed.notes:
        print(notes((ROOT / "CHANGELOG.md").read_text(), _version()), end="")
        return 0
    chosen = parsed.steps or list(STEPS)
    rows: list[tuple[str, float, str]] = []
    for name in chosen:
        print(f"== {name}", flush=True)
        began = time.monotonic()
        outcome = "passed"
        try:
            STEPS[name]()
        except LeftOut as reason:
            outcome = f"left out: {reason}"
        except Failed as reason:
            outcome = f"wrong: {reason}"
        rows.append((name, time.monotonic() - began, outcome))
    for name, seconds, outcome in rows:
        print(f"{name:10} {seconds:7.1f} s  {outcome}")
    return int(any(outcome.startswith("wrong") for _, _, outcome in rows))


if __name__ == "__main__":
    sys.exit(main())
