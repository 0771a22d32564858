from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backhaul import topology

if TYPE_CHECKING:
    from tests.topology.conftest import Run

FIXTURES = Path(__file__).parents[2] / "crates/topology/tests/fixtures"
DGX1 = str(FIXTURES / "dgx-1.nvidia-smi.txt")


def test_this_machine_is_shown_as_tree_and_matrix(run: Run) -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    assert f"CPUs {topology.cpu_list(topology.discover().online_cpus)}" in done.stdout
    assert "─ " in done.stdout
    assert "Legend" in done.stdout or "No GPUs, network cards or disks" in done.stdout


def test_this_machine_can_be_recorded_and_read_elsewhere(run: Run, tmp_path: Path) -> None:
    done = run("--json")
    assert done.returncode == 0, done.stderr
    recorded = tmp_path / "machine.json"
    recorded.write_text(done.stdout)
    machine = topology.load(recorded)
    assert machine.allowed_cpus == os.sched_getaffinity(0)
    again = run("--from", str(recorded), "--json")
    assert again.stdout == done.stdout
    piped = run("--from", "-", "--json", stdin=done.stdout)
    assert piped.stdout == done.stdout


@pytest.mark.parametrize(
    "name", sorted(path.name for path in FIXTURES.iterdir() if path.suffix in {".json", ".xml"})
)
def test_every_recorded_machine_has_a_tree_and_a_picture(run: Run, name: str) -> None:
    source = str(FIXTURES / name)
    shown = run("--from", source)
    assert shown.returncode == 0, shown.stderr
    assert "CPUs" in shown.stdout
    drawn = run("--from", source, "--svg", "-", "--plan", "n", "--workers", "1")
    assert drawn.returncode == 0, drawn.stderr
    root = ElementTree.fromstring(drawn.stdout)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "Workers, n" in "".join(root.itertext())


def test_the_matrix_of_a_dgx1_is_its_table(run: Run) -> None:
    done = run("--from", DGX1, "--matrix")
    cells = [line.split() for line in done.stdout.splitlines()]
    table = [line.split() for line in Path(DGX1).read_text().splitlines()]
    rows = [row for row in table if row and row[0].startswith(("GPU", "mlx5_"))][1:]
    assert len(rows) == 12
    for row in rows:
        assert row in cells


def test_a_plan_is_a_table_or_json(run: Run) -> None:
    arguments = ("--from", DGX1, "--plan", "per-gpu", "--interface", "ib", "--gpus", "0, 5")
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["gpu0", "0-19,40-59", "1", "0,5", "ib0", "mlx5_0"] in lines
    assert ["gpu5", "20-39,60-79", "1", "5,0", "ib2", "mlx5_2"] in lines
    assert "Warning: the machine tells no interfaces" in done.stdout
    done = run(*arguments, "--json", "--threads", "2", "--memory", "4GiB")
    plan = topology.Plan.from_json(done.stdout)
    assert [worker.nic for worker in plan.workers] == ["ib0", "ib2"]
    assert {(worker.threads, worker.memory_bytes) for worker in plan.workers} == {(2, 4 << 30)}


def test_a_plan_for_this_machine_keeps_to_its_cpus(run: Run) -> None:
    allowed = os.sched_getaffinity(0)
    done = run("--plan", "n", "--workers", str(len(allowed)), "--json")
    plan = topology.Plan.from_json(done.stdout)
    assert {cpu for worker in plan.workers for cpu in worker.cpus} == allowed
    one = min(allowed)
    done = run("--plan", "per-numa", "--cpus", str(one), "--json")
    assert topology.Plan.from_json(done.stdout).workers[0].cpus == {one}


