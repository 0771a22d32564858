"""A small real run over both protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.bench.conftest import RunJson


def test_both_protocols_compute_the_same_sums(run_json: RunJson) -> None:
    report = run_json("bench", "transpose-sum", "--size", "1600", "--chunks", "400", "--repeats=2")
    assert report["schema"] == "backhaul.bench.transpose-sum/1"
    assert report["equal"] is True
    assert [result["protocol"] for result in report["results"]] == ["tcp", "backhaul"]
    tcp, backhaul = report["results"]
    assert len(tcp["sums"]) == len(tcp["seconds"]) == 2
    assert set(tcp["lanes"].values()) == {"tcp"}
    assert set(backhaul["lanes"].values()) == {"shm"}
    for result in report["results"]:
        assert 0 < result["seconds_min"] <= result["seconds_median"] <= result["seconds_max"]
        assert {pair["receiver"] for pair in result["bandwidths"]} <= {"w0", "w1"}
