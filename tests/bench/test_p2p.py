"""Small real runs: their figures mean nothing, their form and their end do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from backhaul_bench.pair import ContenderFailed, ProcessPair

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
        if b"backhaul_bench.child" in command:
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
        *("--budget", "0.02", "--against", "ucxx", "--peer-python", "/bin/false"),
    )
    (missing,) = report["missing"]
    assert missing["peer"] == "ucxx"
    assert "make bench" in missing["install"]
    assert {row["peer"] for row in report["rows"]} == {"backhaul"}


def test_a_driver_that_fails_is_reported_with_its_error() -> None:
    with pytest.raises(ContenderFailed, match="KeyError"):
        ProcessPair("backhaul_bench.peers.ours", {})


def test_a_process_that_does_not_start_is_reported_with_what_it_said() -> None:
    with pytest.raises(ContenderFailed, match="No module named"):
        ProcessPair("backhaul_bench.peers.nobody", {})


def test_memory_of_gpus_is_measured_beside_copies_in_one_process(
    gpu_environment: dict[str, str],
) -> None:
    command = [
        *(sys.executable, "-m", "backhaul.cli", "bench", "p2p", "--memory", "cuda", "--json", "-"),
        *("--sizes", "64KiB", "--lane", "shm,inproc", "--devices", "0", "1"),
        *("--rounds", "1", "--budget", "0.02"),
    ]
    environment = {**gpu_environment, "FAKE_CUDA_DEVICES": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["options"]["memory"] == "cuda"
    assert report["options"]["devices"] == [0, 1]
    assert {(row["peer"], row["api"], row["lane"]) for row in report["rows"]} == {
        *(("backhaul", api, lane) for api in ("async", "blocking") for lane in ("shm", "inproc")),
        ("device copy", "blocking", "in-process copy"),
    }
    assert all(row["stream_bytes_per_s"] > 0 for row in report["rows"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--lane", "tcp"), "a lane within a host"),
        (("--against", "asyncio"), "no peers"),
        (("--devices", "0", "9"), "this process sees"),
    ],
)
def test_what_no_gpu_can_do_is_refused(
    gpu_environment: dict[str, str], arguments: tuple[str, ...], said: str
) -> None:
    command = [sys.executable, "-m", "backhaul.cli", "bench", "p2p", "--memory", "cuda", *arguments]
    done = subprocess.run(command, env=gpu_environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


def test_without_a_gpu_it_is_said_what_is_missing() -> None:
    command = [sys.executable, "-m", "backhaul.cli", "bench", "p2p", "--memory", "cuda"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "libcuda" in done.stderr or "no device" in done.stderr
