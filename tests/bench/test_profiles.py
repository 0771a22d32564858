"""Flame graphs: with py-spy where it is installed, and what is said where it is not."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from backhaul.cli import main
from backhaul_bench.contenders import Configuration
from backhaul_bench.dask_cluster import DaskCluster
from backhaul_bench.interleaved import measure
from backhaul_bench.profiles import Profiler, ProfilerFailed


def has_pyspy() -> bool:
    return Path(sys.executable).with_name("py-spy").exists() or shutil.which("py-spy") is not None


@pytest.mark.skipif(not has_pyspy(), reason="py-spy is not installed")
def test_every_process_has_a_flame_graph_and_its_shares_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With the state in the core a scheduler runs so little Python that no sample may find any.
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__BACKHAUL__HOT_PATH__SCHEDULER_CORE", "False")
    parameters = {"tasks": 300, "function": "module", "seed": 1}
    profiler = Profiler(tmp_path / "profiles", seconds=3.0)
    with DaskCluster(Configuration("backhaul"), workers=1, threads=1) as cluster:
        seeds = iter(range(100))
        try:
            found = profiler.profile(
                cluster,
                "map",
                lambda: measure(cluster, "map", {**parameters, "seed": next(seeds)}),
            )
        except ProfilerFailed as error:
            if "ptrace" not in str(error):
                raise
            pytest.skip(f"py-spy may not attach here: {error}")
    assert [profile.role for profile in found] == ["client", "scheduler", "workers"]
    for profile, name in zip(found, ("client", "scheduler", "worker"), strict=True):
        assert profile.samples > 0
        assert sum(profile.shares.values()) == pytest.approx(1)
        svg = ElementTree.parse(tmp_path / "profiles" / f"map-backhaul-{name}.svg")
        titles = [title.text or "" for title in svg.iter("{http://www.w3.org/2000/svg}title")]
        assert any("asyncio" in title for title in titles)
    assert found[1].shares["state machine"] > 0


def test_a_missing_profiler_is_an_error_that_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(main, ["bench", "tasks", "--profile", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "pip install py-spy" in result.output
