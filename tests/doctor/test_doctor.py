"""``backhaul doctor`` as a user runs it: on this machine, and where something is wrong with it."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import backhaul
from backhaul.doctor.dask import _EXTRAS

COMMAND = [sys.executable, "-m", "backhaul.cli", "doctor"]


def run(
    *arguments: str, environment: Mapping[str, str] | None = None, descriptors: int | None = None
) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if descriptors is not None:
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))

    return subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        preexec_fn=limit,
    )


def findings(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], dict[str, Any]]:
    report = json.loads(done.stdout)
    assert report["schema"] == "backhaul.doctor/1"
    return {(each["topic"], each["subject"]): each for each in report["findings"]}


def library(folder: Path, name: str, source: str) -> dict[str, str]:
    """Make a library of C source, and say how the loader finds it."""
    file = folder / "source.c"
    file.write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / name, file], check=True)
    return {"LD_LIBRARY_PATH": str(folder)}


def test_what_works_here_is_said_to_work() -> None:
    done = run("--json")
    found = findings(done)
    assert done.returncode == 0, done.stdout
    for subject in ("inproc", "shm", "tcp", "arena"):
        assert found["lanes", subject]["state"] == "works"
    peer = found["peers", "a process of this host"]
    assert peer["state"] == "works"
    assert "lane shm" in peer["detail"]
    assert found["peers", "carrier lease"]["state"] == "works"
    assert {topic for topic, _ in found} == {
        "lanes", "peers", "limits", "gpu", "rdma", "ucx", "dask",
    }  # fmt: skip


def test_a_few_topics_may_be_asked_for() -> None:
    done = run("limits", "dask")
    assert done.returncode == 0
    assert "accelerations" in done.stdout
    assert "inproc" not in done.stdout


def test_an_unknown_topic_is_refused_by_name() -> None:
    done = run("weather")
    assert done.returncode == 2
    assert "'weather'" in done.stderr


def test_few_descriptors_are_worth_a_word() -> None:
    done = run("limits", "--json", descriptors=200)
    finding = findings(done)["limits", "descriptors"]
    assert finding["state"] == "limited"
    assert finding["detail"].startswith("200")
    assert "ulimit -n" in finding["advice"]


def test_a_driver_that_crashes_is_broken_and_harms_nobody(tmp_path: Path) -> None:
    source = """
        #include <stdlib.h>
        int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
        int cuInit(unsigned flags) { abort(); }
    """
    done = run("gpu", "--json", environment=library(tmp_path, "libcuda.so.1", source))
    finding = findings(done)["gpu", "libcuda"]
    assert finding["state"] == "broken"
    assert "-6" in finding["detail"]
    assert done.returncode == 1


def test_a_driver_without_devices_is_named_with_its_error(tmp_path: Path) -> None:
    source = """
        int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
        int cuInit(unsigned flags) { return 100; }
        int cuDeviceGetCount(int *count) { return 100; }
        int cuGetErrorName(int error, const char **name)
        { *name = "CUDA_ERROR_NO_DEVICE"; return 0; }
    """
    done = run("gpu", "--json", environment=library(tmp_path, "libcuda.so.1", source))
    finding = findings(done)["gpu", "libcuda"]
    assert finding["state"] == "absent"
    assert str(tmp_path / "libcuda.so.1") in finding["detail"]
    assert "CUDA 12.4" in finding["detail"]
    assert "CUDA_ERROR_NO_DEVICE" in finding["detail"]
    assert done.returncode == 0


def test_what_a_library_prints_is_not_taken_for_an_answer(tmp_path: Path) -> None:
    # UCX logs to the standard output.
    source = r"""
        #include <stdio.h>
        int cuDriverGetVersion(int *version) { *version = 12040; return puts("banner") < 0; }
        int cuInit(unsigned flags) { fputs("\xff\n", stderr); return 0; }
        int cuDeviceGetCount(int *count) { *count = 2; return 0; }
    """
    done = run("gpu", "--json", environment=library(tmp_path, "libcuda.so.1", source))
    finding = findings(done)["gpu", "libcuda"]
    assert finding["state"] == "works", finding
    assert finding["detail"].endswith("CUDA 12.4, 2 devices")


def test_a_process_that_cannot_start_is_named_with_what_it_was_for(tmp_path: Path) -> None:
    code = "import sys; sys.executable = sys.argv.pop(1); from backhaul.cli import main; main()"
    missing = str(tmp_path / "python")
    done = subprocess.run(
        [sys.executable, "-c", code, missing, "doctor", "peers", "gpu", "--json"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    found = findings(done)
    for subject in (("peers", "a process of this host"), ("gpu", "libcuda")):
        assert found[subject]["state"] == "broken"
        assert missing in found[subject]["detail"]


def test_modules_are_those_of_the_program_that_asks(tmp_path: Path) -> None:
    # A path that only the program knows, and files where it runs that are named like modules.
    (tmp_path / "json.py").write_text("raise RuntimeError('another module')")
    folder = str(Path(backhaul.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {folder!r}); from backhaul.cli import main; main()"
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "doctor", "peers", "gpu", "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_accelerations_that_are_off_by_default_are_not_counted() -> None:
    detail = findings(run("dask", "--json"))["dask", "accelerations"]["detail"]
    fit, of = re.match(r"(\d+) of (\d+) accelerations", detail).groups()  # type: ignore[union-attr]
    assert int(fit) == int(of) > 10


def test_the_extra_that_is_advised_brings_what_is_missing() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    brought = {re.split(r"[\[<>=]", each)[0] for each in extras["complete"]}
    # Packages of `dask[array,dataframe]`, of which the extra `dask` is
    assert "backhaul" in brought
    assert extras["dask"][0].startswith("dask[array,dataframe]")
    brought |= {"numpy", "pandas"}
    assert {name.replace("_", "-") for name in _EXTRAS} <= brought
