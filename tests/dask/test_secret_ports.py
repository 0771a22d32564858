"""Every port of every launcher, tried by a peer without the secret: none of them runs its code."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import pickle
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import pytest
from distributed.comm import connect
from distributed.protocol import to_serialize

import dask

if TYPE_CHECKING:
    from tests.dask.conftest import Program, Start

SECRET = "a secret of this cluster, drawn at random"
SECRET_KEY = "distributed.comm.backhaul.secret"
SECRET_VARIABLE = "DASK_DISTRIBUTED__COMM__BACKHAUL__SECRET"
#: Marks the processes of one cluster, also those in sessions of their own
MARK_VARIABLE = "BACKHAUL_TEST_MARK"
NOT_PROTECTED = r"(The secret does not protect tcp://)"

#: Longest wait for an answer of a port that says nothing, in seconds. A late answer is not missed:
#: what matters is whether code has run by the end of the test.
ANSWER_S = 5.0

#: Routes by which Dask changes state over HTTP, where they are switched on
STATE_ROUTES = (
    "/api/v1/retire_workers",
    "/api/v1/adaptive_target",
    "/jupyter/api/kernels",
    "/jupyter/api/terminals",
)

CLUSTERS_PROGRAM = """
import asyncio, sys
import distributed
from backhaul.dask import CUDACluster, LocalCluster
from tests.dask.machines import machine_with_gpus

async def main():
    common = dict(asynchronous=True, n_workers=1, threads_per_worker=1)
    common |= dict(dashboard_address=":0", worker_dashboard_address=":0")
    async with (
        LocalCluster(**common) as ours,
        CUDACluster(machine=machine_with_gpus(), **common) as with_gpus,
        distributed.LocalCluster(protocol="backhaul", **common) as stock,
    ):
        for cluster in (ours, with_gpus, stock):
            async with distributed.Client(cluster, asynchronous=True) as client:
                assert await client.submit(sum, [1, 2]) == 3
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)

if __name__ == "__main__":
    asyncio.run(main())
"""

JOBQUEUE_PROGRAM = """
import sys
from distributed import Client
from dask_jobqueue.local import LocalCluster

if __name__ == "__main__":
    common = dict(cores=1, processes=1, memory="1GiB", protocol="backhaul://", interface="lo")
    common |= dict(scheduler_options={"dashboard_address": ":0"})
    ours = dict(worker_command="backhaul.dask.launch.worker", worker_extra_args=["--nworkers", "1"])
    with LocalCluster(**common) as stock, LocalCluster(**common, **ours) as pinned:
        for cluster in (stock, pinned):
            cluster.scale(jobs=1)
            with Client(cluster) as client:
                client.wait_for_workers(1)
                assert client.submit(sum, [1, 2]).result() == 3
        print("ready", flush=True)
        sys.stdin.read()
"""


#: Prints the protocol, a result, and the rank that computed it
MPI_CLIENT_PROGRAM = """
import os, sys
from distributed import Client

if __name__ == "__main__":
    with Client(scheduler_file=sys.argv[1]) as client:
        protocol = client.scheduler.address.partition(":")[0]
        rank = client.submit(os.getenv, "PMI_RANK").result()
        print(protocol, client.submit(sum, [1, 2]).result(), rank)
