from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from backhaul import topology
from backhaul.errors import ConfigError, MachineError, PlanError

FIXTURES = Path(__file__).parents[2] / "crates/topology/tests/fixtures"


@pytest.fixture(scope="module")
def dgx1() -> topology.Machine:
    return topology.load(FIXTURES / "dgx-1.nvidia-smi.txt")


@pytest.mark.parametrize("name", ["dgx-1.nvidia-smi.txt", "dgx-1.hwloc.xml"])
def test_the_plan_of_a_dgx1_is_that_of_the_function_written_by_hand(name: str) -> None:
    plan = topology.load(FIXTURES / name).plan("per-gpu", interface="ib")
    near = {True: {*range(20), *range(40, 60)}, False: {*range(20, 40), *range(60, 80)}}
    for index, worker in enumerate(plan.workers):
        assert worker.name == f"gpu{index}"
        assert worker.cpus == near[index < 4]
        assert worker.nic == f"ib{index // 2}"
        assert worker.rdma == f"mlx5_{index // 2}"
        assert worker.threads == 1
        assert worker.gpus[0].index == index
        names = [gpu.uuid or str(gpu.index) for gpu in worker.gpus]
        assert worker.cuda_visible_devices == ",".join(names)
        assert len(set(names)) == 8
    assert len(plan.workers) == 8


def test_machines_and_plans_survive_json(dgx1: topology.Machine) -> None:
    assert topology.parse(dgx1.to_json()) == dgx1
    plan = dgx1.plan("n", n=3)
    assert topology.Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.glob("*.json")))
def test_every_recorded_machine_can_be_read_and_planned_for(name: str) -> None:
    machine = topology.load(FIXTURES / name)
    assert topology.parse(machine.to_json(indent=1)) == machine
    plan = machine.plan("n", n=1)
    assert plan.workers[0].cpus == (machine.allowed_cpus or machine.online_cpus)


def test_distances_are_in_the_words_of_nvidia_smi(dgx1: topology.Machine) -> None:
    assert dgx1.distance("gpu0", "gpu3").path == "NV2"
    assert dgx1.distance("gpu0", "gpu0").path == "X"
    near, far = dgx1.distance("gpu0", "mlx5_0"), dgx1.distance("gpu0", "mlx5_2")
    assert (near.path, far.path) == ("PIX", "SYS")
    assert near.bandwidth_bytes_per_s > far.bandwidth_bytes_per_s
    assert near.latency_s < far.latency_s
    with pytest.raises(ConfigError, match="gpu9"):
        dgx1.distance("gpu0", "gpu9")


def test_a_route_goes_by_another_gpu_where_that_is_faster(dgx1: topology.Machine) -> None:
    found = topology.route(dgx1, "gpu0", "gpu5")
    assert found.devices in [("gpu0", "gpu1", "gpu5"), ("gpu0", "gpu4", "gpu5")]
    assert found.hops == 2
    assert found.bandwidth_bytes_per_s == pytest.approx(20e9)
    straight = dgx1.distance("gpu0", "gpu5")
    assert straight.bandwidth_bytes_per_s == pytest.approx(6e9)
    near = topology.route(dgx1, "gpu0", "mlx5_0")
    assert (near.devices, near.hops) == (("gpu0", "mlx5_0"), 1)
    with pytest.raises(ConfigError, match="gpu9"):
        topology.route(dgx1, "gpu0", "gpu9")


def test_options_of_any_fitting_type_are_taken(dgx1: topology.Machine) -> None:
    plan = dgx1.plan(
        "per-gpu", gpus=[2, "6"], cpus=range(30), memory_limit="4 GiB", threads_per_worker=2
    )
    assert [worker.name for worker in plan.workers] == ["gpu2", "gpu6"]
    assert [worker.cuda_visible_devices for worker in plan.workers] == ["2,6", "6,2"]
    assert plan.workers[0].cpus == set(range(20))
    assert plan.workers[1].cpus == set(range(20, 30))
    assert {worker.memory_bytes for worker in plan.workers} == {4 << 30}
    assert {worker.threads for worker in plan.workers} == {2}
    assert dgx1.plan("per-gpu", gpus="2, 6") == dgx1.plan("per-gpu", gpus=[2, 6])
    assert dgx1.plan("per-numa", cpus="0-29") == dgx1.plan("per-numa", cpus=range(30))


def test_impossible_plans_name_the_value_and_the_way_out(dgx1: topology.Machine) -> None:
    with pytest.raises(PlanError, match=r"no GPU \"9\"; there are 0, 1, 2"):
        dgx1.plan("per-gpu", gpus=[9])
    with pytest.raises(PlanError, match=r"81 workers .* ask for at most 80"):
        dgx1.plan("n", n=81)
    with pytest.raises(PlanError, match="CPUs 80 do not exist"):
        dgx1.plan(cpus=[79, 80])
    with pytest.raises(PlanError, match='no interface "ib7"'):
        dgx1.plan(nics=["ib7"])
    forbidden = dataclasses.replace(dgx1, allowed_cpus=frozenset(range(4)))
    with pytest.raises(PlanError, match=r"CPUs 4-5 may not be used .* choose from 0-3"):
        forbidden.plan(cpus="2-5")


def test_options_that_are_no_options_are_refused(dgx1: topology.Machine) -> None:
    with pytest.raises(ConfigError, match=r"policy is 'per-core': choose from per-gpu"):
        dgx1.plan("per-core")  # type: ignore[arg-type]
    for option in ("n", "threads_per_worker", "memory_limit"):
        for value in (-1, 2.5, True, 1 << 64):
            with pytest.raises(ConfigError, match=f"^{option} is {value}: it must be a whole"):
                dgx1.plan("n", **{"n": 1, option: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"0-3,8: \"0-x\"$"):
        dgx1.plan(cpus="0-x")
    with pytest.raises(ConfigError, match="'4 stones' is not a size"):
        dgx1.plan(memory_limit="4 stones")


def test_files_that_are_no_machines_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    table = (FIXTURES / "dgx-1.nvidia-smi.txt").read_text()
    path.write_text(table.replace("NV2", "NVX", 1))
    with pytest.raises(MachineError, match=r"table\.txt: line \d+.*NVX"):
        topology.load(path)
    path.write_text("no machine")
    with pytest.raises(MachineError, match=r"table\.txt: neither JSON"):
        topology.load(path)
    path.write_text('{"format": 1}')
    with pytest.raises(MachineError, match=r"table\.txt: not a machine in JSON: missing field"):
        topology.load(path)
    with pytest.raises(MachineError, match="half of a character"):
        topology.parse("\ud800")
    with pytest.raises(MachineError, match=r"/dev/zero: more than 64 MiB"):
        topology.load("/dev/zero")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(MachineError, match="byte 0 is not UTF-8"):
        topology.load(path)
    with pytest.raises(FileNotFoundError):
        topology.load(tmp_path / "absent")
    path.write_text("text")
    with pytest.raises(ConfigError, match="yaml"):
        topology.load(path, format="yaml")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "[]", "{}", "no plan", '{"policy": "per-core"}'])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a plan in JSON"):
        topology.Plan.from_json(text)
