"""Options that Dask refuses: errors, their texts, and log lines.

Dask's scheduler keeps the tasks of a graph that it refuses for good. Over `backhaul` they are
forgotten, because the state would otherwise stay in Python; so leftovers are not compared.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from distributed import wait

import dask
from tests.dask.like_tcp.kit import Observation, Run, outcome, program


def add(x: Any, y: Any = 10) -> Any:
    return x + y


#: Values that are refused, by option
BAD: dict[str, list[Any]] = {
    "workers": [5, 1.5, [5], [None], {"a": 1}, b"x", [["nested"]], True, ["nobody", 5]],
    "priority": ["high", [1], (1, 2), {"a": 1}, b"x"],
    "resources": [5, "GPU", ["GPU"], [("GPU", 1)]],
    "retries": ["two", 1.5, [1], {"a": 1}, "0"],
    "allow_other_workers": [5, "yes", [], True],
    "fifo_timeout": ["soon", None, -1, [1], "", b"x", "1 parsec"],
}

#: Values that look odd, and are taken
ODD: dict[str, list[Any]] = {
    "workers": [(), []],
    "priority": [None, 1.5, True, ""],
    "resources": [{}, []],
    "retries": [-1, True, 0, None],
    "allow_other_workers": [None, 0],
    "fifo_timeout": [5, 0.5],
}


def outcomes(submit: Callable[..., list[Any]], values: dict[str, list[Any]]) -> Observation:
    """Returns the outcome of a call for each value of each option."""

    def results(options: dict[str, Any]) -> Any:
        futures = submit(**options)
        wait(futures)
        return [outcome(each.result) for each in futures]

    return [
        [name, outcome(results, {name: value})]
        for name, several in values.items()
        for value in several
    ]


def both(run: Run, submit: Callable[..., list[Any]]) -> Observation:
    found = [outcomes(submit, BAD), outcomes(submit, ODD)]
    return [*found, run.client.gather(run.client.map(add, range(5), key="after"))]


def of_submit(run: Run) -> Observation:
    """`submit` with options that Dask refuses or takes, on values and on futures."""
    client = run.client
    dependency = client.submit(add, 1, key="dependency")

    def submit(**options: Any) -> list[Any]:
        return [client.submit(add, each, pure=False, **options) for each in (1, dependency)]

    return both(run, submit)


def of_map(run: Run) -> Observation:
    """`map` with options that Dask refuses or takes."""
    return both(run, lambda **options: run.client.map(add, range(3), pure=False, **options))


def of_graphs(run: Run) -> Observation:
    """`compute` and `persist` with options that Dask refuses or takes."""

    def one(number: int) -> Any:
        return dask.delayed(add, pure=False)(number)

    def submit(**options: Any) -> list[Any]:
        kept = run.client.persist(one(3), **options)
        return [*run.client.compute([one(1), one(2)], **options), *kept.dask.values()]

    return both(run, submit)


def of_annotations(run: Run) -> Observation:
    """Annotations that Dask refuses or takes, on `submit`."""

    def submit(**options: Any) -> list[Any]:
        with dask.annotate(**options):
            return [run.client.submit(add, 1, pure=False)]

    values = {name: BAD[name] for name in ("workers", "priority", "resources", "retries")}
    return [outcomes(submit, values), run.client.submit(add, 1, key="after").result()]


def actors_and_keys(run: Run) -> Observation:
    """Odd values of `actor=`, `key=` and `pure=`."""
    client = run.client

    def submit(**options: Any) -> list[Any]:
        return [client.submit(add, 1, **options)]

    values: dict[str, list[Any]] = {
        "actor": ["yes", 5, [], None],
        "key": [5, 1.5, b"x", ["l"], ("a", 1.5), (), ""],
        "pure": ["yes", None, 5],
    }
    return [outcomes(submit, values), client.submit(add, 1, key="after").result()]


@program(left=False)
def of_tasks(run: Run) -> Observation:
    """Options of calls that make tasks."""
    parts = (of_submit, of_map, of_graphs, of_annotations, actors_and_keys)
    return [part(run) for part in parts]


@program()
def other_calls(run: Run) -> Observation:
    """Calls of the client whose arguments are refused before the scheduler has them."""
    client = run.client
    return [
        outcome(client.submit, 5),
        outcome(client.submit(add, 1, w=1).result),
        outcome(client.submit(add).result),
        outcome(client.map, add),
        outcome(client.map, add, 5),
        outcome(client.submit, add, threading.Lock()),
        outcome(client.scatter, threading.Lock()),
        outcome(client.scatter, [1], workers=5),
        outcome(client.scatter, [1], timeout="soon"),
        outcome(client.gather, client.submit(add, 1), errors="odd"),
        outcome(client.gather, 5),
        outcome(client.get, {"x": (add, 1)}, "missing"),
        outcome(client.compute, 5),
        outcome(client.persist, 5),
        outcome(client.cancel, "no such key"),
        outcome(client.submit(add, 1).result, timeout="soon"),
    ]