"""


class Port(NamedTuple):
    """A TCP port that a process of a cluster listens on."""

    pid: int
    host: str
    number: int


class Cluster:
    """Processes that share a secret and a mark.

    Parameters
    ----------
    start : callable
        Starts ``python …``.
    folder : Path
        Where code of attackers leaves its files.
    """

    def __init__(self, start: Start, folder: Path) -> None:
        self._start = start
        self._mark = uuid.uuid4().hex
        self.folder = folder
        self.programs: list[Program] = []

    def start(self, *arguments: str, **options: Any) -> Program:
        """Start a program with the secret in its environment."""
        env = {SECRET_VARIABLE: SECRET, MARK_VARIABLE: self._mark, **options.pop("env", {})}
        program = self._start(*arguments, env=env, **options)
        self.programs.append(program)
        return program

    def processes(self) -> list[psutil.Process]:
        """List the processes of the cluster."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK_VARIABLE) == self._mark:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def ports(self) -> list[Port]:
        """List the ports that its processes listen on, those of UDP too."""
        found = set()
        for process in self.processes():
            try:
                sockets = process.net_connections(kind="inet")
            except psutil.Error:
                continue
            for each in sockets:
                if each.status == psutil.CONN_LISTEN or (each.laddr and not each.raddr):
                    host = "127.0.0.1" if each.laddr.ip in ("0.0.0.0", "::") else each.laddr.ip
                    found.add(Port(process.pid, host, each.laddr.port))
        return sorted(found)


@pytest.fixture
def cluster(start: Start, tmp_path: Path) -> Iterator[Cluster]:
    """Give an empty cluster, whose processes end with the test."""
    made = Cluster(start, tmp_path)
    yield made
    for program in made.programs:
        program.kill()
    for process in made.processes():
        process.kill()


class Bomb:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._folder,)


async def send_code(address: str, folder: Path) -> None:
    """Try to run code on a server of Dask, by each message that servers run code for.

    The folders that the code makes are called after the address and the message.
    """
    prefix = folder / address.replace("/", "_")
    messages: list[dict[str, Any]] = [
        {
            "op": op,
            "function": pickle.dumps(os.mkdir),
            "args": pickle.dumps((f"{prefix} {op}",)),
            "kwargs": {},
            "wait": True,
            "reply": True,
        }
        for op in ("run", "run_function")
    ]
    messages.append({"op": "feed", "reply": True, "x": to_serialize(Bomb(f"{prefix} bomb"))})
    for message in messages:
        if not await is_sent(address, message):
            return


async def is_sent(address: str, message: dict[str, Any]) -> bool:
    """Send a message and wait for an answer; tell whether the peer accepted the connection."""
    comm = None
    with contextlib.suppress(OSError, TimeoutError, ValueError):
        async with asyncio.timeout(ANSWER_S):
            comm = await connect(address, timeout=ANSWER_S)
    if comm is None:
        return False
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            await comm.write(message)
            await comm.read()
    comm.abort()
    return True


