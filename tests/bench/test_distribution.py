"""The benchmarks are a distribution; Backhaul works without, and then names it in one line."""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from flit_core import buildapi

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "python"
#: Modules of Backhaul that import its benchmarks
IMPORTERS = {Path("cli.py")}
#: Starts the command where nothing finds the distribution
WITHOUT_BENCH = """
import sys
from importlib.machinery import PathFinder

found = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name == "backhaul_bench" else found(name, *more)
from backhaul.cli import main

main(sys.argv[1:])
"""


def without_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_BENCH, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("p2p", "--lane", "shm")])
def test_without_the_distribution_one_line_says_how_to_get_it(arguments: tuple[str, ...]) -> None:
    done = without_bench("bench", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: the benchmarks are in the package backhaul-bench, which is not installed: "
        "pip install 'backhaul[bench]' (with --find-links dist for the wheels of `make wheel`)\n"
    )


def test_without_the_distribution_the_other_commands_work() -> None:
    assert "arena" in without_bench("info", "--json").stdout
    listed = without_bench("--help").stdout
    assert "needs the package backhaul-bench" in listed


def test_backhaul_imports_no_benchmark() -> None:
    importers = set()
    for path in sorted((PYTHON / "backhaul").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] == "backhaul_bench" for name in names):
                importers.add(path.relative_to(PYTHON / "backhaul"))
    assert importers == IMPORTERS


def test_wheels_share_no_file_and_the_benchmarks_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(PYTHON)
    wheel = zipfile.ZipFile(tmp_path / buildapi.build_wheel(str(tmp_path)))
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    sources = sorted(path for path in PYTHON.glob("backhaul_bench/**/*") if path.suffix == ".py")
    assert packed == {
        "backhaul_bench/py.typed",
        *(str(path.relative_to(PYTHON)) for path in sources),
    }
    with tarfile.open(tmp_path / buildapi.build_sdist(str(tmp_path))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names == packed | {"pyproject.toml", "PKG-INFO", "LICENSE"}
    maturin = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["maturin"]
    assert maturin["python-packages"] == ["backhaul", "backhaul_default_scheme.py"]
    assert (PYTHON / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
