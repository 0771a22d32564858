"""A small real run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.benches.conftest import RunJson


def test_clusters_of_each_launcher_start_in_turn(run_json: RunJson) -> None:
    report = run_json(
        "start", "--workers", "1", "--repetitions", "1", "--launcher", "dask-tcp,backhaul"
    )
    assert report["schema"] == "backhaul.benches.start/1"
    assert [row["launcher"] for row in report["rows"]] == ["dask-tcp", "backhaul"]
    for row in report["rows"]:
        assert row["start_seconds"][0] > 0
        assert row["close_seconds"][0] > 0
    assert report["rows"][0]["ratio"] == 1
