"""The simulator of placement as a user runs it, and what its figures rest on."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from backhaul.cli import main
from backhaul_bench.placement import POLICIES, Options, run
from backhaul_bench.placement.described import MachineError, load_machine, read_machine
from backhaul_bench.placement.machines import MACHINES
from backhaul_bench.placement.workloads import WORKLOADS, critical_path_s, workload

if TYPE_CHECKING:
    from tests.bench.conftest import RunJson

#: Two hosts, one behind a slow NIC
TWO_HOSTS = """
name = "two"
[[host]]
name = "a"
workers = 2
threads = 2
nic_gb_per_s = 1.25
[[host]]
name = "b"
workers = 2
threads = 2
nic_gb_per_s = 0.125
"""


@pytest.fixture(scope="module")
def means() -> dict[tuple[str, str], dict[str, Any]]:
    """Run the grid that CI watches: two machines, all workloads, small."""
    report = run(Options(machines=("dgx-1", "slow-nic"), small=True), on_step=lambda *_: None)
    return {(mean["machine"], mean["policy"]): mean for mean in report.findings["means"]}


@pytest.mark.parametrize(
    ("machine", "upstream", "ours", "ratio"),
    [("dgx-1", 2.2, 1.75, 1.6), ("slow-nic", 10.0, 6.8, 1.9)],
)
def test_placement_has_not_become_worse(
    means: dict[tuple[str, str], dict[str, Any]],
    machine: str,
    upstream: float,
    ours: float,
    ratio: float,
) -> None:
    # Simulated time with a fixed hash seed: the same on any machine, however busy.
    assert means[machine, "upstream"]["over_bound"] > upstream, "upstream has become better"
    assert means[machine, "backhaul"]["over_bound"] < ours
    assert means[machine, "backhaul"]["ratio"] > ratio


def test_the_same_seed_gives_the_same_result() -> None:
    def once() -> list[float]:
        options = Options(machines=("dgx-1",), workloads=("random",), small=True)
        return [row.seconds for row in run(options, on_step=lambda *_: None).rows]

    assert once() == once()


def test_a_user_sees_tables_and_gets_json_and_a_picture(run_json: RunJson, tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(TWO_HOSTS)
    picture = tmp_path / "two.svg"
    arguments = (
        *("bench", "placement", "--machine", str(tmp_path / "two.toml"), "--small"),
        *("--workload", "a+b,shuffle", "--plot", str(picture)),
    )
    report = run_json(*arguments)
    assert report["schema"] == "backhaul.bench.placement/1"
    rows = report["rows"]
    assert [(row["workload"], row["policy"]) for row in rows] == [
        (name, policy) for name in ("a+b", "shuffle") for policy in POLICIES
    ]
    for row in rows:
        assert row["over_bound"] == pytest.approx(row["seconds"] / row["bound_s"])
        assert row["over_bound"] > 0.99
        assert row["moved_bytes"] >= row["crossed_bytes"] > 0
    svg = ET.parse(picture).getroot()
    said = "".join(svg.itertext())
    assert "a+b on" in said
    assert "NIC from b (0.125 GB/s)" in said
    assert len(svg.findall(".//{*}rect")) > 100


def test_the_table_has_the_mean() -> None:
    said = CliRunner().invoke(
        main,
        ["bench", "placement", "--machine", "flat", "--workload", "shuffle", "--small"],
    )
    assert said.exit_code == 0, said.output
    assert "Geometric mean" in said.output
    assert "× as fast as upstream on flat" in said.output
    assert "shuffle" in said.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--machine", "abacus"], "abacus"),
        (["--machine", ""], "name at least one"),
        (["--workload", "knitting"], "knitting"),
        (["--policy", "luck"], "luck"),
        (["--seeds", "0"], "0"),
    ],
)
def test_what_cannot_be_simulated_is_refused(arguments: list[str], message: str) -> None:
    said = CliRunner().invoke(main, ["bench", "placement", *arguments])
    assert said.exit_code == 2
    assert message in said.output


# Machines that are described


def test_a_described_machine_has_a_way_for_each_pair() -> None:
    machine = read_machine(
        TWO_HOSTS
        + """
        [[link]]
        between = [1, 0]
        gb_per_s = 20
        """,
        name="unsaid",
    )
    assert machine.name == "two"
    assert [worker.host for worker in machine.workers] == ["a", "a", "b", "b"]
    assert machine.threads == 8
    assert len(machine.routes) == 12

    def rate(sender: int, receiver: int) -> float:
        edges = machine.routes[sender, receiver].edges
        return min(machine.capacities_bytes_per_s[edge] for edge in edges)

    assert rate(0, 1) == rate(1, 0) == 20e9
    assert rate(2, 3) == 5e9
    assert rate(0, 2) == 0.125e9


HOST = '[[host]]\nname = "a"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "no TOML"),
        ("", r"no \[\[host\]\]"),
        ("[[host]]", "number 0 has no name"),
        (HOST + HOST, "two .* called 'a'"),
        (HOST + 'speed = "high"', "unknown key 'speed'"),
        (HOST + "workers = 0", "workers is 0"),
        (HOST + "workers = 1000", "workers is 1000"),
        (HOST + "threads = 1.5", "threads is 1.5"),
        (HOST + "workers = 2\nshared_gb_per_s = nan", "shared_gb_per_s is nan"),
        (HOST + "workers = 2\nshared_gb_per_s = -1", "shared_gb_per_s is -1"),
        (HOST + 'workers = 2\nshared_gb_per_s = "1"', "which is no number"),
        (HOST + '[[host]]\nname = "b"', "no nic_gb_per_s"),
        (HOST + 'rack = "r"', "rack 'r', which is not there"),
        ("host = 3", "array of tables"),
        ('work = "steam"\n' + HOST, "'steam'"),
        (HOST + "[[link]]\nbetween = [0, 1]\ngb_per_s = 1", "below 1"),
        (HOST + "workers = 2\n[[link]]\nbetween = [1, 1]\ngb_per_s = 1", "with itself"),
        (HOST + "workers = 2\n[[link]]\nbetween = [0, 1]", "has no gb_per_s"),
    ],
)
def test_a_description_that_is_none_is_refused_with_the_value(text: str, message: str) -> None:
    with pytest.raises(MachineError, match=message):
        read_machine(text, name="x")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"missing\.toml"):
        load_machine(str(tmp_path / "missing.toml"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(MachineError, match="binary"):
        load_machine(str(tmp_path / "binary"))


@pytest.mark.parametrize("name", MACHINES)
def test_a_built_in_machine_has_a_way_for_each_pair(name: str) -> None:
    machine = load_machine(name)
    workers = range(len(machine.workers))
    pairs = {(a, b) for a in workers for b in workers if a != b}
    assert set(machine.routes) == pairs
    for route in machine.routes.values():
        assert 1 <= len(route.edges) <= 4
        assert all(0 < machine.capacities_bytes_per_s[edge] < math.inf for edge in route.edges)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("work", ["cpu", "gpu"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_a_graph_whose_results_exist(name: str, work: str, small: bool) -> None:
    phases = workload(name, work=work, small=small)
    known: set[Any] = set()
    for phase in phases:
        known |= phase.graph.keys()
        assert set(phase.keys) <= phase.graph.keys()
        for task in phase.graph.values():
            assert set(task.needs) <= known
            assert task.seconds > 0
        assert critical_path_s(phase.graph, overhead_s=0.0) > 0
    assert json.dumps([len(phase.graph) for phase in phases])
