"""Forms of `submit`, `map`, `scatter` and `get`; keys; options and annotations of tasks."""

from __future__ import annotations

import functools
import operator
from typing import Any

from distributed import Event, get_worker, wait

import dask
from tests.dask.like_tcp.kit import Observation, Run, outcome, program


def everything(*args: Any, **kwargs: Any) -> Any:
    return args, sorted(kwargs.items(), key=str)


def add(x: Any, y: Any = 10, *, z: Any = 100) -> Any:
    return x + y + z


class Adder:
    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __call__(self, x: int) -> int:
        return x + self.amount

    def method(self, x: int) -> int:
        return x * self.amount

    @classmethod
    def of_class(cls, x: int) -> str:
        return f"{cls.__name__} {x}"

    @staticmethod
    def static(x: int) -> int:
        return -x


def here() -> str:
    return str(get_worker().name)


@program()
def kinds_of_functions(run: Run) -> Observation:
    """Functions, lambdas, closures, partials, builtins, methods, classes and callables."""
    captured = [1, 2]

    def closure(x: int) -> Any:
        return [*captured, x]

    functions = [
        add, lambda x: x * 2, closure, functools.partial(add, y=5), operator.neg, abs, str,
        Adder(3), Adder(3).method, Adder.of_class, Adder.static, Adder,
        functools.partial(closure), bytes, divmod,
    ]  # fmt: skip
    found = []
    for function in functions:
        future = run.client.submit(function, 4, pure=False)
        found.append(outcome(lambda future=future: type(future.result()).__name__))
        found.append(None if function is Adder else outcome(future.result))
    captured.append(3)
    return [found, outcome(run.client.submit(closure, 4, pure=False).result)]


@program()
def keys_of_submits(run: Run) -> Observation:
    """Keys that Dask gives: pure calls share one, impure ones do not."""
    client = run.client
    one, same = client.submit(add, 1), client.submit(add, 1)
    keyword, other = client.submit(add, 1, y=10), client.submit(add, 2)
    impure = [client.submit(add, 1, pure=False) for _ in range(2)]
    partial = client.submit(functools.partial(add, 1))
    named = [each.key for each in (one, same, keyword, other, partial)]
    # Whether a worker logs an error must not depend on how soon its task is forgotten.
    failing = client.submit(add, {"a": 1}, key=None, pure=True)
    wait(failing)
    return [
        named,
        impure[0].key == impure[1].key,
        impure[0].key.rpartition("-")[0].split("-")[0],
        client.submit(lambda: 1).key.split("-")[0],
        client.submit(Adder(1), 1).key.split("-")[0],
        [client.map(add, [1, 2])[0].key, client.map(add, [1, 2], y=3)[1].key],
        client.submit(add, [1], [2], z=[3]).key,
        failing.key,
    ]


@program()
def keys_of_the_user(run: Run) -> Observation:
    """Keys as text, tuples, unicode, long; keys that Dask refuses."""
    client = run.client
    keys: list[Any] = [
        "plain", ("tuple", 1), ("nested", ("deep", 2)), "unicode-ключ-鍵", "with space",
        "x" * 5000, "new\nline", "a'b\"c", ("tuple", "text", 0), "0123", "-", "(x)", "é" * 300,
        "deadbeef" * 4, "name-" + "0" * 32,
    ]  # fmt: skip
    futures = [client.submit(everything, number, key=key) for number, key in enumerate(keys)]
    found = [outcome(each.result) for each in futures]
    found.append([each.key == key for each, key in zip(futures, keys, strict=True)])
    dependents = [client.submit(everything, each, pure=False) for each in futures]
    found.append(client.gather(dependents))
    found += [sorted(map(str, client.who_has(futures)))]
    refused: list[Any] = [1.5, b"bytes", ["list"], ("bad", 1.5), ("bad", b"x"), {"a": 1}]
    found += [outcome(lambda key=key: client.submit(add, 1, key=key).result()) for key in refused]
    return found


