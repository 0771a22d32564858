"""Machines and plans as dataclasses and as the native objects behind them."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from backhaul import _native, topology
from backhaul.errors import ConfigError, MachineError

FIXTURES = Path(__file__).parents[2] / "crates/topology/tests/fixtures"
RECORDED = sorted(path.name for path in FIXTURES.glob("*.json"))


@pytest.fixture
def dgx1() -> topology.Machine:
    return topology.load(FIXTURES / "dgx-1.hwloc.json")


def described(machine: topology.Machine) -> tuple[object, ...]:
    """All that is asked of a native machine."""
    plan = machine.plan("n", n=1)
    return machine.tree(), machine.matrix(), plan, machine.svg(plan), plan.table()


@pytest.mark.parametrize("name", RECORDED)
def test_a_machine_is_the_same_in_json_in_python_and_natively(name: str) -> None:
    machine = topology.load(FIXTURES / name)
    assert json.loads(machine.to_json()) == json.loads((FIXTURES / name).read_text())
    assert _native.Machine(machine).record() == machine
    by_hand = dataclasses.replace(machine)
    assert described(by_hand) == described(machine)
    plan = machine.plan("n", n=1)
    assert _native.Plan(plan).record() == plan
    assert dataclasses.replace(plan).table() == plan.table()


def test_the_native_object_is_no_part_of_the_value(dgx1: topology.Machine) -> None:
    plan = dgx1.plan("per-gpu")
    for record in (dgx1, plan):
        fresh: Any = dataclasses.replace(record)
        assert fresh == record
        assert hash(fresh) == hash(record)
        assert repr(fresh) == repr(record)
        assert pickle.dumps(fresh) == pickle.dumps(record)
        assert dataclasses.asdict(fresh) == dataclasses.asdict(record)
    for same in (pickle.loads(pickle.dumps(dgx1)), copy.copy(dgx1), copy.deepcopy(dgx1)):
        assert same == dgx1
        assert same.plan("per-gpu") == plan


def test_what_is_replaced_counts(dgx1: topology.Machine) -> None:
    assert "renamed" not in dgx1.tree()
    renamed = dataclasses.replace(dgx1, name="renamed")
    assert "renamed" in renamed.tree()
    assert renamed.plan().machine == "renamed"
    plan = dataclasses.replace(renamed.plan(), warnings=("mind this",))
    assert "mind this" in plan.table()


def test_every_choice_has_the_name_that_json_has(dgx1: topology.Machine) -> None:
    nic = dgx1.nics[0]
    kinds = ("loopback", "ethernet", "infiniband", "virtual", "other")
    paths = ("PIX", "PXB", "PHB", "NODE", "SYS")
    machine = dataclasses.replace(
        dgx1,
        nics=tuple(dataclasses.replace(nic, name=kind, kind=kind) for kind in kinds),
        rdma=(),
        told_paths=tuple(topology.ToldPath(("gpu0", "loopback"), path) for path in paths),
    )
    assert _native.Machine(machine).record() == machine
    assert topology.parse(machine.to_json()) == machine
    plan = dgx1.plan("n", n=1)
    for policy in topology.POLICIES:
        other = dataclasses.replace(plan, policy=policy)
        assert _native.Plan(other).record() == other
        assert topology.Plan.from_json(other.to_json()) == other


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": 7}, r"name is 7: it must be text"),
        ({"name": "\ud800"}, r"name is '\\ud800': it must be text"),
        ({"cpu_quota": "2"}, r"cpu_quota is '2': it must be a number"),
        ({"memory_bytes": -1}, r"memory_bytes is -1: it must be a whole number from 0 to 1844"),
        ({"memory_bytes": True}, r"memory_bytes is True: it must be a whole number"),
        ({"notes": "a note"}, r"notes is 'a note': it must be a collection"),
        ({"notes": ("a", None)}, r"notes\[1\] is None: it must be text"),
        ({"allowed_cpus": frozenset({1 << 16})}, r"allowed_cpus is .*65536.* below 65536"),
        ({"allowed_cpus": "0-x"}, r'allowed_cpus: not a list of CPUs .*: "0-x"'),
        ({"gpus": (7,)}, r"gpus\[0\] is 7: it must be a Gpu"),
        ({"nvlinks": (topology.NvLink((0,), 1, None),)}, r"nvlinks\[0\].gpus is .*must be two"),  # type: ignore[arg-type]
        (
            {"told_paths": (topology.ToldPath(("gpu0", "gpu1"), "NEAR"),)},
            r"told_paths\[0\].path is 'NEAR': choose from PIX, PXB, PHB, NODE, SYS",
        ),
        ({"format": 2}, "a machine in format 2"),
        ({"allowed_nodes": (9,)}, "allowed_nodes: 9: not of this machine"),
    ],
)
def test_values_that_no_machine_has_are_refused_with_their_place(
    dgx1: topology.Machine, values: dict[str, Any], message: str
) -> None:
    wrong = dataclasses.replace(dgx1, **values)
    for ask in (wrong.tree, wrong.matrix, wrong.svg, wrong.plan):
        with pytest.raises(MachineError, match=f"^not a machine: {message}"):
            ask()


def test_values_that_no_plan_has_are_refused_with_their_place(dgx1: topology.Machine) -> None:
    plan = dgx1.plan("per-gpu")
    worker = dataclasses.replace(plan.workers[1], threads=1.5)  # type: ignore[arg-type]
    wrong = dataclasses.replace(plan, workers=(plan.workers[0], worker))
    message = r"^not a plan: workers\[1\].threads is 1.5: it must be a whole number"
    with pytest.raises(ConfigError, match=message):
        wrong.table()
    with pytest.raises(ConfigError, match=message):
        dgx1.svg(wrong)


def test_a_long_value_is_cut_in_the_message(dgx1: topology.Machine) -> None:
    wrong = dataclasses.replace(dgx1, cpu_quota="1" * 100_000)  # type: ignore[arg-type]
    with pytest.raises(MachineError) as caught:
        wrong.tree()
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("memory_fraction", "half", "memory_fraction is 'half': it must be a number"),
        ("exclusive_cpus", "no", "exclusive_cpus is 'no': it must be True or False"),
        ("interface", 7, "interface is 7: it must be text"),
        ("nics", [7], r"nics\[0\] is 7: it must be text"),
        ("cpus", [0, -1], r"cpus is \[0, -1\]: it must be whole numbers below 65536"),
        ("cpus", 3, "cpus is 3: it must be whole numbers"),
        ("policy", 3, "policy is 3: choose from per-gpu, per-numa, per-l3, n"),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused_by_name(
    dgx1: topology.Machine, option: str, value: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        dgx1.plan(**{option: value})  # type: ignore[arg-type]


def test_native_objects_are_made_of_records_alone() -> None:
    with pytest.raises(MachineError, match="7: it must be a Machine"):
        _native.Machine(7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="7: it must be a Plan"):
        _native.Plan(7)  # type: ignore[arg-type]
