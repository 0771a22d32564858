"""``order``: how long ordering a task graph takes, natively and by Dask.

Both order the same graph in turn, and must come to the same result; the medians are compared.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import click
import dask.array as da
import dask.order
from dask._task_spec import Task, TaskRef, convert_legacy_graph
from dask.base import collections_to_expr
from rich.table import Table

from backhaul._machine import Machine, installed_versions
from backhaul._output import open_console, print_machine
from backhaul.dask.scheduler.order import order

__all__ = ["main"]


@click.command("order")
@click.option("--rounds", default=5, show_default=True, help="How often each orders each graph.")
@click.option("--graph", "names", multiple=True, help="Only graphs whose name contains this.")
def main(rounds: int, names: tuple[str, ...]) -> None:
    """Compare the native order of task graphs with Dask's own."""
    console = open_console(wide=True)
    print_machine(console, Machine.here(), installed_versions("backhaul", "dask"))
    table = Table()
    table.add_column("graph")
    for column in ("tasks", "edges", "Dask ms", "from – to", "native ms", "from – to", "ratio"):
        table.add_column(column, justify="right")
    for name, build in GRAPHS.items():
        if names and not any(part in name for part in names):
            continue
        graph = build()
        by_dask, natively = _measure(graph, rounds=rounds)
        edges = sum(len(node.dependencies) for node in graph.values())
        ratio = statistics.median(by_dask) / statistics.median(natively)
        cells = [*_spread(by_dask), *_spread(natively)]
        table.add_row(name, f"{len(graph)}", f"{edges}", *cells, f"{ratio:.1f}")
    console.print(table)


def _measure(graph: dict[Any, Any], *, rounds: int) -> tuple[list[float], list[float]]:
    """Time both in turn, in milliseconds."""
    by_dask: list[float] = []
    natively: list[float] = []
    order(graph)
    for _ in range(rounds):
        results = []
        for ordering, times_ms in ((dask.order.order, by_dask), (order, natively)):
            start = perf_counter()
            results.append(ordering(graph))
            times_ms.append((perf_counter() - start) * 1e3)
        if results[0] != results[1]:
            raise click.ClickException("the two orders differ")
    return by_dask, natively


def _spread(times_ms: list[float]) -> tuple[str, str]:
    median_ms = statistics.median(times_ms)
    return f"{median_ms:.1f}", f"{min(times_ms):.1f} – {max(times_ms):.1f}"


def _run(*arguments: object) -> None:
    """Stand for what tasks run."""


def _node(key: Any, *dependencies: Any) -> Task:
    return Task(key, _run, *map(TaskRef, dependencies))


def _graph_of(nodes: list[Task]) -> dict[Any, Any]:
    return {node.key: node for node in nodes}


def _map() -> dict[Any, Any]:
    return _graph_of([_node(f"increment-5d2f8c1b7a90{index:05}") for index in range(10_000)])


def _tree() -> dict[Any, Any]:
    level: list[Any] = [("load-5d2f8c1b7a90", 0, index) for index in range(8192)]
    nodes = [_node(key) for key in level]
    while len(level) > 1:
        pairs = list(zip(level[::2], level[1::2], strict=True))
        level = [("sum-5d2f8c1b7a90", len(level), index) for index in range(len(pairs))]
        nodes += [_node(key, *pair) for key, pair in zip(level, pairs, strict=True)]
    return _graph_of(nodes)


def _all_to_all() -> dict[Any, Any]:
    sides = range(100)
    source, split, target = ("load-5d2f8c1b7a90", "split-8e21c0a9f6d4", "join-3b7f90e1d25c")
    nodes = [_node((source, side)) for side in sides]
    nodes += [_node((split, one, two), (source, one)) for one in sides for two in sides]
    nodes += [_node((target, two), *((split, one, two) for one in sides)) for two in sides]
    return _graph_of(nodes)


def _transpose_sum() -> dict[Any, Any]:
    x = da.random.random((6000, 6000), chunks=(100, 100))
    expression = collections_to_expr([(x + x.T).sum()], optimize_graph=True).optimize()
    graph: dict[Any, Any] = convert_legacy_graph(dict(expression.__dask_graph__()))
    return graph


def _random(*, reach: int) -> dict[Any, Any]:
    numbers = random.Random(0)
    keys = [f"task-5d2f8c1b7a90-{index}" for index in range(20_000)]
    nodes = []
    for index, key in enumerate(keys):
        near = keys[max(0, index - reach) : index]
        nodes.append(_node(key, *numbers.sample(near, min(len(near), numbers.randrange(3)))))
    return _graph_of(nodes)


GRAPHS: dict[str, Callable[[], dict[Any, Any]]] = {
    "map": _map,
    "tree": _tree,
    "all to all": _all_to_all,
    "transpose-sum": _transpose_sum,
    "random, reach 50": lambda: _random(reach=50),
    "random, reach 2000": lambda: _random(reach=2000),
}
