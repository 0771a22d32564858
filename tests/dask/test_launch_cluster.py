"""Clusters of real processes, each worker where the plan has it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from distributed import Client, SchedulerPlugin, Worker, WorkerPlugin
from distributed.utils_test import gen_test

from backhaul import BackhaulError, ConfigError
from backhaul.dask import LocalCluster
from backhaul.topology import Machine, discover, parse
from tests.dask.conftest import DEADLINE_S

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually

CPUS = sorted(os.sched_getaffinity(0))

pytestmark = [
    pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs to tell workers apart"),
]

TWO: dict[str, Any] = {
    "n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "asynchronous": True,
    "machine": None,
}  # fmt: skip


def here() -> Machine:
    """Look at this machine, as if it had no more than two CPUs."""
    found = json.loads(discover().to_json())
    found["allowed_cpus"] = f"{CPUS[0]},{CPUS[1]}"
    return parse(json.dumps(found))


@contextlib.asynccontextmanager
async def two_workers(**options: Any) -> AsyncIterator[tuple[Any, Client]]:
    """Start a cluster of two workers with one CPU each, and a client."""
    given = TWO | {"machine": here()} | options
    async with LocalCluster(**given) as cluster, Client(cluster, asynchronous=True) as client:
        yield cluster, client


async def places(client: Client) -> dict[str, tuple[int, frozenset[int]]]:
    """Ask all workers for process id and CPUs, by name."""

    def place(dask_worker: Worker) -> tuple[Any, int, frozenset[int]]:
        return dask_worker.name, os.getpid(), frozenset(os.sched_getaffinity(0))

    found: Any = await client.run(place)
    return {name: (pid, cpus) for name, pid, cpus in found.values()}


async def settled(client: Client, names: set[str], *, without: str | None = None) -> None:
    """Wait until the scheduler has exactly these workers, and the one of this address no more.

    A worker that has died may be there for a while, under the name of the one that comes after it.
    """
    async with asyncio.timeout(DEADLINE_S):
        while True:
            scheduler: Any = client.scheduler
            found = (await scheduler.identity())["workers"]
            if without not in found and {worker["name"] for worker in found.values()} == names:
                return
            await asyncio.sleep(0.01)


@gen_test()
async def test_each_worker_has_a_cpu_and_shares_memory_with_the_other() -> None:
    async with two_workers() as (cluster, client):
        assert cluster.scheduler_address.startswith("backhaul://127.0.0.1:")
        assert {name: cpus for name, (_, cpus) in (await places(client)).items()} == {
            "0": {CPUS[0]}, "1": {CPUS[1]},
        }  # fmt: skip
        workers = cluster.scheduler_info["workers"].values()
        share = (await client.scheduler.identity())["workers"].values()  # type: ignore[union-attr]
        assert len(workers) == 2
        assert {worker["memory_limit"] for worker in share} == {
            worker.memory_bytes for worker in cluster.launch_plan.workers
        }
        async with Client(cluster.tcp_address, asynchronous=True) as by_tcp:
            assert await by_tcp.submit(sum, [1, 2]) == 3


@gen_test()
async def test_workers_leave_and_come_back_under_their_names_and_on_their_cpus() -> None:
    async with two_workers() as (cluster, client):
        before = await places(client)
        cluster.scale(1)
        await settled(client, {"0"})
        cluster.scale(0)
        await settled(client, set())
        cluster.scale(2)
        await settled(client, {"0", "1"})
        after = await places(client)
        assert {name: cpus for name, (_, cpus) in after.items()} == {
            name: cpus for name, (_, cpus) in before.items()
        }
        with pytest.raises(ConfigError, match="3 workers are more than the 2 that the plan"):
            cluster.scale(3)
        with pytest.raises(ConfigError, match="5 workers are more"):
            cluster.scale(cores=5)
        assert set(cluster.worker_spec) == {"0", "1"}


@gen_test()
async def test_a_worker_that_is_killed_or_restarted_keeps_its_cpus(
    eventually: Eventually,
) -> None:
    async with two_workers() as (cluster, client):
        before = await places(client)
        nanny = cluster.workers["1"]
        gone: str = nanny.worker_address
        os.kill(before["1"][0], signal.SIGKILL)
        await eventually(lambda: nanny.pid not in (None, before["1"][0]))
        await settled(client, {"0", "1"}, without=gone)
        killed = await places(client)
        assert killed["1"] == (nanny.pid, frozenset({CPUS[1]}))
        assert killed["0"] == before["0"]
        await client.restart()
        restarted = await places(client)
        for name, (pid, cpus) in restarted.items():
            assert pid != killed[name][0]
            assert cpus == before[name][1]


@gen_test()
async def test_an_adaptive_cluster_stays_within_its_plan(eventually: Eventually) -> None:
    async with two_workers(n_workers=0, policy=None, threads_per_worker=1) as (cluster, client):
        assert not cluster.workers
        adaptive = cluster.adapt(minimum=0, interval="20ms", target_duration="1ms")
        assert adaptive.maximum == 2
        futures = client.map(lambda number: number + 1, range(50), pure=False)
        assert sum(await client.gather(futures)) == sum(range(51))
        assert set(await places(client)) <= {"0", "1"}
        futures.clear()
        await eventually(lambda: not cluster.worker_spec)
        with pytest.raises(ConfigError, match="3 workers are more"):
            cluster.adapt(minimum=3)


@gen_test()
async def test_workers_past_the_plan_share_its_places_if_that_is_wanted() -> None:
    async with two_workers(n_workers=3, overcommit=True) as (cluster, client):
        found = {name: cpus for name, (_, cpus) in (await places(client)).items()}
        assert found == {"0": {CPUS[0]}, "1": {CPUS[1]}, "0+1": {CPUS[0]}}
        cluster.scale(2)
        await settled(client, {"0", "1"})
        cluster.scale(3)
        await settled(client, {"0", "1", "0+1"})


class Mark(WorkerPlugin):
    """Leaves a mark on the worker."""

    def setup(self, worker: Worker) -> None:
        worker.mark = "marked"  # type: ignore[attr-defined]


class SeenWorkers(SchedulerPlugin):
    """Lists the workers that came."""

    name = "seen-workers"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Note one."""
        self.seen.append(worker)


