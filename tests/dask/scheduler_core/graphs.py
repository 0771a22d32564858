"""Random graphs: maps, trees, chains, all to all, and what is shared with earlier ones."""

from __future__ import annotations

import random
from typing import Any

from .events import Graph, GraphTask

__all__ = ["Graphs"]


#: Requests for resources; only Backhaul's slots heed requests for no thread, or for several
ASKED: list[dict[str, float]] = [
    {},
    {"GPU": 1},
    {"GPU": 1, "FOO": 2.5},
    {"BAR": 1},
    {"GPU": 0.5},
    {"GPU": 2},
    {"GPU": 1, "CPU": 0},
    {"CPU": 0},
    {"CPU": 2},
]


class Graphs:
    """A source of graphs."""

    def __init__(self, source: random.Random, asks: bool = False, combines: bool = False) -> None:
        self.random = source
        self.named = 0
        self.asks = asks
        self.annotates = source.random() < 0.4 or asks
        self.shapes = source.sample(
            [self._map, self._tree, self._chain, self._all_to_all, self._mixed], 3
        )
        if combines:
            self.shapes = [self._tree, self._tree, self._all_to_all, *self.shapes[:1]]

    def name(self, prefix: str | None = None) -> str:
        self.named += 1
        prefix = prefix or self.random.choice(["inc", "add", "sum-part"])
        if self.random.random() < 0.5:
            return f"{prefix}-{self.named}"
        return f"('{prefix}-{self.random.randrange(3)}', {self.named})"

    def next(self, state: Any, client: str) -> Graph:
        """Make a graph that may depend on tasks that are known."""
        rnd = self.random
        dependencies = rnd.choice(self.shapes)(list(state.tasks))
        names = list(dependencies)
        if names and rnd.random() < 0.02:
            dependencies[rnd.choice(names)].append("no-such-key")
        if state.tasks and rnd.random() < 0.1:
            # A task that is known, perhaps with other dependencies
            known = state.tasks[rnd.choice(list(state.tasks))]
            inputs = [ts.key for ts in known.dependencies if ts.key in state.tasks]
            dependencies[known.key] = inputs if rnd.random() < 0.7 else []
            names.append(known.key)
        wanted = [name for name in names if rnd.random() < 0.4] or names[-1:]
        if state.tasks and rnd.random() < 0.1:
            wanted.append(rnd.choice(list(state.tasks)))
        annotated, annotations = self._annotations(state, names)
        producers = rnd.random() < 0.05
        tasks = {
            name: GraphTask(
                tuple(dict.fromkeys(inputs)), order, annotations.get(name, {}), producers
            )
            for order, (name, inputs) in enumerate(dependencies.items())
        }
        user_priority: Any = rnd.choice([0, 0, 0, 1, -2, {names[0]: 5}])
        submits = rnd.random() < 0.05
        return Graph(
            tasks=tasks,
            wanted=tuple(dict.fromkeys(wanted)),
            client=client,
            annotated=annotated,
            user_priority=user_priority,
            submitting_task=rnd.choice([*state.tasks, "no-such-key"]) if submits else None,
            fifo_timeout_s=rnd.choice([0.0, 0.1]),
            actors=tuple(wanted[:1]) if rnd.random() < 0.05 and wanted[0] in tasks else (),
        )

    def _annotations(
        self, state: Any, names: list[str]
    ) -> tuple[tuple[str, ...], dict[str, dict[str, Any]]]:
        rnd = self.random
        if not self.annotates or rnd.random() < (0.2 if self.asks else 0.5):
            return (), {}
        some: list[str] = [*state.workers, "tcp://10.0.0.1:1", "10.0.0.1", "10.0.0.9"]
        some += [ws.name for ws in state.workers.values()]
        choices: dict[str, list[Any]] = {
            "workers": [[], [], [rnd.choice(some)], [rnd.choice(some), rnd.choice(some)]],
            "allow_other_workers": [False, True],
            "resources": ASKED if self.asks else [{}, *ASKED[:4]],
            "priority": [0, 3, -1.5],
            "retries": [0, 1, 2],
        }
        if rnd.random() < 0.95:
            # Upstream raises where a task goes to a worker without the resources it needs.
            without = ["allow_other_workers"] if self.asks else ["allow_other_workers", "resources"]
            del choices[rnd.choice(without)]
        annotated = tuple(rnd.sample(list(choices), rnd.randint(1, len(choices))))
        same = rnd.random() < 0.5
        one = {name: rnd.choice(choices[name]) for name in annotated}
        each = {
            key: one if same else {name: rnd.choice(choices[name]) for name in annotated}
            for key in names
        }
        return annotated, each

    def _inputs(self, known: list[str], at_most: int) -> list[str]:
        return self.random.sample(known, min(len(known), self.random.randint(0, at_most)))

    def _map(self, known: list[str]) -> dict[str, list[str]]:
        prefix = self.random.choice(["inc", "map"])
        shared = self._inputs(known, 1) if self.random.random() < 0.3 else []
        return {self.name(prefix): list(shared) for _ in range(self.random.choice([1, 3, 10, 30]))}

    def _chain(self, known: list[str]) -> dict[str, list[str]]:
        graph: dict[str, list[str]] = {}
        last = self._inputs(known, 1)
        for _ in range(self.random.randint(1, 6)):
            name = self.name("chain")
            graph[name] = last
            last = [name]
        return graph

    def _tree(self, known: list[str]) -> dict[str, list[str]]:
        graph: dict[str, list[str]] = {self.name("leaf"): [] for _ in range(8)}
        level = list(graph)
        while len(level) > 1:
            above = []
            for pair in zip(level[::2], level[1::2], strict=False):
                name = self.name("node")
                graph[name] = list(pair)
                above.append(name)
            level = above
        return graph

    def _all_to_all(self, known: list[str]) -> dict[str, list[str]]:
        width = self.random.choice([2, 4, 6])
        graph: dict[str, list[str]] = {self.name("split"): [] for _ in range(width)}
        inputs = list(graph)
        graph.update({self.name("shuffle"): list(inputs) for _ in range(width)})
        return graph

    def _mixed(self, known: list[str]) -> dict[str, list[str]]:
        graph: dict[str, list[str]] = {}
        for _ in range(self.random.choice([1, 4, 12])):
            graph[self.name()] = self._inputs([*known, *graph], 3)
        return graph