@program()
def forms_of_map(run: Run) -> Observation:
    """`map` with several iterables, keywords, keys, batches, futures, and uneven lengths."""
    client = run.client
    base = client.map(add, range(3), key="base")
    return [
        client.gather(client.map(add, range(5), range(5))),
        client.gather(client.map(add, range(5), [1, 2])),
        client.gather(client.map(add, base, y=1, z=2)),
        client.gather(client.map(add, [1, 2], z=base[0])),
        [each.key for each in client.map(add, [1, 2], key=["k-1", "k-2"])],
        [each.key for each in client.map(add, [1, 2], key="prefix", pure=True)],
        client.gather(client.map(add, range(10), batch_size=3)),
        client.map(add, []),
        outcome(client.map, add, [1, 2], key=["only one"]),
        outcome(client.map, 5, [1]),
        client.gather(client.map(everything, [[1], [2]], [{"a": base[1]}, 2], k=[base[2]])),
        [outcome(each.result) for each in client.map(add, [1, "a", None])],
        client.gather(client.map(add, [7, 7, 7], pure=True)),
        len({each.key for each in client.map(add, [7, 7, 7], pure=False)}),
        sorted(client.gather(client.map(here, [], retries=2, priority=3))),
    ]


@program()
def arguments_change_later(run: Run) -> Observation:
    """Changes of arguments after `submit`, `map` or `scatter` are not seen by tasks."""
    client = run.client
    gate = run.submit_on(0, lambda: Event("later").wait())
    arguments: list[Any] = [1, [2]]
    table = {"a": bytearray(b"old")}
    submitted = run.submit_on(0, everything, arguments, table)
    mapped = client.map(everything, [arguments], [table], workers=[run.workers[0]], pure=False)
    delayed = client.compute(
        dask.delayed(everything, pure=False)(arguments, table), workers=[run.workers[0]]
    )
    arguments[1].append(3)
    table["a"][:] = b"new"
    Event("later").set()
    found = [submitted.result(), mapped[0].result(), delayed.result(), gate.result()]
    Event("later").clear()
    return found


@program()
def priorities(run: Run) -> Observation:
    """Of the tasks that wait for one worker, those of higher priority run first."""
    order_of = "priorities"
    gate = run.submit_on(0, lambda: Event("priorities").wait())

    def note(number: int) -> int:
        worker: Any = get_worker()
        seen: list[int] = worker.__dict__.setdefault(order_of, [])
        seen.append(number)
        return len(seen)

    levels = [0, 5, -5, 10, 1, -1]
    futures = [run.submit_on(0, note, level, priority=level) for level in levels]
    with dask.annotate(priority=7):
        futures.append(run.submit_on(0, note, 7))

    def count_tasks(dask_worker: Any) -> int:
        return len(dask_worker.state.tasks)

    # The gate opens once the worker has all of them.
    while run.client.run(count_tasks, workers=run.workers[:1])[run.workers[0]] <= len(futures):
        pass
    Event("priorities").set()
    ranks = run.client.gather(futures)
    Event("priorities").clear()

    def forget(dask_worker: Any) -> Any:
        return dask_worker.__dict__.pop(order_of, None)

    return [ranks, gate.result(), run.client.run(forget, workers=run.workers[:1])[run.workers[0]]]


@program()
def restrictions(run: Run) -> Observation:
    """`workers=` by address, name and host; `allow_other_workers`; annotations."""
    client = run.client
    found: list[Any] = [run.submit_on(number, here).result() for number in (0, 1)]
    by_name = client.submit(here, workers=[1], pure=False)
    missing = client.submit(here, workers=["tcp://127.0.0.1:1"], pure=False)
    other = client.submit(
        here, workers=["nobody"], allow_other_workers=True, pure=False, key="other"
    )
    other.result()
    found += [by_name.result(), missing.status]
    with dask.annotate(workers=[run.workers[1]], retries=2, custom="note"):
        found.append(client.submit(here, pure=False).result())
        found.append(client.gather(client.map(lambda _: here(), range(3), pure=False)))
        with dask.annotate(allow_other_workers=True):
            value = dask.delayed(here, pure=False)()
    found.append(value.compute(scheduler=client, optimize_graph=False))
    missing.cancel()
    return found


