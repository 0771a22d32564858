"""The summary of `make test`: read from what pytest and cargo print, and never better than that."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests import parts

CARGO = """
running 3 tests
test ring::a_full_ring_refuses ... ok
test ring::a_long_one ... ignored, takes minutes
test ring::a_torn_write_is_found ... FAILED

failures:
    ring::a_torn_write_is_found

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
"""

TESTS = """
import pytest

def test_right(): pass

def test_wrong(): assert False

@pytest.mark.skip(reason="no such device")
def test_elsewhere(): pass
"""


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LOGS", tmp_path / "logs")


def printing(text: str, status: int = 0) -> list[str]:
    return [sys.executable, "-c", f"import sys; print({text!r}); sys.exit({status})"]


def total(out: str) -> str:
    """Return the counts of the last line of a summary, which ends with times."""
    counts, _, times = out.splitlines()[-1].partition("; ")
    assert re.fullmatch(r"\d+\.\d min \(\d+\.\d of CPU\)", times)
    return counts


def test_pytest_is_understood(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", str(tmp_path)]
    assert parts.run("python", command) == 1
    part = parts.read("python")
    assert dict(part.counts) == {"passed": 1, "failed": 1, "skipped": 1}
    assert [failure.rsplit("::")[-1] for failure in part.failures] == ["test_wrong"]
    assert dict(part.skipped) == {"no such device": 1}
    assert not part.has_passed


def test_cargo_is_understood() -> None:
    assert parts.run("rust", printing(CARGO * 2, 101)) == 101
    part = parts.read("rust")
    assert dict(part.counts) == {"passed": 2, "failed": 2, "skipped": 2}
    assert part.failures == ["ring::a_torn_write_is_found"]
    assert dict(part.skipped) == {"takes minutes": 2}


def test_what_did_not_say_what_it_ran_has_failed(capfd: pytest.CaptureFixture[str]) -> None:
    assert parts.run("fine", printing("== 3 passed in 1.20s ==")) == 0
    assert parts.run("empty", printing("== no tests ran in 0.01s ==", 5)) == 5
    assert parts.run("broken", printing("error: could not compile", 101)) == 101
    assert parts.main(["summary", "fine", "empty", "broken", "absent"]) == 1
    out, _ = capfd.readouterr()
    assert "fine         ok     3 passed, 0 failed, 0 skipped" in out
    assert re.search(r"^fine .* \d+\.\d min \(\d+\.\d of CPU\)$", out, re.MULTILINE)
    assert "exit status 101: error: could not compile" in out
    assert "it did not end: it was not begun" in out
    assert total(out) == "total: 3 passed, 3 failed, 0 skipped"


def test_the_summary_fits_a_screen() -> None:
    failing = "\n".join(f"FAILED tests/test_x.py::test_{number} - no" for number in range(500))
    skipped = "\n".join(f"SKIPPED [1] tests/test_x.py:3: reason {n}" for n in range(50))
    parts.run("many", printing(f"{skipped}\n{failing}\n== 500 failed, 50 skipped in 99.00s ==", 1))
    lines = parts.summary([parts.read("many")]).splitlines()
    assert len(lines) < 30
    assert lines[-2].strip().startswith("and 480 more")


def test_what_a_part_took_of_processors_counts_what_it_started() -> None:
    busy = "import time\nwhile time.process_time() < 1.2: pass"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    assert parts.run("busy", [sys.executable, "-c", nested]) == 0
    assert parts.read("busy").cpu_seconds >= 1


def test_the_tests_that_take_most_of_the_processors_are_named() -> None:
    for name, costs in {"one": (3, 70), "other": (12, 1)}.items():
        costly = "\n".join(f"CPU {cost}.5 s: tests/test_x.py::test_{cost}" for cost in costs)
        parts.run(name, printing(f"{costly}\n== 2 passed in 99.00s =="))
    lines = parts.summary([parts.read("one"), parts.read("other")]).splitlines()
    assert [line.rpartition("_")[2] for line in lines[3:-1]] == ["70", "12", "3", "1"]
    assert "70.5 s of CPU: tests/test_x.py::test_70" in lines[3]


def test_the_processor_time_of_a_test_and_of_its_fixtures_is_counted(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(COUNTING)
    (tmp_path / "test_some.py").write_text(BUSY)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)]
    assert parts.run("busy", command) == 0
    (first, of_test), (second, of_fixtures) = parts.read("busy").costly
    assert of_test.endswith("test_some.py::test_busy")
    assert of_fixtures.startswith("fixtures of ")
    assert first >= 1
    assert second >= 0.6


def test_all_is_well_where_all_passed() -> None:
    parts.run(
        "fine", printing("1 failed in a test of tests\n=== 12 passed in 61.20s (0:01:01) ===")
    )
    assert parts.main(["summary", "fine"]) == 0
    assert parts.main(["nonsense"]) == 2


COUNTING = """
from tests.processor_times import ProcessorTimes

