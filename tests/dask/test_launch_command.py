"""``dask backhaul``: real programs that start workers, and leave none behind."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from distributed import Client

from backhaul.dask import LocalCluster, lanes
from backhaul.dask.launch.command import main
from backhaul.dask.launch.supervisor import reason_of

if TYPE_CHECKING:
    from tests.dask.conftest import Program, Start

CPUS = sorted(os.sched_getaffinity(0))

pytestmark = [
    pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs to tell workers apart"),
]

COMMAND = ["-m", "dask", "backhaul"]
SCHEDULER = [*COMMAND, "scheduler", "--host", "127.0.0.1", "--no-dashboard"]
WORKER = ["--nworkers", "2", "--nthreads", "1", "--no-dashboard"]


def processes_of(session: int) -> list[int]:
    """List the processes of a session that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def assert_all_ended(program: Program) -> None:
    """Wait until nothing is left of a program and of what it started."""
    program.wait()
    deadline = time.monotonic() + 300
    while left := processes_of(program.process.pid):
        assert time.monotonic() < deadline, (left, program.output)
        time.sleep(0.05)


@pytest.fixture(scope="module")
def scheduler(start: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Start a scheduler, and tell its addresses and its file; each test ends its own workers."""
    file = tmp_path_factory.mktemp("scheduler") / "scheduler.json"
    program = start(*SCHEDULER, "--port", "0", "--scheduler-file", str(file))
    found = {
        scheme: program.wait_for(rf"Scheduler at:\s+({scheme}://127\.0\.0\.1:\d+)")
        for scheme in ("tcp", "backhaul")
    }
    return found | {"file": str(file)}


def test_workers_of_a_command_are_pinned_and_share_memory(
    scheduler: dict[str, str], start: Start, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    program = start(
        *COMMAND, "worker", scheduler["tcp"], *WORKER, "--name", "here",
        "--resources", "MEM=2 GPU=[[0,1],[2,3]]",
        "--memory-limit", "1GiB", "--env", "COLOUR=green", "--pid-file", str(pid_file),
    )  # fmt: skip
    # Given one address of the scheduler, it finds the better one.
    program.wait_for(rf"speaking to the scheduler at ({scheduler['backhaul']})")
    program.wait_for(r"(2 of 2): here-\d at backhaul://127\.0\.0\.1:\d+ on CPUs \d+")
    assert int(pid_file.read_text()) == program.process.pid
    with Client(scheduler["backhaul"]) as client:

        def found(dask_worker: Any) -> tuple[Any, ...]:
            from backhaul.dask.resource_pools.worker_state import slots_of

            slots = slots_of(dask_worker.state)
            assert slots is not None
            resources = dict(dask_worker.state.total_resources) | slots.groups
            return (
                dask_worker.name, os.sched_getaffinity(0), os.environ["COLOUR"], resources,
                dask_worker.memory_manager.memory_limit,
            )  # fmt: skip

        assert sorted(client.run(found).values()) == [
            ("here-0", {CPUS[0]}, "green", {"MEM": 2, "GPU": [[0, 1], [2, 3]]}, 1 << 30),
            ("here-1", {CPUS[1]}, "green", {"MEM": 2, "GPU": [[0, 1], [2, 3]]}, 1 << 30),
        ]
        between: Any = lanes(client)
        assert set(between.values()) == {"shm"}
    program.process.send_signal(signal.SIGTERM)
    assert_all_ended(program)
    assert program.process.returncode == 0, program.output
    assert not pid_file.exists()


def test_workers_of_a_command_join_a_cluster_of_a_program(start: Start) -> None:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.restart()
        assert cluster.tcp_address is not None
        program = start(*COMMAND, "worker", cluster.tcp_address, *WORKER)
        program.wait_for(rf"speaking to the scheduler at ({cluster.scheduler_address})")
        client.wait_for_workers(3, timeout=300)
        program.process.send_signal(signal.SIGTERM)
        assert_all_ended(program)


def test_control_c_ends_everything_that_was_started(
    scheduler: dict[str, str], start: Start
) -> None:
    program = start(
        "-m", "backhaul.dask.launch.worker", "--scheduler-file", scheduler["file"], *WORKER
    )
    program.wait_for(r"(2 of 2): ")
    assert len(processes_of(program.process.pid)) >= 3
    # A terminal sends it to the whole group, workers included.
    os.killpg(program.process.pid, signal.SIGINT)
    assert_all_ended(program)
    assert program.process.returncode == 0, program.output
    # The workers had the time to end in good order.
    assert "Traceback" not in program.output
    assert "killed" not in program.output


def test_a_command_can_be_ended_while_its_workers_start(
    scheduler: dict[str, str], start: Start
) -> None:
    program = start(*COMMAND, "worker", scheduler["tcp"], *WORKER)
    program.wait_for(r"(2 workers on )")
    program.process.send_signal(signal.SIGINT)
    assert_all_ended(program)


def test_a_command_that_is_killed_takes_its_workers_along(
    scheduler: dict[str, str], start: Start
) -> None:
    program = start(*COMMAND, "worker", scheduler["tcp"], *WORKER)
    program.wait_for(r"(2 of 2): ")
    program.process.kill()
    assert_all_ended(program)


def test_workers_that_find_no_scheduler_say_so_and_end(start: Start) -> None:
    program = start(
        *COMMAND, "worker", "backhaul://127.0.0.1:1", *WORKER,
        env={"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "2s"},
    )  # fmt: skip
    assert_all_ended(program)
    assert program.process.returncode == 1
    *_, last = program.output.splitlines()
    assert last.startswith(
        "Error: the scheduler at backhaul://127.0.0.1:1 was not reached within 2 s: "
    )


def test_workers_that_wait_for_a_scheduler_can_be_ended(start: Start) -> None:
    program = start(*COMMAND, "worker", "backhaul://127.0.0.1:1", *WORKER)
    program.wait_for(r"(the scheduler at backhaul://127.0.0.1:1 is not reached yet: )")
    program.process.send_signal(signal.SIGTERM)
    assert_all_ended(program)


def test_a_name_that_is_taken_is_refused_before_anything_starts(
    scheduler: dict[str, str], start: Start
) -> None:
    first = start(*COMMAND, "worker", scheduler["tcp"], *WORKER, "--name", "taken")
    first.wait_for(r"(2 of 2): ")
    second = start(*COMMAND, "worker", scheduler["tcp"], *WORKER, "--name", "taken")
    assert_all_ended(second)
    assert second.process.returncode == 2
    *_, last = second.output.splitlines()
    assert f"scheduler at {scheduler['tcp']} has a worker named 'taken-0' already" in last
    assert "another --name" in last
    first.process.send_signal(signal.SIGTERM)
    assert_all_ended(first)


def test_a_name_that_another_command_took_meanwhile_is_told_with_the_option() -> None:
    error = RuntimeError("Worker failed to start.")
    error.__cause__ = ValueError("Unexpected response from register: 'name taken, vm-numa0'")
    assert "give these another --name" in reason_of(error)
    assert "vm-numa0" in reason_of(error)


def test_workers_end_with_their_scheduler(start: Start) -> None:
    scheduler = start(*SCHEDULER, "--port", "0")
    address = scheduler.wait_for(r"Scheduler at:\s+(tcp://\S+)")
    program = start(*COMMAND, "worker", address, *WORKER)
    program.wait_for(r"(2 of 2): ")
    scheduler.process.send_signal(signal.SIGTERM)
    assert_all_ended(scheduler)
    assert_all_ended(program)


def test_a_command_under_a_cpuset_plans_with_what_it_was_given(
    scheduler: dict[str, str], start: Start
) -> None:
    # As a batch system would: one CPU of the host.
    program = start(
        *COMMAND, "worker", scheduler["tcp"], "--no-dashboard", "--name", "job",
        within=["taskset", "--cpu-list", str(CPUS[1])],
    )  # fmt: skip
    program.wait_for(rf"1 of 1: job at \S+ on CPUs ({CPUS[1]})$")
    program.process.send_signal(signal.SIGTERM)
    assert_all_ended(program)


def run(*arguments: str) -> Result:
    """Run a command within this process; it starts nothing."""
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def test_a_plan_is_printed_and_can_be_followed(
    scheduler: dict[str, str], start: Start, tmp_path: Path
) -> None:
    told = run("plan", "--nworkers", "2")
    assert told.exit_code == 0, told.output
    assert "2 workers as asked for" in told.output
    planned = run("plan", "--nworkers", "2", "--json")
    workers = json.loads(planned.stdout)["workers"]
    assert [worker["cpus"] for worker in workers] == [str(cpu) for cpu in CPUS[:2]]
    file = tmp_path / "plan.json"
    file.write_text(planned.stdout)
    program = start(*COMMAND, "worker", scheduler["tcp"], "--plan", str(file), "--no-dashboard")
    program.wait_for(r"(2 of 2): ")
    program.process.send_signal(signal.SIGTERM)
    assert_all_ended(program)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["worker"], "no scheduler: give its address"),
        (["worker", "tcp://127.0.0.1:1", "--nworkers", "1000"], "1000 workers"),
        (["worker", "tcp://127.0.0.1:1", "--nworkers", "many"], "'many'"),
        (["worker", "tcp://127.0.0.1:1", "--nworkers", "-1000"], "leaves no worker"),
        (["worker", "tcp://127.0.0.1:1", "--no-nanny"], "--no-nanny does not work here"),
        (
            ["worker", "tcp://127.0.0.1:1", "--listen-address", "tcp://b:2"],
            "--listen-address does not",
        ),
        (["worker", "tcp://127.0.0.1:1", "--interface", "ib"], "no network interface begins with"),
        (["worker", "tcp://127.0.0.1:1", "--env", "A"], "'--env': 'A': not like NAME=VALUE"),
        (
            ["worker", "tcp://127.0.0.1:1", "--resources", "GPU=x"],
            "'x' is neither a number nor ids",
        ),
        (["worker", "tcp://127.0.0.1:1", "--policy", "per-gpu", "--gpus", "0,0"], "twice"),
        (["worker", "--scheduler-file", "/nowhere", "--death-timeout", "100ms"], "/nowhere"),
        (["plan", "--policy", "per-numa", "--nworkers", "2"], "drop --nworkers"),
        (["plan", "--plan", __file__], "test_launch_command.py"),
    ],
)
def test_an_impossible_option_is_one_line(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert message in done.output