@gen_test()
async def test_workers_and_scheduler_get_their_options(tmp_path: Path) -> None:
    preload = tmp_path / "loaded.py"
    preload.write_text("def dask_setup(worker):\n    worker.loaded = worker.name\n")
    seen = SeenWorkers()
    async with two_workers(
        env={"COLOUR": "green", "OMP_NUM_THREADS": 1},
        preload=[str(preload)],
        plugins=[Mark()],
        local_directory=str(tmp_path),
        resources={"MEM": 2},
        memory_limit="1 GiB",
        worker_options={"1": {"nthreads": 3, "env": {"COLOUR": "red"}, "resources": {"BIG": 1}}},
        scheduler_kwargs={"plugins": [seen], "idle_timeout": "1h"},
    ) as (cluster, client):

        def found(dask_worker: Any) -> dict[str, Any]:
            return {
                "name": dask_worker.name,
                "colour": os.environ["COLOUR"],
                "loaded": dask_worker.loaded,
                "mark": dask_worker.mark,
                "spill": dask_worker.local_directory,
                "threads": dask_worker.state.nthreads,
                "resources": dict(dask_worker.state.total_resources),
                "memory": dask_worker.memory_manager.memory_limit,
            }

        answers: Any = await client.run(found)
        by_name = {answer.pop("name"): answer for answer in answers.values()}
        for answer in by_name.values():
            assert answer.pop("spill").startswith(str(tmp_path))
        common = {"mark": "marked", "memory": 1 << 30}
        assert by_name == {
            "0": {
                **common, "colour": "green", "loaded": "0", "threads": 1, "resources": {"MEM": 2},
            },
            "1": {
                **common, "colour": "red", "loaded": "1", "threads": 3,
                "resources": {"MEM": 2, "BIG": 1},
            },
        }  # fmt: skip
        assert len(seen.seen) == 2
        assert cluster.scheduler.idle_timeout == 3600


