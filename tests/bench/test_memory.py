"""Memory of processes, read from outside, and a small run of ``bench memory``."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from distributed import Client

from backhaul_bench.jobs import make_job
from backhaul_bench.memory import Series, geometric_means, mean_pss
from backhaul_bench.memory_cases import CASES
from backhaul_bench.memory_tables import course
from backhaul_bench.pss import Memory, Sample, Sampler, memfd_bytes, read_all, read_memory

if TYPE_CHECKING:
    from tests.bench.conftest import RunJson

MIB = 2**20


@contextlib.contextmanager
def child(code: str = "pass", **keywords: object) -> Iterator[int]:
    """Run code, and keep the process until the end."""
    command = [sys.executable, "-c", f"{code}; print('ready', flush=True); input()"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **keywords,  # type: ignore[call-overload]
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


def sample(seconds: float, pss: int, phase: str = "run") -> Sample:
    return Sample(seconds, phase, {"workers": Memory(pss, pss, 0, 0)}, 0)


def test_memory_of_a_process_is_told_apart_from_files() -> None:
    with child("data = b'1' * 2**26") as pid:
        found = read_memory(pid)
    assert 64 * MIB <= found.anon < 90 * MIB
    assert found.pss > found.anon
    assert found.shmem == found.swap == 0


def test_pages_that_two_processes_map_count_once() -> None:
    descriptor = os.memfd_create("test", 0)
    try:
        os.truncate(descriptor, 64 * MIB)
        with mmap.mmap(descriptor, 64 * MIB) as mapped:
            mapped.write(b"1" * 64 * MIB)
            code = f"import mmap; data = mmap.mmap({descriptor}, 2**26); sum(data[::4096])"
            with child(code, pass_fds=(descriptor,)) as pid:
                alone = read_all({"both": [os.getpid(), pid]})["both"]
                assert read_memory(pid).shmem == 32 * MIB
        assert 64 * MIB <= alone.shmem < 66 * MIB
    finally:
        os.close(descriptor)


def test_a_memfd_counts_once_whoever_has_it_and_mapped_or_not() -> None:
    before = memfd_bytes([os.getpid()])
    descriptor = os.memfd_create("test", 0)
    try:
        os.truncate(descriptor, 64 * MIB)
        os.pwrite(descriptor, b"1" * 8 * MIB, 0)
        with child(pass_fds=(descriptor,)) as pid:
            assert memfd_bytes([pid]) == 8 * MIB
            assert memfd_bytes([os.getpid(), pid]) == before + 8 * MIB
    finally:
        os.close(descriptor)


def test_a_process_that_ended_is_named() -> None:
    with child() as pid:
        pass
    with pytest.raises(ProcessLookupError, match=f"process {pid} ended"):
        read_memory(pid)
    with pytest.raises(ProcessLookupError, match=f"process {pid} ended"):
        memfd_bytes([pid])


def test_a_sampler_marks_what_it_reads_with_the_phase() -> None:
    with child() as pid, Sampler({"all": [pid]}, interval_s=0.001) as sampler:
        for phase in ("one", "two"):
            sampler.phase = phase
            count = len(sampler.samples)
            deadline = time.monotonic() + 300
            while len(sampler.samples) < count + 3:
                assert time.monotonic() < deadline
                time.sleep(0.001)
    # It may have read something before the first one was set.
    assert {each.phase for each in sampler.samples} - {""} == {"one", "two"}
    assert sampler.cpu_seconds > 0
    assert sorted(sampler.samples, key=lambda each: each.seconds) == sampler.samples


def test_a_sampler_tells_that_a_process_ended() -> None:
    with child() as pid:
        sampler = Sampler({"all": [pid]}, interval_s=0.001)
        sampler.phase = "run"
    with pytest.raises(ProcessLookupError), sampler:
        sampler._thread.join(60)


def test_the_mean_weighs_samples_by_time() -> None:
    assert mean_pss([sample(0, 0), sample(1, 100), sample(4, 100)]) == pytest.approx(87.5)


def test_the_course_shows_the_highest_sample_of_each_stretch() -> None:
    samples = [sample(0, 0, "prepare"), sample(0.001, 800), sample(5, 400), sample(10, 1, "rest")]
    bars, phases = course(Series.of(samples), 800)
    assert (bars[0], bars[1], bars[50], bars[-1]) == ("█", "█", "▅", "▁")
    assert (phases[0], phases[50], phases[-1]) == ("R", "R", "·")


def test_ratios_of_jobs_are_averaged() -> None:
    def row(configuration: str, ratio: float) -> Any:
        return SimpleNamespace(
            configuration=configuration, workers_ratio=ratio, ratio=1.0, seconds_ratio=ratio / 2
        )

    rows = [row("tcp", 1.0), row("backhaul", 0.5), row("tcp", 1.0), row("backhaul", 2.0)]
    means = geometric_means(rows)
    assert list(means) == ["tcp", "backhaul"]
    assert means["backhaul"] == pytest.approx({"workers": 1.0, "all": 1.0, "seconds": 0.5})


def test_the_memory_of_both_clusters_is_sampled(run_json: RunJson) -> None:
    report = run_json(
        *("bench", "memory", "--size", "3000", "--chunks", "1000", "--repetitions", "2"),
        *("--settle", "0"),
    )
    assert report["schema"] == "backhaul.bench.memory/2"
    assert [row["configuration"] for row in report["rows"]] == ["tcp", "backhaul"]
    assert set(report["means"]) == {"tcp", "backhaul"}
    for row in report["rows"]:
        assert row["job"] == "transpose-sum"
        assert row["input_bytes"] == 3000**2 * 8
        # The array is held while it is summed.
        assert row["peak_pss"][0] > row["fresh"][0] + row["input_bytes"]
        assert len(row["peak_pss_bytes"]) == len(row["rest"]) == len(row["seconds"]) == 2
        assert row["peak_workers_pss"][0] <= row["peak_pss"][0]
        assert 0 < row["sampling_cpu_share"] < 1
        series = row["series"]
        assert set(series["pss_bytes"]) == {"client", "scheduler", "workers"}
        assert series["phase"].count("run") >= 4
        lengths = {len(series[name]) for name in ("seconds", "phase", "memfd_bytes")}
        assert lengths == {len(column) for column in series["shmem_bytes"].values()}
    assert report["lanes"] == {"tcp": ["tcp"], "backhaul": ["shm"]}


def test_jobs_check_their_results() -> None:
    with Client(processes=False, n_workers=1, dashboard_address=None) as client:
        for name, case in CASES.items():
            parameters = {**case.parameters, **case.first, "seed": 3}
            job = make_job(case.job, **parameters)
            job.prepare(client)
            job.run(client)
            job.check(client)
            assert job.facts(client) or not case.has_facts
            job.result = job.result + 1.0 if isinstance(job.result, float) else [1e3] * 3
            with pytest.raises(ValueError, match="wrong result"):
                job.check(client)
            assert job.input_bytes > 0, name