def request(port: Port, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    """Send a request over HTTP and return the status and the answer; 0 if it is no HTTP."""
    connection = http.client.HTTPConnection(port.host, port.number, timeout=ANSWER_S)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def change_by_http(port: Port) -> list[str]:
    """Try each route of a port with each method that changes state; list what was accepted."""
    status, sitemap = request(port, "GET", "/sitemap.json")
    if not status:
        return []
    listed = [str(path) for path in json.loads(sitemap)["paths"]] if status == 200 else []
    accepted = []
    for path in {*STATE_ROUTES, *listed}:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            status, _ = request(port, method, path, '{"n": 1}')
            if status < 400:
                accepted.append(f"{method} {path}: {status}")
    return accepted


async def attack(cluster: Cluster) -> tuple[list[Port], list[str]]:
    """Try each port in each way; return the ports and the names of the folders that code made."""
    ports = cluster.ports()
    accepted = [found for port in ports for found in change_by_http(port)]
    assert not accepted
    for secret, schemes in [(None, ("tcp", "ws", "backhaul")), (SECRET[::-1], ("backhaul",))]:
        with dask.config.set({SECRET_KEY: secret}):
            addresses = [f"{scheme}://{p.host}:{p.number}" for p in ports for scheme in schemes]
            await asyncio.gather(*(send_code(each, cluster.folder) for each in addresses))
    return ports, sorted(path.name for path in cluster.folder.glob("*_* *"))


def assert_closed(cluster: Cluster, *, ports_min: int) -> None:
    """Assert that no port of a cluster runs the code of peers without its secret."""
    ports, ran = asyncio.run(attack(cluster))
    assert not ran
    assert len(ports) >= ports_min, ports
    for program in cluster.programs:
        assert program.process.poll() is None, program.output
        assert "does not protect" not in program.output


def test_the_commands_of_backhaul(cluster: Cluster) -> None:
    command = ("-m", "dask", "backhaul")
    scheduler = cluster.start(
        *command, "scheduler", "--host", "127.0.0.1", "--port", "0", "--dashboard-address", ":0"
    )
    address = scheduler.wait_for(r"Scheduler at:\s+(backhaul://127\.0\.0\.1:\d+)")
    worker = cluster.start(*command, "worker", address, "--nworkers", "1", "--nthreads", "1")
    worker.wait_for(r"(1 of 1): ")
    assert "tcp://" not in scheduler.output
    # Those of the scheduler, the nanny and the worker, and two of HTTP
    assert_closed(cluster, ports_min=5)


def test_the_clusters_of_programs(cluster: Cluster) -> None:
    program = cluster.start("-c", CLUSTERS_PROGRAM, stdin=True)
    program.wait_for("(ready)")
    assert_closed(cluster, ports_min=15)


def test_the_commands_of_dask(cluster: Cluster) -> None:
    scheduler = cluster.start(
        *("-m", "dask", "scheduler", "--protocol", "backhaul", "--host", "127.0.0.1"),
        *("--port", "0", "--dashboard-address", ":0"),
    )
    address = scheduler.wait_for(r"Scheduler at:\s+(backhaul://127\.0\.0\.1:\d+)")
    for option in ("--nanny", "--no-nanny"):
        worker = cluster.start("-m", "dask", "worker", address, option, "--nthreads", "1")
        worker.wait_for("(Registered to)")
    assert_closed(cluster, ports_min=7)


def test_the_jobs_of_dask_jobqueue(cluster: Cluster) -> None:
    program = cluster.start("-c", JOBQUEUE_PROGRAM, stdin=True)
    program.wait_for("(ready)")
    assert_closed(cluster, ports_min=10)


def test_the_ranks_of_dask_mpi(cluster: Cluster, tmp_path: Path) -> None:
    mpiexec = str(Path(sys.executable).parent / "mpiexec")
    program = cluster.start(
        *("-m", "dask_mpi.cli", "--protocol", "backhaul", "--interface", "lo", "--nthreads", "1"),
        *("--dashboard-address", ":0", "--scheduler-file", str(tmp_path / "scheduler.json")),
        within=[mpiexec, "-n", "2"],
    )
    program.wait_for("(Registered to)")
    client = cluster.start("-c", MPI_CLIENT_PROGRAM, str(tmp_path / "scheduler.json"))
    client.wait_for(r"(backhaul 3 1)")
    cluster.programs.remove(client)
    assert_closed(cluster, ports_min=5)


def test_a_scheduler_that_is_to_listen_on_tcp_says_what_that_exposes(cluster: Cluster) -> None:
    scheduler = cluster.start(
        *("-m", "dask", "backhaul", "scheduler", "--protocol", "tcp,backhaul"),
        *("--host", "127.0.0.1", "--port", "0,0", "--dashboard-address", ":0"),
    )
    scheduler.wait_for(NOT_PROTECTED)
    address = scheduler.wait_for(r"Scheduler at:\s+(tcp://127\.0\.0\.1:\d+)")
    worker = cluster.start("-m", "dask", "worker", address, "--nthreads", "1")
    worker.wait_for("(Registered to)")
    worker.wait_for(NOT_PROTECTED)
    _, ran = asyncio.run(attack(cluster))
    ran_at = {each.partition(" ")[0] for each in ran}
    # The scheduler, the nanny and the worker
    assert len(ran_at) == 3
    assert all(each.startswith("tcp:") for each in ran_at)
