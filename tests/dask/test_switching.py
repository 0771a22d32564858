"""A program is switched to Backhaul without being changed: by the environment, a file, one call."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dask
from backhaul.dask import Settings, enable
from backhaul.dask.config.settings import switched_on

GUIDE = (Path(__file__).parents[2] / "docs/guides/switching.md").read_text(encoding="utf-8")

PROGRAM = """
import sys

from distributed import Client, LocalCluster

if __name__ == "__main__":
    with LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None, memory_limit=0
    ) as cluster, Client(cluster) as client:
        assert client.submit(sum, [1, 2]).result() == 3
        print(cluster.scheduler_address, *client.nthreads())
        print("backhaul" in client.get_versions()["client"]["packages"])
    print("_Watch" in map(repr, sys.meta_path))
"""

#: Says what clusters would begin with, without beginning one
CHOICES = """
import backhaul_default_scheme
from distributed import LocalCluster, Worker

choose = backhaul_default_scheme._scheme_for
print(choose({}), choose({"protocol": "tcp"}), choose({"host": "tcp://127.0.0.1"}))
print(choose({"processes": False}), choose({"worker_class": Worker}))
print(choose({"processes": False, "scheduler_port": 8786}))
print(LocalCluster.__init__.__module__, hasattr(LocalCluster.__init__, "__wrapped__"))
"""


def block_of(language: str) -> str:
    """Give the one block of the guide in a language."""
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
    return str(block)


def run(program: str, tmp_path: Path, **environment: str) -> list[str]:
    file = tmp_path / "program.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_environment_switches_an_unchanged_program(tmp_path: Path) -> None:
    addresses, listed, _ = run(PROGRAM, tmp_path, DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME="backhaul")
    assert all(each.startswith("backhaul://") for each in addresses.split())
    assert listed == "True"


def test_a_file_of_the_configuration_does_so_and_says_no_more_than_it_must(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "comm.yaml").write_text(block_of("yaml"))
    given, within, reached, patched = run(CHOICES, tmp_path, DASK_CONFIG=str(folder))
    assert given == "backhaul:// None None"
    assert within == "None None"
    assert reached == "backhaul://"
    assert patched == "distributed.deploy.local True"


def test_the_program_of_the_guide_runs_as_it_stands(tmp_path: Path) -> None:
    assert run(block_of("python"), tmp_path) == []


def test_without_it_dask_is_as_it_was(tmp_path: Path) -> None:
    *_, patched = run(CHOICES, tmp_path)
    assert patched == "distributed.deploy.local False"


def test_one_call_switches_and_another_one_switches_back() -> None:
    import backhaul_default_scheme as hook

    with dask.config.set({"distributed.comm.default-scheme": "tcp"}):
        enable()
        assert hook._scheme_for({}) == "backhaul://"
        enable("backhaul+tls")
        assert hook._scheme_for({}) == "backhaul+tls://"
        enable("tcp")
        assert hook._scheme_for({}) is None
    with pytest.raises(ValueError, match=r"one of backhaul, backhaul\+tls, tcp, got 'ucx'"):
        enable("ucx")


@pytest.fixture
def put_back() -> Iterator[None]:
    """Put the configuration from before back, as fixtures of Dask's own tests do."""
    now = copy.deepcopy(dask.config.config)
    before: dict[str, Any] = copy.deepcopy(now)
    # Another test may have put it back for good.
    before.pop("backhaul", None)
    before["distributed"]["comm"].pop("backhaul", None)
    dask.config.config.clear()
    dask.config.config.update(before)
    yield
    dask.config.config.clear()
    dask.config.config.update(now)


@pytest.mark.usefixtures("put_back")
def test_a_configuration_that_is_put_back_does_no_harm() -> None:
    with pytest.raises(KeyError):
        dask.config.get("distributed.comm.backhaul.lanes")
    assert Settings.current().sends_max == 8192
    assert Settings.current().secret is None
    assert switched_on("hot-path.order")