@gen_test()
async def test_workers_are_pinned_with_any_protocol() -> None:
    async with two_workers(protocol="tcp://", pin=True) as (cluster, client):
        assert cluster.scheduler_address == cluster.tcp_address
        assert {cpus for _, cpus in (await places(client)).values()} == {
            frozenset({CPUS[0]}), frozenset({CPUS[1]}),
        }  # fmt: skip


@gen_test()
async def test_workers_that_are_not_pinned_run_anywhere() -> None:
    async with two_workers(pin=False) as (_, client):
        assert {cpus for _, cpus in (await places(client)).values()} == {frozenset(CPUS)}


def test_blocking_code_can_use_a_cluster_too() -> None:
    options = TWO | {"machine": here(), "asynchronous": False}
    with LocalCluster("mine", **options) as cluster, Client(cluster) as client:
        assert cluster.name == "mine"
        assert client.submit(sum, [1, 2]).result() == 3
        assert "workers=2" in repr(cluster)
        assert "Workers" in cluster._repr_html_()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": False}, "distributed.LocalCluster"),
        ({"protocol": "inproc://"}, "distributed.LocalCluster"),
        ({"ip": "127.0.0.1"}, "say host="),
        ({"ncores": 2}, "say threads_per_worker="),
        ({"host": "127.0.0.1", "interface": "lo"}, "exclude each other"),
        ({"host": "tcp://127.0.0.1", "protocol": "backhaul"}, "exclude each other"),
        ({"security": "secret"}, "must be a Security"),
        ({"scheduler_port": (1, 2, 3)}, "names 3 ports"),
        ({"worker_class": "Worker"}, "must be a Nanny or a Worker class"),
        ({"n_workers": -1}, "must not be negative, got -1"),
        ({"threads_per_worker": 0}, "must be positive, got 0"),
        ({"policy": "n"}, "needs n_workers"),
        ({"policy": "per-planet"}, "per-planet"),
        ({"policy": "per-gpu"}, "no GPU"),
        ({"n_workers": 1000}, "1000 workers"),
        ({"interface": "ib"}, "'?\"?ib"),
        ({"memory_policy": "strict"}, "memory_policy must be"),
        ({"worker_options": {"numa9": {}}}, "'numa9', which is no worker of the plan"),
    ],
)
def test_an_impossible_option_is_refused_before_anything_starts(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises((BackhaulError, ValueError), match=message):
        LocalCluster(**({"dashboard_address": None} | options))


def test_cpus_that_this_process_may_not_use_are_refused_before_anything_starts() -> None:
    absent = CPUS[-1] + 1
    elsewhere = json.loads(discover().to_json())
    cpus = f"{CPUS[0]},{absent}"
    elsewhere |= {"online_cpus": cpus, "allowed_cpus": cpus, "cores": [], "l3_domains": []}
    elsewhere |= {"nodes": [], "allowed_nodes": []}
    with pytest.raises(ConfigError, match=f"may not use {absent} "):
        LocalCluster(machine=parse(json.dumps(elsewhere)), n_workers=2, dashboard_address=None)


def test_a_plan_that_was_made_is_not_made_again() -> None:
    plan = here().plan("n", n=2)
    with pytest.raises(ConfigError, match="plan= has decided that already; drop policy='per-numa'"):
        LocalCluster(plan=plan, policy="per-numa")
    with LocalCluster(plan=plan, n_workers=1, dashboard_address=None) as cluster:
        assert list(cluster.workers) == ["0"]
        assert cluster.launch_plan is plan


def test_a_machine_may_come_from_a_file(tmp_path: Path) -> None:
    recorded = tmp_path / "machine.json"
    recorded.write_text(here().to_json())
    with LocalCluster(machine=recorded, policy="per-numa", dashboard_address=None) as cluster:
        assert list(cluster.workers) == [worker.name for worker in cluster.launch_plan.workers]
    recorded.write_text("{}")
    with pytest.raises(BackhaulError, match=r"machine\.json"):
        LocalCluster(machine=recorded)
