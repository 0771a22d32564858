"""``backhaul bench session``: each case in an idle session and in one that holds data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from backhaul_bench.session import Row, held_over_idle

if TYPE_CHECKING:
    from tests.bench.conftest import RunJson

pytest.importorskip("pandas")


def test_each_case_is_measured_idle_and_held(run_json: RunJson) -> None:
    chosen = ("--case", "map,mean", "--tasks", "16", "--repetitions", "1", "--workers", "1")
    report: Any = run_json("bench", "session", *chosen)
    assert report["schema"] == "backhaul.bench.session/1"
    found = [(row["case"], row["configuration"], row["held"]) for row in report["rows"]]
    cases, protocols = ("map", "mean"), ("tcp", "backhaul")
    assert found == [
        (case, protocol, held) for held in (False, True) for case in cases for protocol in protocols
    ]
    for row in report["rows"]:
        assert row["seconds_median"] > 0
        assert row["tasks"] == 16
        if row["configuration"] == "tcp":
            assert (row["handled_share"], row["escapes"]) == (0.0, 0)
        elif not row["held"]:
            # Nothing has touched the state of an idle session. On a busy machine the engine begins
            # late, and Python passes the first messages to the core.
            assert row["escapes"] == 0
    assert max(row["handled_share"] for row in report["rows"]) > 0


def test_the_ratio_is_of_the_same_case_and_configuration() -> None:
    rows = [
        Row("map", "tcp", False, 10, [1.0], 1.0, 0.0, 0),
        Row("map", "backhaul", False, 10, [0.5], 0.5, 1.0, 0),
        Row("map", "tcp", True, 10, [1.5], 1.5, 0.0, 0),
        Row("map", "backhaul", True, 10, [2.0], 2.0, 0.0, 3),
    ]
    assert held_over_idle(rows) == {("map", "tcp"): 1.5, ("map", "backhaul"): 4.0}