@program(logs=False, config={"distributed.worker.resources": {"UNIT": 2}})
def resources(run: Run) -> Observation:
    """Tasks that ask for resources run where these are, and no more than fit."""
    client = run.client
    found = [outcome(client.submit(here, resources={"UNIT": 1}, workers=run.workers[:1]).result)]
    found.append(client.gather(client.map(lambda x: x, range(10), resources={"UNIT": 2})))
    never = client.submit(here, resources={"OTHER": 1}, key="never")
    too_much = client.submit(here, resources={"UNIT": 3}, key="too much")
    with dask.annotate(resources={"UNIT": 1}):
        found.append(client.submit(add, 1, key="annotated").result())
    found += [never.status, too_much.status]
    client.cancel([never, too_much])
    return found


@program()
def scatters(run: Run) -> Observation:
    """`scatter` of one value, lists, dictionaries, with broadcast, direct, hash and workers."""
    client, workers = run.client, run.workers

    def held(futures: Any) -> list[int]:
        return sorted(len(each) for each in client.who_has(futures).values())

    one = client.scatter(5)
    many = client.scatter([1, "two", [3]])
    table = client.scatter({"x": 1, "y": [2]})
    same = [client.scatter(b"same", hash=True), client.scatter(b"same", hash=True)]
    apart = [client.scatter(b"same", hash=False) for _ in range(2)]
    everywhere = client.scatter([7, 8], broadcast=True)
    placed = client.scatter([9], workers=[workers[1]])
    direct = client.scatter({"d": 1}, direct=True)
    both = client.scatter([10, 11], broadcast=True, direct=True)
    found: list[Any] = [
        client.gather([one, many, table, everywhere, placed, direct, both]),
        [held(everywhere), held(placed), held(both)],
        client.who_has(placed) == {placed[0].key: (workers[1],)},
        [same[0].key == same[1].key, apart[0].key == apart[1].key, same[0].key],
        [type(client.scatter(value)).__name__ for value in [(1, 2), {1}, [1], range(2)]],
        one.type,
        outcome(client.scatter, [1], workers=["nobody"]),
        client.submit(everything, one, many, k=table).result(),
        client.gather(client.map(add, everywhere, placed * 2)),
    ]
    client.replicate(placed)
    found.append(held(placed))
    return found


@program()
def graphs(run: Run) -> Observation:
    """`Client.get` of graphs: aliases, nested keys, literals, order of keys, errors."""
    client = run.client
    graph: Any = {
        "a": 1, "b": (add, "a", 2), "c": "b", ("d", 0): (sum, ["a", "b", "c"]),
        "e": (everything, {"x": "b"}, ["a", ("d", 0)]), "f": (operator.truediv, "a", 0),
        "g": (add, "f", 1), "h": (operator.truediv, "b", 0),
    }  # fmt: skip
    return [
        client.get(graph, "b"),
        client.get(graph, ["a", "c", [("d", 0), "e"]]),
        outcome(client.get, graph, "g"),
        # Not f: whether the scheduler has forgotten its failure by now is open over tcp, too.
        outcome(client.get, graph, ["a", "h"]),
        client.gather(client.get(graph, ["a", "b"], sync=False)),
        outcome(client.get, {"x": (add, "y", 1), "y": (add, "x", 1)}, "x"),
        client.get({}, []),
    ]


@program()
def many_tasks(run: Run) -> Observation:
    """Hundreds of tasks in maps, chains and trees give the right sums."""
    client = run.client
    numbers = client.map(add, range(800), pure=False)
    layer = numbers
    while len(layer) > 1:
        layer = [client.submit(sum, layer[n : n + 8], pure=False) for n in range(0, len(layer), 8)]
    chain = client.submit(add, 0, pure=False)
    for _ in range(60):
        chain = client.submit(add, chain, 1, z=0, pure=False)
    return [layer[0].result(), chain.result(), sum(client.gather(numbers))]
