"""A small real run, on what is here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from backhaul.cli import main
from backhaul_bench.random_array import Options, run

if TYPE_CHECKING:
    from tests.bench.conftest import RunJson


def test_each_architecture_is_measured_or_said_not_to_be_here(run_json: RunJson) -> None:
    report = run_json(
        "bench", "random-array", "--size", "600", "--chunks", "200", "--repetitions=1"
    )
    assert report["schema"] == "backhaul.bench.random-array/1"
    measured = [row["on"] for row in report["rows"]]
    assert measured[:3] == ["core", "threads", "workers"]
    for row in report["rows"]:
        assert len(row["sums"]) == 1
        assert row["seconds"][0] > 0
    cores = len(os.sched_getaffinity(0))
    assert [row["units"] for row in report["rows"][:3]] == [1, cores, cores]
    assert report["rows"][0]["times_as_fast"] == 1
    missing = {each["peer"]: each for each in report["missing"]}
    assert len(measured) + len(missing) == 5
    for name in ("one GPU", "all GPUs"):
        if name in missing:
            assert "no CuPy" in missing[name]["reason"] or "no GPU" in missing[name]["reason"]
            assert "cupy" in missing[name]["install"]


def test_the_table_tells_what_is_not_here() -> None:
    said = CliRunner().invoke(
        main,
        ["bench", "random-array", "--size", "200", "--chunks", "100", "--repetitions", "1",
         "--on", "core,gpu"],
    )  # fmt: skip
    assert said.exit_code == 0, said.output
    assert "one core" in said.output
    assert "one GPU" in said.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--on", "abacus"], "abacus"),
        (["--on", ""], "name at least one"),
        (["--chunks", "0"], "0 is not above 0"),
    ],
)
def test_what_cannot_be_computed_is_refused(arguments: list[str], message: str) -> None:
    said = CliRunner().invoke(main, ["bench", "random-array", *arguments])
    assert said.exit_code == 2
    assert message in said.output


def test_steps_are_told_with_how_many_are_left() -> None:
    steps: list[tuple[str, int]] = []
    options = Options(on=("core",), size=100, chunks=50, repetitions=2)
    run(options, on_step=lambda what, left: steps.append((what, left)))
    assert steps == [("one core: 1/2", 2), ("one core: 2/2", 1), ("done", 0)]
