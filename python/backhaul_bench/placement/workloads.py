"""Workloads to simulate: graphs of tasks that take a time and make some bytes.

Eight shapes that array, dataframe and delayed programs have. Each in two sizes: for workers with
CPUs, and for GPUs, where the same bytes take a tenth of the time; and each small, for tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

__all__ = ["WORKLOADS", "Phase", "SimulatedTask", "critical_path_s", "workload"]

MB: Final = 10**6

Key: TypeAlias = tuple[Any, ...]


class SimulatedTask(NamedTuple):
    """One task."""

    needs: Sequence[Key]
    seconds: float
    #: Of its result
    nbytes: int


Graph: TypeAlias = dict[Key, SimulatedTask]


@dataclass(frozen=True)
class Phase:
    """One graph that is computed, and what of it the client keeps."""

    graph: Graph
    keys: Sequence[Key]


def workload(name: str, *, work: str, small: bool = False) -> list[Phase]:
    """Make a workload.

    Parameters
    ----------
    name : str
        One of `WORKLOADS`.
    work : str
        ``cpu`` or ``gpu``.
    small : bool
        A few tasks of the same shape.

    Returns
    -------
    list of Phase
        Phases in the order of computation; the last one is what counts. Results of those before
        it are kept meanwhile.
    """
    return WORKLOADS[name](work == "gpu", small)


def critical_path_s(graph: Graph, *, overhead_s: float) -> float:
    """How long a graph takes on any number of threads, in seconds.

    Parameters
    ----------
    graph : dict of key to SimulatedTask
        The graph. Data that its tasks need beside it is there from the start.
    overhead_s : float
        Time of each task besides its own, in seconds.
    """
    ends: dict[Key, float] = {}
    for root in graph:
        stack = [root]
        while stack:
            key = stack[-1]
            task = graph[key]
            missing = [need for need in task.needs if need in graph and need not in ends]
            if key not in ends and missing:
                stack += missing
                continue
            stack.pop()
            ready = max((ends[need] for need in task.needs if need in graph), default=0.0)
            ends[key] = ready + task.seconds + overhead_s
    return max(ends.values(), default=0.0)


def _tree(graph: Graph, leaves: Sequence[Key], name: str, task: SimulatedTask, fan: int) -> Key:
    """Combine leaves, some at a time, until one is left; return that one."""
    level, current = 0, list(leaves)
    while len(current) > 1:
        above: list[Key] = []
        for first in range(0, len(current), fan):
            key = (f"{name}{level}", first // fan)
            graph[key] = task._replace(needs=current[first : first + fan])
            above.append(key)
        current = above
        level += 1
    return current[0]


def _transpose(gpu: bool, small: bool, *, persisted: bool = False) -> list[Phase]:
    """Compute ``(x + x.T).sum()``."""
    side = 6 if small else 12
    nbytes = (128 if gpu else 32) * MB
    make, add, total = (4e-3, 1e-3, 0.5e-3) if gpu else (50e-3, 10e-3, 5e-3)
    pairs = [(i, j) for i in range(side) for j in range(side)]
    made: Graph = {("x", i, j): SimulatedTask((), make, nbytes) for i, j in pairs}
    graph: Graph = {}
    for i, j in pairs:
        needs = [("x", i, j)] if i == j else [("x", i, j), ("x", j, i)]
        graph["add", i, j] = SimulatedTask(needs, add, nbytes)
        graph["sum", i, j] = SimulatedTask([("add", i, j)], total, 8)
    root = _tree(graph, [("sum", i, j) for i, j in pairs], "agg", SimulatedTask((), 1e-3, 8), 8)
    if persisted:
        return [Phase(made, list(made)), Phase(graph, [root])]
    return [Phase({**made, **graph}, [root])]


def _reduction(gpu: bool, small: bool) -> list[Phase]:
    """Reduce whole chunks pair by pair, as a join of partial results does."""
    nbytes = (128 if gpu else 32) * MB
    seconds = 4e-3 if gpu else 50e-3
    graph: Graph = {
        ("read", i): SimulatedTask((), seconds, nbytes) for i in range(64 if small else 256)
    }
    root = _tree(graph, list(graph), "reduce", SimulatedTask((), 20e-3, nbytes), 4)
    return [Phase(graph, [root])]


def _stencil(gpu: bool, small: bool) -> list[Phase]:
    """Take steps in which each chunk needs the edges of its neighbours."""
    side, steps = 6, 2 if small else 4
    nbytes, halo = (256 * MB, 16 * MB) if gpu else (64 * MB, 2 * MB)
    seconds = 4e-3 if gpu else 40e-3
    pairs = [(i, j) for i in range(side) for j in range(side)]
    graph: Graph = {("step0", i, j): SimulatedTask((), seconds, nbytes) for i, j in pairs}
    for step in range(steps):
        for i, j in pairs:
            needs: list[Key] = [(f"step{step}", i, j)]
            for down, right in ((0, 1), (1, 0), (0, -1), (-1, 0)):
                beside = (i + down, j + right)
                if beside not in pairs:
                    continue
                edge = (f"halo{step}", *beside, down, right)
                graph[edge] = SimulatedTask([(f"step{step}", *beside)], 1e-3, halo)
                needs.append(edge)
            graph[f"step{step + 1}", i, j] = SimulatedTask(needs, seconds, nbytes)
    return [Phase(graph, [(f"step{steps}", i, j) for i, j in pairs])]


def _tensordot(gpu: bool, small: bool) -> list[Phase]:
    """Compute ``da.tensordot(a, b)``, of which each chunk is needed in a row or a column."""
    side = 4 if small else 6
    nbytes = (64 if gpu else 32) * MB
    seconds = 4e-3 if gpu else 60e-3
    of = range(side)
    graph: Graph = {
        (name, i, j): SimulatedTask((), 30e-3, nbytes) for name in "ab" for i in of for j in of
    }
    results: list[Key] = []
    for i in of:
        for j in of:
            products: list[Key] = [("product", i, j, k) for k in of]
            for k, product in enumerate(products):
                graph[product] = SimulatedTask([("a", i, k), ("b", k, j)], seconds, nbytes)
            graph["result", i, j] = SimulatedTask(products, 10e-3, nbytes)
            results.append(("result", i, j))
    return [Phase(graph, results)]


def _sum_of_two(gpu: bool, small: bool) -> list[Phase]:
    """Compute ``(a + b).sum()`` of two random arrays."""
    chunks = range(48 if small else 64 if gpu else 160)
    nbytes = (128 if gpu else 64) * MB
    seconds = 4e-3 if gpu else 30e-3
    graph: Graph = {(name, i): SimulatedTask((), seconds, nbytes) for name in "ab" for i in chunks}
    for i in chunks:
        graph["add", i] = SimulatedTask([("a", i), ("b", i)], 10e-3, nbytes)
        graph["sum", i] = SimulatedTask([("add", i)], 5e-3, 8)
    root = _tree(graph, [("sum", i) for i in chunks], "agg", SimulatedTask((), 1e-3, 8), 8)
    return [Phase(graph, [root])]


def _random(gpu: bool, small: bool) -> list[Phase]:
    """Take layers of tasks that each need some tasks of the layer before, from a fixed seed."""
    seeded = random.Random(0)
    tasks, layers = (120, 6) if small else (300, 12)
    nbytes = (96 if gpu else 48) * MB
    seconds = 10e-3 if gpu else 50e-3
    by_layer = [range(layer, tasks, layers) for layer in range(layers)]
    graph: Graph = {}
    for layer, numbers in enumerate(by_layer):
        for number in numbers:
            needs: list[Key] = []
            if layer:
                chosen = [seeded.choice(by_layer[layer - 1]) for _ in range(seeded.randint(1, 3))]
                needs = [(f"layer{layer - 1}", other) for other in dict.fromkeys(chosen)]
            takes = seconds * seeded.uniform(0.3, 2)
            made = int(nbytes * seeded.uniform(0.1, 2))
            graph[f"layer{layer}", number] = SimulatedTask(needs, takes, made)
    needed = {need for task in graph.values() for need in task.needs}
    return [Phase(graph, [key for key in graph if key not in needed])]


def _shuffle(gpu: bool, small: bool) -> list[Phase]:
    """Cut partitions into pieces, one for each new partition."""
    partitions = range(10 if small else 24)
    nbytes = (256 if gpu else 64) * MB
    seconds = 10e-3 if gpu else 50e-3
    graph: Graph = {("read", i): SimulatedTask((), seconds, nbytes) for i in partitions}
    piece = SimulatedTask((), 0.5e-3, nbytes // len(partitions))
    for i in partitions:
        for j in partitions:
            graph["split", i, j] = piece._replace(needs=[("read", i)])
    for j in partitions:
        graph["join", j] = SimulatedTask([("split", i, j) for i in partitions], seconds / 2, nbytes)
        graph["count", j] = SimulatedTask([("join", j)], 10e-3, 8)
    return [Phase(graph, [("count", j) for j in partitions])]


#: The workloads by name; each takes whether it is for GPUs, and whether it is small
WORKLOADS: Final[dict[str, Callable[[bool, bool], list[Phase]]]] = {
    "transpose": _transpose,
    "transpose-persisted": lambda gpu, small: _transpose(gpu, small, persisted=True),
    "tree": _reduction,
    "stencil": _stencil,
    "tensordot": _tensordot,
    "a+b": _sum_of_two,
    "random": _random,
    "shuffle": _shuffle,
}
