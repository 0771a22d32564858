"""Units that are near to each other: what recorded machines say of GPUs, cores and NICs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from backhaul import ConfigError
from backhaul._native import ResourcePools, ResourceRequest
from backhaul.dask.resource_pools.declarations import checked, parse, totals
from backhaul.dask.resource_pools.machine_pools import (
    coupled_by,
    coupled_here,
    resolved,
    visible_gpus,
)
from backhaul.dask.resource_pools.requests import Needs
from backhaul.dask.resource_pools.worker_slots import WorkerSlots
from backhaul.topology import Machine, discover, load
from tests.dask.machines import machine_with_gpus

FIXTURES = Path(__file__).parents[2] / "crates" / "topology" / "tests" / "fixtures"


def dgx_1() -> Machine:
    return load(FIXTURES / "dgx-1.nvidia-smi.txt")


def never() -> Machine:
    raise AssertionError("nobody asked for the machine")


def test_a_dgx_1_has_two_cores_and_a_nic_for_each_of_its_gpus() -> None:
    machine = dgx_1()
    declared = checked({"GPU": [[0, 1, 2, 3], [4, 5, 6, 7]], "CORE": list(range(80)), "NIC": 4})
    coupled = coupled_by(machine, declared, machine.gpus)
    # Of the same switch, in the order of the table: mlx5_0, mlx5_2, mlx5_1, mlx5_3
    assert [coupled["GPU"][gpu]["NIC"] for gpu in range(8)] == [
        [0], [0], [2], [2], [1], [1], [3], [3],
    ]  # fmt: skip
    near = [*range(20), *range(40, 60)]
    assert coupled["GPU"][0]["CORE"] == near
    assert coupled["GPU"][7]["CORE"] == [cpu for cpu in range(80) if cpu not in near]
    pools = ResourcePools(declared, coupled=coupled)
    for gpu in (5, 0, 3):
        asked = ResourceRequest({"GPU": 1, "CORE": 4, "NIC": 1, "CPU": 0}, ["GPU"])
        lease = pools.take(asked, {"GPU": [(gpu, 1e6)]})
        assert lease is not None
        held = pools.held(lease)
        assert held["GPU"] == (gpu,)
        assert held["NIC"] == tuple(coupled["GPU"][gpu]["NIC"])
        assert set(held["CORE"]) <= set(coupled["GPU"][gpu]["CORE"])


def test_a_result_goes_to_the_device_that_it_comes_to_soonest() -> None:
    machine = dgx_1()
    declared = checked({"GPU": [[0, 1, 2, 3], [4, 5, 6, 7]]})
    coupled = coupled_by(machine, declared, machine.gpus)
    ways = coupled["GPU"][0]["GPU"]
    assert isinstance(ways, dict)
    # Two NVLinks, one, the processors' link
    order = [
        machine.distance("gpu0", f"gpu{gpu}").path for gpu in sorted(ways, key=ways.__getitem__)
    ]
    assert order == ["NV2", "NV2", "NV1", "NV1", *["SYS"] * 3]
    pools = ResourcePools(declared, coupled=coupled)
    asked = ResourceRequest({"GPU": 1, "CPU": 0}, ["GPU"])
    taken = []
    for _ in range(8):
        lease = pools.take(asked, {"GPU": [(0, 1e9), (7, 1e6)]})
        assert lease is not None
        taken += pools.held(lease)["GPU"]
    assert taken[0] == 0
    found = [machine.distance("gpu0", f"gpu{gpu}").path for gpu in taken[1:]]
    assert found == order, "though GPU 7 has an input, too, of a thousandth"


def test_the_larger_input_of_a_task_stays_on_its_device() -> None:
    slots = WorkerSlots(checked({"GPU": 3}), couple=lambda _: {}, beside_max=1)
    request = Needs({"GPU": 1, "CPU": 0}, ["GPU"]).request
    lease = slots.pools.take(request, {"GPU": [(0, 1e3), (1, 5e3), (2, 1e6)]})
    assert lease is not None
    assert slots.pools.held(lease) == {"GPU": (2,)}


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_way_that_cannot_be_is_refused_with_the_value(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"a byte cannot take \S+ s from GPU 0 to 1"):
        ResourcePools({"GPU": 2}, coupled={"GPU": {0: {"GPU": {1: seconds}}}})
    with pytest.raises(ValueError, match="there is no GPU 2; there are 0, 1"):
        ResourcePools({"GPU": 2}, coupled={"GPU": {0: {"GPU": {2: 1e-9}}}})


def test_the_slots_of_a_worker_lend_what_is_near_to_each_other() -> None:
    machine = dgx_1()
    declared = checked({"GPU": 8, "CORE": list(range(80))})
    slots = WorkerSlots(
        declared, couple=lambda now: coupled_by(machine, now, machine.gpus), beside_max=1
    )
    needs = Needs({"GPU": 1, "CORE": 2, "CPU": 0}, ["GPU"])
    held = slots.pools.held(slots.pools.take(needs.request, {"GPU": [(6, 1e6)]}) or 0)
    assert held == {"GPU": (6,), "CORE": (20, 21)}
    # The near units follow the present units.
    slots._follow({"GPU": 7, "CORE": 80.0})
    lease = slots.pools.take(needs.request, {"GPU": [(4, 1e6)]})
    assert lease is not None
    assert slots.pools.held(lease)["CORE"] == (22, 23)


def test_gpus_are_numbered_as_the_process_sees_them() -> None:
    machine = dgx_1()
    assert [gpu.index for gpu in visible_gpus(machine, "5,2")] == [5, 2]
    assert [gpu.index for gpu in visible_gpus(machine, "3,-1,2")] == [3]
    assert visible_gpus(machine, "") == []
    few = machine_with_gpus(1)
    assert visible_gpus(few, "GPU-0") == list(few.gpus)
    declared = checked({"GPU": [0, 1], "CORE": [0, 20]})
    coupled = coupled_by(machine, declared, visible_gpus(machine, "5,2"))
    assert [coupled["GPU"][unit]["CORE"] for unit in range(2)] == [[20], [0]]
    # Two tasks on each of two devices: the group is the device.
    declared = checked({"GPU": [[0, 1], [2, 3]], "CORE": [0, 20]})
    coupled = coupled_by(machine, declared, visible_gpus(machine, "5,2"))
    assert [coupled["GPU"][unit]["CORE"] for unit in range(4)] == [[20], [20], [0], [0]]
    way = 1 / machine.distance("gpu5", "gpu2").bandwidth_bytes_per_s
    assert coupled["GPU"][0]["GPU"] == {1: 0.0, 2: way, 3: way}


def test_units_that_a_machine_lacks_are_near_to_nothing() -> None:
    machine = dgx_1()
    assert coupled_by(machine, checked({"GPU": [100], "CORE": [1000]}), machine.gpus) == {}
    assert coupled_here(checked({"GPU": 1, "MEMORY": 1e9}), look=never) == {}
    assert resolved(checked({"GPU": 4}), look=never) == {"GPU": 4}


def test_all_of_what_a_machine_has_comes_in_groups_that_belong_together() -> None:
    dgx_a100 = load(FIXTURES / "dgx-a100.hwloc.xml")
    found = resolved({"GPU": "all", "NIC": "all", "MEMORY": 1e9}, look=lambda: dgx_a100)
    assert found == {"GPU": [list(range(8))], "NIC": [list(range(10))], "MEMORY": 1e9}
    here = resolved(parse("CORE=all MEMORY=1e9"))
    groups: Any = here["CORE"]
    assert {cpu for group in groups for cpu in group} == os.sched_getaffinity(0)
    assert totals(parse("CORE=all GPU=2")) == {"GPU": 2}
    assert resolved({"GPU": "all"}, look=machine_with_gpus)["GPU"] == [
        [number] for number in range(len(machine_with_gpus().gpus))
    ]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"DISK": "all"}, "a machine knows all of GPU, CORE, NIC, not of DISK"),
        ({"GPU": "some"}, "must be a number, ids like"),
    ],
)
def test_units_that_a_machine_lacks_are_refused(declared: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(declared)


def test_a_machine_without_gpus_has_none_to_lend() -> None:
    if discover().gpus:
        pytest.skip("this machine has GPUs")
    with pytest.raises(ConfigError, match="has no GPU for this process"):
        resolved(checked({"GPU": "all"}))
