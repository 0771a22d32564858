"""Modules that a process imports, and that importing changes nothing of Dask."""

from __future__ import annotations

import json
import subprocess
import sys

import backhaul.dask

LISTED = """
import json, sys
import distributed
before = set(sys.modules)
{}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def imported_by(statements: str) -> set[str]:
    """List the modules that statements import, in a process that has imported `distributed`."""
    command = [sys.executable, "-c", LISTED.format(statements)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found: list[str] = json.loads(done.stdout)
    return set(found)


def tops(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def test_the_package_alone_imports_nothing_heavy_and_replaces_nothing() -> None:
    found = imported_by("import backhaul.dask")
    assert "backhaul.dask.comm.backend" in found
    assert not tops(found) & {"bokeh", "click", "numpy", "pandas", "pyarrow", "rich"}
    # Installing is asked for elsewhere, and brings what it needs.
    packages = {name.split(".")[2] for name in found if name.startswith("backhaul.dask.")}
    assert packages == {"comm", "compat", "config", "serialize"}
    for name in ("activation", "process_patches", "instance_patches"):
        assert f"backhaul.dask.compat.{name}" not in found


def test_dask_finds_the_backend_by_its_entry_point_without_being_changed() -> None:
    found = imported_by(
        "from distributed.comm.registry import get_backend\n"
        "execute = vars(distributed.Worker).copy()\n"
        "print(type(get_backend('backhaul')).__name__, file=sys.stderr)\n"
        "assert vars(distributed.Worker) == execute"
    )
    assert "backhaul.dask.comm.backend" in found
    assert "backhaul.dask.compat.process_patches" not in found


def test_names_that_most_processes_do_without_come_when_asked_for() -> None:
    found = imported_by("from backhaul.dask import lanes, transfers")
    assert {"backhaul.dask.observe.lanes", "backhaul.dask.observe.transfers"} <= found
    assert "pandas" not in found
    found = imported_by("from backhaul.dask import LocalCluster")
    assert "backhaul.dask.launch.cluster" in found


def test_a_worker_does_without_what_only_a_scheduler_needs() -> None:
    found = imported_by(
        "from backhaul.dask.compat import activation; from backhaul.dask.worker import memory\n"
        "from backhaul.dask.observe import heartbeat"
    )
    assert not {"backhaul.dask.observe.ledger", "backhaul.dask.observe.dashboard"} & found
    assert not tops(found) & {"bokeh", "pandas", "rich"}


def test_dir_lists_the_public_names_and_no_internals() -> None:
    found = {name for name in dir(backhaul.dask) if not name.startswith("__")}
    assert found == set(backhaul.dask.__all__)
    for name in found:
        assert getattr(backhaul.dask, name) is not None
