"""Small real runs: their figures mean nothing, their form and their end do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from backhaul.bench.pair import ContenderFailed, ProcessPair

if TYPE_CHECKING:
    from tests.bench.conftest import RunJson

ROW_KEYS = {
    "peer",
    "variant",
    "api",
    "lane",
    "size_bytes",
    "latency_p50_us",
    "latency_p50_us_min",
    "latency_p50_us_max",
    "latency_p99_us",
    "pingpong_bytes_per_s",
    "stream_bytes_per_s",
    "stream_bytes_per_s_min",
    "stream_bytes_per_s_max",
}


def processes_of_benchmarks() -> set[int]:
    """Find the measured processes that this process or its children left."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                command = file.read()
        except OSError:
            continue
        if b"backhaul.bench.child" in command:
            found.add(int(name))
    return found


def test_a_run_measures_every_lane_api_and_peer_and_leaves_nothing(run_json: RunJson) -> None:
    before = processes_of_benchmarks()
    report = run_json(
        *("bench", "p2p", "--sizes", "8,64KiB", "--lane", "shm,tcp,inproc"),
        *("--against", "asyncio,socket", "--rounds", "1", "--budget", "0.02"),
    )
    assert report["schema"] == "backhaul.bench.p2p/1"
    assert set(report) == {"schema", "machine", "versions", "options", "rows", "missing"}
    assert all(set(row) == ROW_KEYS for row in report["rows"])
    contenders = {(row["peer"], row["api"], row["lane"]) for row in report["rows"]}
    lanes = ("shm", "tcp", "inproc")
    assert contenders == {
        *(("backhaul", api, lane) for api in ("async", "blocking") for lane in lanes),
        ("asyncio", "async", "tcp"),
        ("socket", "blocking", "tcp"),
    }
    assert len(report["rows"]) == 2 * len(contenders)
    assert all(0 < row["latency_p50_us"] <= row["latency_p99_us"] for row in report["rows"])
    assert all(row["stream_bytes_per_s"] > 0 for row in report["rows"])
    assert report["missing"] == []
    assert processes_of_benchmarks() <= before


def test_a_peer_that_is_not_installed_is_named_with_how_to_get_it(run_json: RunJson) -> None:
    report = run_json(
        *("bench", "p2p", "--sizes", "8", "--lane", "tcp", "--api", "blocking", "--rounds", "1"),
        *("--budget", "0.02", "--against", "mpi4py", "--peer-python", "/bin/false"),
    )
    (missing,) = report["missing"]
    assert missing["peer"] == "mpi4py"
    assert "make bench" in missing["install"]
    assert {row["peer"] for row in report["rows"]} == {"backhaul"}


def test_a_driver_that_fails_is_reported_with_its_error() -> None:
    with pytest.raises(ContenderFailed, match="KeyError"):
        ProcessPair("backhaul.bench.peers.ours", {})


def test_a_process_that_does_not_start_is_reported_with_what_it_said() -> None:
    with pytest.raises(ContenderFailed, match="No module named"):
        ProcessPair("backhaul.bench.peers.nobody", {})
