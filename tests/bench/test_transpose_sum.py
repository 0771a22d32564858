"""A small real run over both protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from backhaul.cli import main

if TYPE_CHECKING:
    from tests.bench.conftest import RunJson


def test_both_protocols_and_one_process_compute_the_same_sums(run_json: RunJson) -> None:
    report = run_json(
        *("bench", "transpose-sum", "--size", "1600", "--chunks", "1250KiB", "--repeats=2"),
        *("--against", "one-process-recycled"),
    )
    assert report["schema"] == "backhaul.bench.transpose-sum/2"
    assert report["options"]["chunks"] == 400
    assert report["equal"] is True
    names = [row["configuration"] for row in report["rows"]]
    assert names == ["tcp", "backhaul", "one process, recycled"]
    assert report["lanes"] == dict(zip(names, (["tcp"], ["shm"], []), strict=True))
    for row in report["rows"]:
        assert len(row["sums"]) == len(row["seconds"]) == 2
        assert 0 < row["seconds_min"] <= row["seconds_median"] <= row["seconds_max"]
        assert {pair["receiver"] for pair in row["bandwidths"]} <= {"w0", "w1"}
        assert row["cpu_seconds"]["client"][0] > 0
    tcp, backhaul, one_process = report["rows"]
    assert min(tcp["moved_bytes_median"], backhaul["moved_bytes_median"]) > 0
    assert one_process["moved_bytes_median"] == 0
    assert one_process["cpu_seconds"]["workers"] == [0, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chunks", "0"], "0 is not above 0"),
        (["--chunks", "4B"], "less than 8 bytes"),
        (["--chunks", "many"], "'many' is not a size"),
        (["--against", "luck"], "'luck' is not one of: one-process, one-process-recycled"),
        (["--protocols", ","], "name at least one protocol"),
    ],
)
def test_a_bad_option_is_named_with_what_is_allowed(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["bench", "transpose-sum", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
