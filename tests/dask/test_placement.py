"""Where tasks go: what the simulated scheduler does with the plan of roots and with link costs."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker

import dask
from backhaul import _native
from backhaul.dask import resource_id, resources
from backhaul.dask.placement import link_placement
from backhaul.dask.resource_pools import scheduler_slots
from backhaul.dask.scheduler import window as window_module
from backhaul.dask.scheduler.core import live_core
from backhaul_bench.placement import Options, run
from backhaul_bench.placement.described import read_machine
from backhaul_bench.placement.machines import MACHINES, Machine, hosts_machine
from backhaul_bench.placement.simulation_job import SimulatedCluster, simulate
from backhaul_bench.placement.workloads import Graph, Phase, SimulatedTask, workload

SWITCH = "distributed.comm.backhaul.placement.enabled"


@pytest.fixture(autouse=True)
def fresh(plain_dask: None) -> Iterator[None]:
    """Begin each test with Dask as it is, and end it so."""
    with dask.config.set({"distributed.scheduler.active-memory-manager.start": False}):
        yield


def in_loop(act: Callable[[], Any]) -> Any:
    async def run() -> Any:
        return act()

    return asyncio.run(run())


def two_hosts() -> Machine:
    return hosts_machine("two hosts", hosts=2, workers=2, nic_gb_per_s=0.125)


def tangled(seed: int) -> Phase:
    """Make roots of different lengths, some combined in pairs, some with nothing."""
    seeded = random.Random(seed)
    count = seeded.randint(1, 60)
    graph: Graph = {
        ("read", i): SimulatedTask((), seeded.uniform(1e-3, 50e-3), seeded.randint(1, 10**7))
        for i in range(count)
    }
    for i in range(seeded.randint(0, count)):
        needs = seeded.sample(list(graph)[:count], min(count, seeded.randint(1, 3)))
        graph["join", i] = SimulatedTask(needs, 5e-3, 10**6)
    return Phase(graph, list(graph))


@pytest.mark.parametrize("seed", range(12))
def test_no_root_waits_for_a_busy_worker_while_another_one_is_idle(seed: int) -> None:
    def run() -> None:
        cluster = SimulatedCluster(two_hosts(), policy="backhaul")
        try:
            for number in range(2):
                phase = tangled(seed)
                renamed = Phase(
                    {
                        (f"{key[0]}-{number}", *key[1:]): task._replace(
                            needs=[(f"{need[0]}-{number}", *need[1:]) for need in task.needs]
                        )
                        for key, task in phase.graph.items()
                    },
                    [(f"{key[0]}-{number}", *key[1:]) for key in phase.keys],
                )
                cluster.watch = lambda: waiting.append(waits(cluster.scheduler))
                cluster.compute(renamed)
                cluster.release()
            assert cluster.placement is not None
            assert cluster.placement.mirror.promises() == 0
            assert cluster.placement.roots.hints == {}
        finally:
            cluster.close()

    waiting: list[bool] = []
    in_loop(run)
    assert len(waiting) > 10
    assert not any(waiting)


def waits(scheduler: Scheduler) -> bool:
    """Tell whether a task is queued while a worker has a free thread."""
    return bool(scheduler.queued and scheduler.idle_task_count)


def test_results_that_are_combined_are_made_on_one_worker() -> None:
    graph: Graph = {
        (name, i): SimulatedTask((), 30e-3, 64 * 10**6) for name in "ab" for i in range(40)
    }
    for i in range(40):
        graph["add", i] = SimulatedTask([("a", i), ("b", i)], 10e-3, 8)
    phases = [Phase(graph, [("add", i) for i in range(40)])]
    upstream = simulate(two_hosts(), phases, policy="upstream")
    ours = simulate(two_hosts(), phases, policy="backhaul")
    assert ours.crossed_bytes <= 0.25 * upstream.crossed_bytes
    assert ours.seconds < upstream.seconds


@pytest.mark.parametrize("little", [False, True])
def test_a_worker_with_little_memory_has_fewer_roots_planned(little: bool) -> None:
    pairs, nbytes = 40, 10**7
    graph: Graph = {(name, i): SimulatedTask((), 30e-3, nbytes) for name in "ab" for i in range(40)}
    for i in range(pairs):
        graph["add", i] = SimulatedTask([("a", i), ("b", i)], 10e-3, 8)

    def run() -> Counter[str]:
        cluster = SimulatedCluster(two_hosts(), policy="backhaul")
        try:
            workers = list(cluster.scheduler.workers.values())
            planned: Counter[str] = Counter()
            for ws in workers:
                ws.memory_limit = 10**10
            if little:
                # Three tenths of its share, before it would spill
                workers[0].memory_limit = 10 * 10**7
            for number in range(2):
                renamed = {
                    (f"{key[0]}-{number}", key[1]): task._replace(
                        needs=[(f"{need[0]}-{number}", need[1]) for need in task.needs]
                    )
                    for key, task in graph.items()
                }
                planned = Counter()
                plan = _native.plan_roots

                def counted(*arguments: Any, plan: Any = plan, planned: Any = planned) -> Any:
                    found = plan(*arguments)
                    planned.update(workers[at].address for at in found or () if at >= 0)
                    return found

                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(_native, "plan_roots", counted)
                    cluster.compute(Phase(renamed, [(f"add-{number}", i) for i in range(pairs)]))
                cluster.release()
            return Counter({ws.address: planned[ws.address] for ws in workers})
        finally:
            cluster.close()

    counts = list(in_loop(run).values())
    assert sum(counts) == 2 * pairs
    if little:
        assert counts[0] == 6
        assert all(count in (24, 25) for count in counts[1:])
    else:
        assert counts == [20] * 4


def test_a_transfer_takes_the_nvlink_and_not_the_processors() -> None:
    machine = MACHINES["dgx-1"]()
    phases = workload("transpose-persisted", work="gpu", small=True)

    def slow_bytes(policy: str) -> int:
        run = simulate(machine, phases, policy=policy)
        return sum(
            nbytes
            for sender, receiver, nbytes, _, _ in run.transfers
            if len(machine.routes[sender, receiver].edges) > 1
        )

    assert slow_bytes("backhaul") <= 0.2 * slow_bytes("upstream")


def test_uniform_links_are_no_worse_than_upstream() -> None:
    # In processes with a fixed hash seed: what is near the bound must not depend on luck.
    options = Options(machines=("flat",), workloads=("transpose", "stencil", "a+b", "shuffle"))
    rows = run(options, on_step=lambda *_: None).rows
    assert {row.workload for row in rows if row.ratio < 0.95} == set()


def test_costs_rise_from_worker_to_host_to_network() -> None:
    described = read_machine(
        '[[host]]\nname = "a"\nworkers = 2\nnic_gb_per_s = 1\n'
        '[[host]]\nname = "b"\nnic_gb_per_s = 1',
        name="three",
    )

    def run() -> list[float]:
        cluster = SimulatedCluster(described, policy="backhaul")
        try:
            scheduler: Any = cluster.scheduler
            first, beside, far = scheduler.workers.values()
            result = scheduler.new_task("result", None, "released")
            result.nbytes = 10**8
            scheduler.add_replica(result, first)
            task = scheduler.new_task("task", None, "released")
            task.add_dependency(result)
            return [scheduler.get_comm_cost(task, ws) for ws in (first, beside, far)]
        finally:
            cluster.close()

    same, host, network = in_loop(run)
    assert same == 0
    assert 0 < host < network


@pytest.mark.parametrize("beta", [0.5, float("nan"), float("inf"), -1.0])
def test_a_beta_that_cannot_be_is_refused_with_the_value(beta: float) -> None:
    with pytest.raises(ValueError, match=f"(?i){beta:g}"):
        _native.Placement(beta=beta, beta_private=2.0)
    with pytest.raises(ValueError, match=f"(?i)beta_private must .* {beta:g}"):
        _native.Placement(beta=3.0, beta_private=beta)


def test_links_that_cannot_be_are_refused_with_the_value() -> None:
    mirror = _native.Placement(beta=3.0, beta_private=2.0)
    with pytest.raises(AttributeError, match="address"):
        mirror.add_worker(object(), 0, 0)
    assert mirror.add_worker(SimpleNamespace(address="tcp://a"), 0, 0) == 0
    with pytest.raises(ValueError, match="no worker 1"):
        mirror.replace_worker(1, object())
    core = _native.SchedulerCore()
    for nonsense in (0.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="memory_target must be a number above 0"):
            core.place_by_links(mirror, [], nonsense)
    assert core.placing() is None
    with pytest.raises(ValueError, match="host 5"):
        mirror.set_hosts([(5, 1e9)], [])
    with pytest.raises(ValueError, match="-1 bytes/s"):
        mirror.set_hosts([], [(0, 0, -1.0, 0.0)])
    with pytest.raises(ValueError, match="NaN"):
        mirror.set_hosts([(0, float("nan"))], [])
    with pytest.raises(ValueError, match="edge 3"):
        mirror.set_routes([1.0], [(0, 0, [3], 0.0)])
    with pytest.raises(ValueError, match="no worker 7"):
        _native.plan_roots(mirror, [-1], [0], [0], [], [(7, 1.0, math.inf)])
    with pytest.raises(ValueError, match="needs 9"):
        _native.plan_roots(mirror, [-1], [1, 9], [0], [], [(0, 1.0, math.inf)])
    with pytest.raises(ValueError, match="-1 bytes of memory"):
        _native.plan_roots(mirror, [-1], [0], [0], [], [(0, 1.0, -1.0)])
    with pytest.raises(ValueError, match="NaN bytes of memory"):
        _native.plan_roots(mirror, [-1], [0], [0], [], [(0, 1.0, math.nan)])


# On real clusters


async def summed(client: Client, scheduler: Scheduler) -> None:
    """Compute what has roots in pairs, twice, and a task that fails."""
    for _ in range(2):
        left = client.map(pow, range(40), [2] * 40, pure=False)
        right = client.map(pow, range(40), [1] * 40, pure=False)
        added = client.map(sum, list(zip(left, right, strict=True)))
        assert await client.gather(added) == [i * i + i for i in range(40)]
    failing = client.submit(divmod, 1, 0)
    with pytest.raises(ZeroDivisionError):
        await failing


@pytest.mark.parametrize("window", [True, False])
def test_a_real_cluster_computes_with_and_without_the_window(window: bool) -> None:
    async def run() -> None:
        settings = {SWITCH: True, "distributed.comm.backhaul.work-in-hand.enabled": window}
        with dask.config.set(settings):
            async with (
                Scheduler(
                    host="backhaul://127.0.0.1", dashboard=False, dashboard_address=":0"
                ) as scheduler,
                Worker(scheduler.address, nthreads=2),
                Worker(scheduler.address, nthreads=1),
                Client(scheduler.address, asynchronous=True) as client,
            ):
                found = scheduler.plugins["backhaul-placement"]
                assert isinstance(found, link_placement.LinkPlacement)
                assert (window_module.installed(scheduler) is not None) == window
                await summed(client, scheduler)
                third = Worker(scheduler.address, nthreads=1)
                async with third:
                    await summed(client, scheduler)
                await summed(client, scheduler)
                assert len(found.hosts) == 1
                assert found.mirror.promises() == 0
                found.detach()
                assert found.name not in scheduler.plugins

    asyncio.run(asyncio.wait_for(run(), 100))


def test_without_the_switch_nothing_is_changed() -> None:
    async def run() -> None:
        async with Scheduler(
            host="backhaul://127.0.0.1", dashboard=False, dashboard_address=":0"
        ) as scheduler:
            assert "backhaul-placement" not in scheduler.plugins
            assert "worker_objective" not in vars(scheduler)

    asyncio.run(run())


@pytest.mark.parametrize("by_core", [False, True])
def test_resources_are_heeded_beside_it(by_core: bool) -> None:
    @resources(GPU=1, CPU=0)
    def on_gpu(number: int) -> tuple[int, Any]:
        return number, resource_id("GPU")

    async def run() -> None:
        core = {"distributed.comm.backhaul.hot-path.scheduler-core": by_core}
        with dask.config.set({SWITCH: True, "backhaul.resources": {"GPU": 1}, **core}):
            async with (
                Scheduler(
                    host="backhaul://127.0.0.1", dashboard=False, dashboard_address=":0"
                ) as scheduler,
                Worker(scheduler.address, nthreads=2),
                Worker(scheduler.address, nthreads=1),
                Client(scheduler.address, asynchronous=True) as client,
            ):
                assert "backhaul-placement" in scheduler.plugins
                await summed(client, scheduler)
                futures = client.map(on_gpu, range(30), pure=False)
                assert await client.gather(futures) == [(number, 0) for number in range(30)]
                slots = scheduler_slots.slots_of(scheduler)
                assert slots is not None
                if by_core:
                    found_core = live_core.installed(scheduler)
                    assert found_core is not None
                    assert found_core.is_active
                    assert not found_core.escapes
                    await summed(client, scheduler)
                    return
                assert slots.is_active
                await summed(client, scheduler)

    asyncio.run(asyncio.wait_for(run(), 100))
