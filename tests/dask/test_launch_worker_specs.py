"""From plans to the specifications of Dask's workers: no process, and any machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from distributed import Nanny, Worker

from backhaul import ConfigError
from backhaul.dask.launch.nanny import PinnedNanny
from backhaul.dask.launch.worker_specs import WorkerOptions, worker_specs
from backhaul.topology import Plan, PlannedGpu, WorkerPlan, load
from backhaul.topology._json import cpu_list

FIXTURES = Path(__file__).parents[2] / "crates" / "topology" / "tests" / "fixtures"


def one_worker(**changes: Any) -> Plan:
    """Make a plan of one worker."""
    values: dict[str, Any] = {
        "name": "numa0", "cpus": frozenset({0, 1}), "memory_nodes": (0,), "threads": 2,
        "memory_bytes": 8 << 30, "gpus": (), "nic": None, "rdma": None, "lanes": ("shm", "tcp"),
        "why": "it is a test",
    }  # fmt: skip
    worker = WorkerPlan(**(values | changes))
    return Plan(policy="per-numa", machine="host", workers=(worker,), explanation=(), warnings=())


def options_of(plan: Plan, **options: Any) -> dict[str, Any]:
    """Make the options of the first worker's nanny."""
    specs = worker_specs(plan, WorkerOptions(**options))
    found: dict[str, Any] = next(iter(specs.values()))["options"]
    return found


def test_a_dgx_1_gets_the_plan_of_its_hand_written_function() -> None:
    plan = load(FIXTURES / "dgx-1.nvidia-smi.txt").plan("per-gpu", interface="ib")
    specs = worker_specs(plan, WorkerOptions(planned_interfaces=True))
    rows = {}
    for name, spec in specs.items():
        assert spec["cls"] is PinnedNanny
        options = spec["options"]
        assert options["name"] == name
        assert options["nthreads"] == 1
        assert options["resources"] == {"GPU": 1}
        assert options["protocol"] == "backhaul"
        assert "host" not in options
        assert options["env"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        devices = options["env"]["CUDA_VISIBLE_DEVICES"].split(",")
        assert sorted(devices) == list("01234567")
        rows[name] = (devices[0], cpu_list(options["pinning"].cpus), options["interface"])
    near, far = "0-19,40-59", "20-39,60-79"
    assert rows == {
        "gpu0": ("0", near, "ib0"), "gpu1": ("1", near, "ib0"),
        "gpu2": ("2", near, "ib1"), "gpu3": ("3", near, "ib1"),
        "gpu4": ("4", far, "ib2"), "gpu5": ("5", far, "ib2"),
        "gpu6": ("6", far, "ib3"), "gpu7": ("7", far, "ib3"),
    }  # fmt: skip


def test_options_of_all_workers_are_laid_over_the_plan() -> None:
    gpus = (PlannedGpu(1, "GPU-1"), PlannedGpu(0, "GPU-0"))
    plan = one_worker(gpus=gpus, nic="eth1")
    plain = options_of(plan)
    assert plain["env"] == {
        "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }  # fmt: skip
    assert plain["nthreads"] == 2
    assert plain["memory_limit"] == 8 << 30
    assert plain["pinning"].memory_nodes == (0,)
    assert "host" not in plain
    assert "interface" not in plain
    given = options_of(
        plan,
        env={"A": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"},
        resources={"MEM": 3.0},
        memory_limit="2GiB",
        host="127.0.0.1",
        pin=False,
        nanny={"preload": ["a"], "local_directory": "/scratch"},
    )
    assert given["env"]["A"] == "1"
    assert given["env"]["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
    assert given["resources"] == {"GPU": 1, "MEM": 3.0}
    assert given["memory_limit"] == "2GiB"
    assert given["host"] == "127.0.0.1"
    assert not given["pinning"].cpus
    assert not given["pinning"].memory_nodes
    assert given["local_directory"] == "/scratch"
    assert options_of(one_worker(memory_bytes=0))["memory_limit"] == "auto"


@pytest.mark.parametrize(
    ("nic", "options", "expected"),
    [
        ("ib0", {"planned_interfaces": True, "host": "10.0.0.1"}, {"interface": "ib0"}),
        (None, {"planned_interfaces": True, "host": "10.0.0.1"}, {"host": "10.0.0.1"}),
        ("ib0", {"interface": "eth0"}, {"interface": "eth0"}),
        ("ib0", {}, {}),
    ],
)
def test_a_worker_listens_on_its_own_interface_if_that_was_asked_for(
    nic: str | None, options: Mapping[str, Any], expected: dict[str, str]
) -> None:
    found = options_of(one_worker(nic=nic), **options)
    assert {key: found[key] for key in ("host", "interface") if key in found} == expected


def test_single_workers_may_differ() -> None:
    found = options_of(
        one_worker(),
        host="127.0.0.1",
        env={"A": "1"},
        by_name={"numa0": {"nthreads": 7, "env": {"B": "2"}, "interface": "lo"}},
    )
    assert found["nthreads"] == 7
    assert found["env"] == {"A": "1", "B": "2"}
    assert found["interface"] == "lo"
    assert "host" not in found
    with pytest.raises(ConfigError, match=r"'numa1', which is no worker of the plan.*'numa0'"):
        options_of(one_worker(), by_name={"numa1": {}})


def test_all_cores_of_a_worker_are_for_it_to_count() -> None:
    found = options_of(one_worker(gpus=(PlannedGpu(0, None),)), resources={"CORE": "all"})
    assert found["resources"] == {"GPU": 1}
    assert found["config"]["backhaul"]["resources"] == {"GPU": 1, "CORE": "all"}


def test_classes_of_nannies_and_of_workers_are_distinguished() -> None:
    class OwnNanny(Nanny):
        pass

    class OwnWorker(Worker):
        pass

    plan = one_worker()
    of_nanny = worker_specs(plan, WorkerOptions(worker_class=OwnNanny))["numa0"]
    assert issubclass(of_nanny["cls"], OwnNanny)
    assert issubclass(of_nanny["cls"], PinnedNanny)
    of_worker = worker_specs(plan, WorkerOptions(worker_class=OwnWorker))["numa0"]
    assert of_worker["cls"] is PinnedNanny
    assert of_worker["options"]["worker_class"] is OwnWorker
