"""Small real runs of what measures the fabric."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.benches.conftest import Run


def test_a_build_is_compared_with_itself(run: Run) -> None:
    said = run(
        "versus", sys.executable, "--sizes", "8", "--lane", "shm", "--rounds", "1",
        "--budget", "0.02",
    )  # fmt: skip
    rows = re.findall(r"(async|blocking)\W+shm\W+8 B\W+([\d.]+)\W+([\d.]+)\W+([\d.]+)", said)
    assert {row[0] for row in rows} == {"async", "blocking"}
    for _, other, this, ratio in rows:
        assert abs(float(this) / float(other) - float(ratio)) < 0.02


def test_idle_peers_are_counted_and_weighed(run: Run) -> None:
    said = run("idle", "--peers", "200", "--seconds", "0.2", "--lane", "shm,tcp")
    rows = re.findall(r"(shm|tcp)\W+([\d.]+)\W+([\d.]+)", said.partition("200 idle peers")[2])
    assert [row[0] for row in rows] == ["shm", "tcp"]
    for _, core_percent, kb_each in rows:
        assert 0 <= float(core_percent) < 50
        assert 1 < float(kb_each) < 500