def pytest_configure(config):
    config.pluginmanager.register(ProcessorTimes())
"""

HANGS = """
from tests.hangs import Hangs, add_option

pytest_addoption = add_option

def pytest_configure(config):
    config.pluginmanager.register(Hangs())
"""

BUSY = """
import subprocess, sys, time
import pytest

@pytest.fixture
def busy():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.7: pass"])

def test_busy(busy):
    until = time.process_time() + 1.2
    while time.process_time() < until: pass
"""


RARE = """
import os, sys

def test_rare(number):
    assert sys.argv[1:][-1].endswith("]"), "among others"

def test_wrong(number):
    assert number == 2, "always"
"""

CONFTEST = """
def pytest_generate_tests(metafunc):
    metafunc.parametrize("number", [1], ids=["with a space"])
"""


def test_a_failure_that_passes_alone_is_unsteady(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(parts, "AGAIN_RUNS", 1)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(RARE)
    command = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider"]
    assert parts.run("rare", [*command, "-k", "test_rare or not wrong"]) == 1
    assert parts.main(["summary", "rare"]) == 0
    out, _ = capfd.readouterr()
    assert "rare: unsteady, passes alone: test_some.py::test_rare[with a space]" in out
    assert "AssertionError: among others" in out
    assert total(out) == "total: 0 passed, 0 failed, 0 skipped, 1 unsteady"
    assert parts.run("both", command) == 1
    assert parts.main(["summary", "both"]) == 1
    out, _ = capfd.readouterr()
    assert "both: test_some.py::test_wrong[with a space]" in out
    assert total(out) == "total: 0 passed, 1 failed, 0 skipped, 1 unsteady"


HANGING = """
import threading
import pytest

def test_wrong(): assert False, "before"

@pytest.mark.timeout(0.1)
@pytest.mark.parametrize("name", ["with a space"])
def test_hanging(name): wait_for_ever()

def test_right(): pass

def wait_for_ever():
    threading.Event().wait()
"""


def test_one_that_hangs_is_one_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(parts, "AGAIN_MAX", 0)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    (tmp_path / "conftest.py").write_text(HANGS)
    (tmp_path / "test_some.py").write_text(HANGING)
    (tmp_path / "test_then.py").write_text("def test_right(): pass")
    command = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider"]
    assert parts.run("hanging", [*command, "--timeout-method=thread"]) == 1
    part = parts.read("hanging")
    assert part.hung == ["test_some.py::test_hanging[with a space]"]
    assert {kind: part.counts[kind] for kind in ("passed", "failed")} == {"passed": 2, "failed": 2}
    assert "in wait_for_ever" in (parts.LOGS / "hanging.log").read_text()
    assert parts.main(["summary", "hanging"]) == 1
    out, _ = capfd.readouterr()
    assert "hanging: hangs: test_some.py::test_hanging[with a space]" in out
    assert part.error_of(part.hung[0]) == ["Hangs: no end after 0 s"]


def test_the_error_of_a_rust_test_is_shown() -> None:
    panic = """
---- ring::a_torn_write_is_found stdout ----

thread 'ring::a_torn_write_is_found' (12) panicked at src/ring.rs:3:5:
assertion `left == right` failed
"""
    parts.run("rust", printing(CARGO + panic, 101))
    assert "assertion `left == right` failed" in parts.summary([parts.read("rust")])
    assert parts.command_again(parts.Part("rust", command=["cargo", "test"]), "ring::x") == [
        "cargo",
        "test",
        "--",
        "--exact",
        "ring::x",
    ]
