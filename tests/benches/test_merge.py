"""A small real join over both protocols."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from benches.python.__main__ import main

if TYPE_CHECKING:
    from tests.benches.conftest import RunJson


def test_both_protocols_join_the_same_rows(run_json: RunJson) -> None:
    report = run_json(
        *("merge", "--chunks", "2", "--rows-per-worker", "1000"),
        *("--repetitions", "1"),
    )
    assert report["schema"] == "backhaul.benches.merge/2"
    found = [(row["case"], row["configuration"]) for row in report["rows"]]
    has_polars = importlib.util.find_spec("polars") is not None
    contenders = ["tcp", "backhaul", *(["polars"] if has_polars else [])]
    assert found == [("2", each) for each in contenders]
    for row in report["rows"]:
        assert row["parameters"]["partitions"] == 2 * int(row["case"])
        assert row["parameters"]["partitions"] * row["parameters"]["rows"] == 2000
        assert row["input_bytes"] == 2 * 2000 * 16
        assert 0 < row["seconds_min"] <= row["seconds_median"] <= row["seconds_max"]
        assert set(row["cpu_seconds"]) == {"client", "scheduler", "workers"}
    assert report["lanes"] == {"tcp": ["tcp"], "backhaul": ["shm"]}


def test_dataframes_in_files_are_joined(run_json: RunJson) -> None:
    report = run_json(
        *("merge", "--chunks", "2", "--rows-per-worker", "1000", "--repetitions", "1"),
        *("--parquet", "--memory-limit", "1GB", "--protocol", "backhaul"),
    )
    row = report["rows"][0]
    assert row["parameters"]["parquet"]
    assert row["seconds_min"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chunks", "1,0"], "0 is not above 0"),
        (["--chunks", "1.5"], "'1.5' is not a whole number"),
        (["--chunks", ","], "name at least one number"),
        (["--shuffle", "disk"], "'disk' is not one of"),
        (["--protocol", "smoke"], "Dask knows no protocol 'smoke'"),
    ],
)
def test_a_bad_option_is_named_with_what_is_allowed(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["merge", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
