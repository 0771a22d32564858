"""The two ways of the guide to Slurm, on a Slurm of one node that the tests start."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.documents.written import ROOT

DEADLINE_S: Final = 300.0
PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel")
MISSING: Final = [name for name in PROGRAMS if shutil.which(name) is None]

pytestmark = [
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"needs {', '.join(MISSING)}: apt-get install munge slurmctld slurmd slurm-client",
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd starts jobs as root only"),
    pytest.mark.once(reason="a release of Dask decides nothing of how Slurm starts programs"),
]

CONFIGURATION: Final = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=4096
PartitionName=one Nodes=ALL Default=YES
"""

#: Prints addresses of the scheduler and the workers, a result, and the variables of Slurm there
JOB: Final = """
import json, os
def show(client):
    client.wait_for_workers(1)
    workers = client.scheduler_info()["workers"]
    jobs = client.run(lambda: os.environ["SLURM_JOB_ID"])
    print(json.dumps({
        "sum": client.submit(sum, client.map(len, ["a", "bc"])).result(),
        "workers": [[address.partition(":")[0], each["name"]] for address, each in workers.items()],
        "jobs": sorted(jobs.values()),
    }), flush=True)
"""

JOBQUEUE_PROGRAM: Final = """
from dask_jobqueue import SLURMCluster
from distributed import Client
if __name__ == "__main__":
    with SLURMCluster(
        cores=1, memory="1GiB", processes=1, protocol="backhaul://", interface="lo",
        worker_command="backhaul.dask.launch.worker", worker_extra_args=["--nworkers", "1"],
        scheduler_options={"dashboard_address": ":0"},
    ) as cluster:
        cluster.scale(jobs=1)
        with Client(cluster) as client:
            show(client)
"""


def free_ports() -> list[int]:
    with contextlib.ExitStack() as open_ones:
        sockets = [open_ones.enter_context(socket.socket()) for _ in range(2)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start the daemons, and return the environment of programs that use them."""
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(64))
    key.chmod(0o400)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            folder=folder,
            ports=free_ports(),
            cpus=len(os.sched_getaffinity(0)),
        )
    )
    environment = {
        **os.environ,
        "SLURM_CONF": str(configuration),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    files = {"key": "key", "socket": "socket", "pid": "pid", "log": "log", "seed": "seed"}
    munged = [f"--{name}-file={folder}/munge.{end}" for name, end in files.items()]
    munged[1] = f"--socket={folder}/munge.socket"
    with contextlib.ExitStack() as started:
        for command in (
            ["munged", "--foreground", "--force", *munged],
            ["slurmctld", "-D", "-f", str(configuration)],
            ["slurmd", "-D", "-f", str(configuration)],
        ):
            log = started.enter_context((folder / f"{command[0]}.out").open("w"))
            daemon = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            started.callback(daemon.wait, DEADLINE_S)
            started.callback(daemon.terminate)
        deadline = time.monotonic() + DEADLINE_S
        # srun waits for the node once the controller is there
        while run(environment, "srun", "true").returncode != 0:
            assert time.monotonic() < deadline, (folder / "slurmctld.out").read_text()
        yield environment
        run(environment, "scancel", "--user=root", "--full")


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def test_the_script_of_the_guide_starts_a_cluster_in_one_job(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    guide = (ROOT / "docs/guides/slurm.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```sh\n(#!/bin/bash\n.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    script = re.sub(r"--interface ib0?\b", "--interface lo", script.replace("nodes=4", "nodes=1"))
    (tmp_path / "job.sh").write_text(script)
    (tmp_path / "program.py").write_text(
        f"import sys\nfrom distributed import Client\n{JOB}\n"
        "if __name__ == '__main__':\n"
        "    with Client(scheduler_file=sys.argv[1]) as client:\n        show(client)\n"
    )
    output = tmp_path / "output"
    submit = ["sbatch", "--parsable", f"--output={output}", f"--chdir={tmp_path}", "job.sh"]
    submitted = subprocess.run(submit, env=slurm, cwd=tmp_path, stdout=subprocess.PIPE, check=True)
    # It begins when that job has ended; `sbatch --wait` looks each half minute
    done = run(slurm, "srun", f"--dependency=afterok:{int(submitted.stdout)}", "true")
    assert done.returncode == 0, done.stderr + output.read_text()
    (line,) = re.findall(r'^(\{"sum".*)$', output.read_text(), re.MULTILINE)
    found = json.loads(line)
    assert found["sum"] == 3
    assert {scheme for scheme, _ in found["workers"]} == {"backhaul"}
    assert len(set(found["jobs"])) == 1


def test_dask_jobqueue_submits_pinned_workers(slurm: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("dask_jobqueue")
    program = tmp_path / "program.py"
    program.write_text(JOB + JOBQUEUE_PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program)],
        env=slurm,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["sum"] == 3
    (worker,) = found["workers"]
    assert worker[0] == "backhaul"
    assert worker[1].startswith("SLURMCluster-0")
    assert len(found["jobs"]) == 1
