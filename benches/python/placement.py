"""Cost for the scheduler to decide where a task goes: by Dask, and by Backhaul's placement."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from backhaul import _native
from backhaul.dask.compat.names import Task
from backhaul.dask.placement.link_placement import BETA, BETA_PRIVATE
from backhaul_bench.placement.machines import hosts_machine
from backhaul_bench.placement.simulation_job import SimulatedCluster

__all__ = ["main"]

#: Results that each worker holds, and their size
_HELD, _BYTES = 40, 1_000_000


@click.command("placement")
@click.option("--workers", default="8,64,1000", show_default=True, help="Comma-separated.")
@click.option("--inputs", default="2,8,32", show_default=True, help="Comma-separated.")
@click.option("--roots", type=click.IntRange(1), default=20_000, show_default=True)
def main(workers: str, inputs: str, roots: int) -> None:
    """Time decisions about tasks with some inputs, and plans of roots."""
    counts = [int(number) for number in inputs.split(",")]
    table = Table(title="µs of CPU of one decision, best of 7", title_justify="left")
    for name in ("workers", "policy", *(f"{count} inputs" for count in counts)):
        table.add_column(name, justify="right")
    for number in map(int, workers.split(",")):
        for policy in ("upstream", "backhaul"):
            found = asyncio.run(_decisions(number, policy, counts))
            table.add_row(str(number), policy, *(f"{us:.1f}" for us in found))
    console = Console()
    console.print(table)
    for number in map(int, workers.split(",")):
        us = _plan(number, roots)
        console.print(f"{number} workers: a plan of {roots} roots in pairs, {us:.2f} µs a task")


async def _decisions(workers: int, policy: str, counts: list[int]) -> list[float]:
    """Time the decision for a task by number of inputs, in µs."""
    machine = hosts_machine("bench", hosts=workers // 8, workers=8, nic_gb_per_s=3.0)
    cluster = SimulatedCluster(machine, policy=policy)
    scheduler: Any = cluster.scheduler
    states = list(scheduler.workers.values())
    results = []
    for number in range(workers * _HELD):
        ts = scheduler.new_task(("r", number), Task(("r", number), _nothing), "released")
        ts.nbytes = _BYTES
        scheduler.add_replica(ts, states[number % workers])
        results.append(ts)
    # Each has tasks of three kinds before it.
    for prefix in ("aa", "bb", "cc"):
        for ws in states:
            key = (prefix, ws.address)
            ws.add_to_processing(scheduler.new_task(key, Task(key, _nothing), "released"))
    if cluster.placement is not None:
        cluster.placement.roots.nbytes["t"] = float(_BYTES)
    found = []
    for count in counts:
        ts = scheduler.new_task(("t", count), Task(("t", count), _nothing), "released")
        for number in range(count):
            ts.add_dependency(results[number * 7 % len(results)])
        # Tasks that need the result, which are looked at besides: as many as count
        for above in range(2):
            named = ("u", count, above)
            later = scheduler.new_task(named, Task(named, _nothing), "released")
            later.add_dependency(ts)
            for number in range(8):
                later.add_dependency(results[(number * 11 + above) % len(results)])
        found.append(_best_us(functools.partial(scheduler.decide_worker_non_rootish, ts)))
    cluster.close()
    return found


def _plan(workers: int, roots: int) -> float:
    """Time a plan of roots that are combined in pairs, in µs a task.

    Workers are eight to a host, of whose links nothing is known yet, as when a cluster starts.
    """
    mirror = _native.Placement(beta=BETA, beta_private=BETA_PRIVATE)
    states = [SimpleNamespace(address=f"tcp://{number}") for number in range(workers)]
    for number, state in enumerate(states):
        mirror.add_worker(state, number // 8, number // 8)
    pairs = roots // 2
    places = [-1] * (2 * pairs) + [-2] * pairs
    needs = [0] * (2 * pairs)
    for pair in range(pairs):
        needs += [2, pair, pair + pairs]
    kinds = [0] * len(places)
    targets = [(number, 2.0, math.inf) for number in range(workers)]
    arguments = (mirror, places, needs, kinds, [(0.01, 1e6)], targets)
    us = _best_us(lambda: _native.plan_roots(*arguments), times=1)
    return us / len(places)


def _best_us(act: Callable[[], object], *, times: int = 200) -> float:
    best = float("inf")
    for _ in range(7):
        began = time.process_time_ns()
        for _ in range(times):
            act()
        best = min(best, (time.process_time_ns() - began) / times / 1000)
    return best


def _nothing() -> None:
    """Stands for the function of a task."""
