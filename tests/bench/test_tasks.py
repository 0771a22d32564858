"""Small real runs of every case: their figures mean nothing, their form and their end do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from backhaul.cli import main

if TYPE_CHECKING:
    from tests.bench.conftest import RunJson

ROLES = {"client", "scheduler", "workers"}


def processes_with(word: bytes) -> set[int]:
    """Find the processes whose command line holds a word."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in path.read_bytes():
                found.add(int(path.parent.name))
        except OSError:
            continue  # it ended meanwhile
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again: what ends here announces nothing."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def check_row(row: dict[str, Any], *, repetitions: int) -> None:
    assert len(row["us"]) == repetitions
    assert 0 < row["us_min"] <= row["us_median"] <= row["us_max"]
    assert row["ratio"] > 0
    assert set(row["cpu_us"]) == set(row["context_switches"]) == ROLES
    for median, minimum, maximum in row["cpu_us"].values():
        assert 0 < minimum <= median <= maximum


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the benchmark work in a folder that is in the command line of its processes."""
    # Short: the path of a socket lies in it.
    with tempfile.TemporaryDirectory(prefix="bh-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_every_case_runs_over_both_protocols_and_leaves_nothing(
    run_json: RunJson, scratch: Path
) -> None:
    report = run_json("bench", "tasks", "--tasks", "21", "--repetitions", "2", "--saturation=1.1")
    assert report["schema"] == "backhaul.bench.tasks/1"
    assert set(report) == {"schema", "machine", "versions", "options", "rows", "lanes", "profiles"}
    cases = {row["case"]: row["tasks"] for row in report["rows"]}
    singles = dict.fromkeys(("map", "chain", "tree", "submit", "submit-impure", "submit-chain"), 21)
    assert cases == {**singles, "all-to-all": 20}
    pairs = [(row["case"], row["configuration"]) for row in report["rows"]]
    assert pairs == [(case, name) for case in cases for name in ("tcp", "backhaul")]
    for row in report["rows"]:
        check_row(row, repetitions=2)
        assert row["ratio"] == pytest.approx(1) or row["configuration"] == "backhaul"
    assert report["lanes"] == {"tcp": ["tcp"], "backhaul": ["shm"]}
    assert not processes_with(os.fsencode(scratch))
    assert not list(scratch.iterdir())


def test_a_benchmark_that_is_killed_takes_its_processes_with_it(scratch: Path) -> None:
    command = [sys.executable, "-m", "backhaul.cli", "bench", "tasks", "--protocol", "tcp"]
    with subprocess.Popen(
        [*command, "--case", "map", "--tasks", "100000"], stderr=subprocess.DEVNULL
    ) as benchmark:
        wait_until(lambda: len(processes_with(os.fsencode(scratch))) >= 4)
        benchmark.kill()
    wait_until(lambda: not processes_with(os.fsencode(scratch)))


def test_saturations_and_functions_pickled_by_value_reach_the_cluster(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    arguments = (
        *("bench", "tasks", "--case", "map", "--tasks", "8", "--protocol", "tcp://"),
        *("--saturation", "1.1,20", "--function", "lambda", "--repetitions", "1"),
        *("--workers", "1", "--threads", "2", "--json", str(file)),
    )
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "tcp, saturation 20" in result.output
    report = json.loads(file.read_text())
    assert [row["configuration"] for row in report["rows"]] == ["tcp", "tcp, saturation 20"]
    assert report["options"]["function"] == "lambda"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--case", "map,fold"],
            "'fold' is not one of: map, chain, tree, all-to-all, submit, submit-impure, "
            "submit-chain",
        ),
        (["--case", ","], "name at least one"),
        (["--tasks", "0"], "0 is not in the range"),
        (["--protocol", "carrier-pigeon"], "Dask knows no protocol 'carrier-pigeon'"),
        (["--protocol", ","], "name at least one protocol"),
        (["--saturation", "1.1,0"], "0 is not above 0"),
        (["--saturation", "much"], "'much' is not a number"),
        (["--function", "class"], "'class' is not one of"),
        (["--json", "/nowhere/report.json"], "cannot write '/nowhere/report.json'"),
    ],
)
def test_a_bad_option_is_named_with_what_is_allowed(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["bench", "tasks", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