def test_a_picture_is_written_to_a_file(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "machine.svg"
    done = run("--from", DGX1, "--svg", str(target), "--plan", "per-gpu")
    assert (done.returncode, done.stdout) == (0, "")
    root = ElementTree.parse(target).getroot()
    assert "GPU 7" in "".join(root.itertext())
    done = run("--from", DGX1, "--svg", str(tmp_path / "absent" / "machine.svg"))
    assert done.returncode == 2
    assert "machine.svg: No such file or directory" in done.stderr


def test_a_folder_with_sys_and_proc_is_a_machine(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-2\n")
    done = run("--from", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["online_cpus"] == "0-2"
    (tmp_path / "empty").mkdir()
    done = run("--from", str(tmp_path / "empty"))
    assert done.returncode == 2
    assert str(tmp_path / "empty") in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GPU0 GPU1\nGPU0 X NVX\nGPU1 NVX X\n", "line 2"),
        ('{"format": 1,\n "name": 7}', "line 2"),
        ('{"format": 9}', "format 9"),
        ("<topology>\n<object></topology>", "2:"),
        ("no machine at all", "it begins with"),
        ("", "it begins with"),
    ],
)
def test_bad_files_are_refused_by_name_and_line(
    run: Run, tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(text)
    for done in (run("--from", str(path)), run("--from", "-", stdin=text)):
        assert done.returncode == 2, done.stdout
        assert done.stdout == ""
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    assert "bad.txt: " in run("--from", str(path)).stderr
    assert "standard input: " in run("--from", "-", stdin=text).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "/absent"), "/absent: No such file"),
        (("--from", DGX1, "--plan", "n"), "give n"),
        (("--from", DGX1, "--plan", "n", "--workers", "81"), "at most 80"),
        (("--from", DGX1, "--plan", "n", "--workers", "-1"), "'--workers': -1"),
        (("--from", DGX1, "--plan", "per-numa", "--threads", "0"), "'--threads': 0"),
        (
            ("--from", DGX1, "--plan", "per-numa", "--interface", ""),
            "prefix of interfaces is empty",
        ),
        (("--from", "/dev/zero"), "/dev/zero: more than 64 MiB"),
        (("--from", DGX1, "--plan", "per-gpu", "--gpus", "8"), '"8"; there are 0, 1'),
        (("--from", DGX1, "--plan", "per-gpu", "--nics", "ib9"), '"ib9"'),
        (("--from", DGX1, "--plan", "per-numa", "--cpus", "0-99"), "CPUs 80-99 do not exist"),
        (("--from", DGX1, "--plan", "per-numa", "--cpus", "x"), '"x"'),
        (("--from", DGX1, "--plan", "per-l3"), "use per-numa"),
        (("--from", DGX1, "--plan", "per-core"), "per-core"),
        (("--from", DGX1, "--plan", "per-numa", "--memory", "4 stones"), "4 stones"),
        (("--from", DGX1, "--gpus", "1"), "--gpus is for a plan"),
        (("--format", "json"), "give --from"),
        (("--json", "--svg", "x.svg"), "--json and --svg exclude each other"),
        (("--matrix", "--plan", "per-numa"), "--matrix and --plan exclude each other"),
    ],
)
def test_what_is_impossible_is_refused_in_words(
    run: Run, arguments: tuple[str, ...], message: str
) -> None:
    done = run(*arguments)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_output_is_an_error_in_words() -> None:
    done = subprocess.run(
        [
            "/bin/sh",
            "-c",
            '"$@" >&-',
            "sh",
            sys.executable,
            "-m",
            "backhaul",
            "topology",
            "--from",
            DGX1,
        ],
        stderr=subprocess.PIPE,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "output is closed" in done.stderr
    assert "Traceback" not in done.stderr


def test_names_cannot_command_a_terminal(run: Run) -> None:
    machine = topology.load(FIXTURES / "dual-socket.tree.json")
    evil = dataclasses.replace(machine, name="\x1b]0;owned\x07\x9b31m")
    done = run("--from", "-", stdin=evil.to_json())
    assert "\N{REPLACEMENT CHARACTER}]0;owned" in done.stdout
    assert not {"\x1b", "\x07", "\x9b"} & set(done.stdout)
