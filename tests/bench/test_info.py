from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.bench.conftest import RunJson


def test_info_tells_version_machine_and_lanes(run_json: RunJson) -> None:
    answer = run_json("info")
    assert answer["versions"]["backhaul"]
    assert answer["machine"]["cores_usable"] >= 1
    assert answer["lanes"] == {"inproc": "works", "shm": "works", "tcp": "works"}
    assert answer["arena"] == "works"
