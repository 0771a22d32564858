"""A Dask that lacks a name, has another signature, was patched, or is too old: jobs and log lines.

Each test runs programs on a copy of Dask that it has changed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import distributed
import pytest

from backhaul.dask.compat.activation import SUPPORTED

_JOB = """
from distributed import Client, LocalCluster

cluster = LocalCluster(
    protocol="backhaul", host="127.0.0.1", n_workers=1, processes=False, dashboard_address=None
)
with cluster, Client(cluster) as client:
    print(sum(client.gather(client.map(abs, range(-20, 1)))))
"""
_LINE = re.compile(r"- (backhaul\.\S+) - (?:WARNING|ERROR) - (.*)")
_PATCHED = """
import functools
from distributed import Worker

original = Worker.execute

@functools.wraps(original)
async def execute(self, *args, **kwargs):
    return await original(self, *args, **kwargs)

Worker.execute = execute
"""


def run(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run Python with a copy of Dask, and the modules beside it."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended


def logged(ended: subprocess.CompletedProcess[str]) -> list[str]:
    return [found[2] for found in map(_LINE.search, ended.stderr.splitlines()) if found]


def off(folder: Path) -> dict[str, str]:
    """Return what `backhaul doctor` lists as off, with the reasons."""
    ended = run(folder, "-m", "backhaul", "doctor", "dask", "--json")
    return {
        found["subject"].removeprefix("off: "): found["detail"]
        for found in json.loads(ended.stdout)["findings"]
        if found["subject"].startswith("off: ")
    }


def replaced(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def lacks_a_name(folder: Path) -> None:
    replaced(folder / "distributed/client.py", "_get_versions", "_fetch_versions")


def has_another_signature(folder: Path) -> None:
    before = "def send(self, *msgs: Any) -> None:"
    replaced(folder / "distributed/batched.py", before, before.replace("Any)", "Any, at=0)"))


def is_patched(folder: Path) -> None:
    (folder / "tracer.py").write_text(_PATCHED)
    (folder / "sitecustomize.py").write_text("import tracer\n")


@pytest.mark.parametrize(
    ("change", "left_alone", "reason"),
    [
        (lacks_a_name, "Client._retry and 2 more", "Client._get_versions is missing from dask"),
        (has_another_signature, "BatchedSend.start", "BatchedSend.send differs from what was read"),
        (is_patched, "Worker._start_async_instruction", "tracer has replaced Worker.execute"),
    ],
)
def test_a_patch_of_a_changed_function_is_off_with_one_line_of_the_log(
    change: Callable[[Path], None], left_alone: str, reason: str, copied_dask: Path
) -> None:
    change(copied_dask)
    ended = run(copied_dask, "-c", _JOB)
    assert ended.stdout.split() == ["210"]
    (line,) = logged(ended)
    assert re.match(rf"Backhaul leaves {re.escape(left_alone)}(, \S+)* as it is", line)
    assert reason in line
    found = off(copied_dask)
    assert reason in found[left_alone]
    assert all(reason in each for each in found.values())


@pytest.mark.parametrize(
    ("version", "age"), [("2026.7.0", "older"), ("2027.1.0", "newer"), ("2025.1.0", "older")]
)
def test_another_release_is_named_with_what_it_leaves_off(
    version: str, age: str, copied_dask: Path
) -> None:
    has_another_signature(copied_dask)
    (copied_dask / "distributed/_version.py").write_text(
        f"__version__ = {version!r}\n__commit_id__ = None\n"
    )
    ended = run(copied_dask, "-c", _JOB)
    assert ended.stdout.split() == ["210"]
    (line,) = logged(ended)
    assert f"runs with distributed {version} without 1 of its " in line
    assert f"BatchedSend.send of distributed {version}, {age} than what was read" in line
    assert SUPPORTED in line


def test_one_that_is_too_old_is_refused_with_the_range(copied_dask: Path) -> None:
    (copied_dask / "distributed/_version.py").write_text(
        "__version__ = '2024.12.1'\n__commit_id__ = None\n"
    )
    refused = run(copied_dask, "-c", "import backhaul.dask", code=1).stderr.splitlines()[-1]
    said = "backhaul.dask runs with distributed 2025.1.0 or later, not with 2024.12.1"
    assert said in refused
    ended = run(copied_dask, "-m", "backhaul", "doctor", "dask", "--json", code=1)
    findings: list[dict[str, Any]] = json.loads(ended.stdout)["findings"]
    (broken,) = [found for found in findings if found["state"] == "broken"]
    assert said in broken["detail"]
    assert distributed.__version__ != "2024.12.1"
