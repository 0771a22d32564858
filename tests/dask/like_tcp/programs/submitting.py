"""Forms of `submit`, `map`, `scatter` and `get`; keys; options and annotations of tasks."""

from __future__ import annotations

import functools
from typing import Any

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


@program()
def keys_of_submits(run: Run) -> Observation:
    """Keys that Dask gives: pure calls share one, impure ones do not."""
    client = run.client
    one, same = client.submit(add, 1), client.submit(add, 1)
    keyword, other = client.submit(add, 1, y=10), client.submit(add, 2)
    impure = [client.submit(add, 1, pure=False) for _ in range(2)]
    partial = client.submit(functools.partial(add, 1))
    named = [each.key for each in (one, same, keyword, other, partial)]
    return [
        named,
        impure[0].key == impure[1].key,
        impure[0].key.rpartition("-")[0].split("-")[0],
        client.submit(lambda: 1).key.split("-")[0],
        client.submit(Adder(1), 1).key.split("-")[0],
        [client.map(add, [1, 2])[0].key, client.map(add, [1, 2], y=3)[1].key],
        client.submit(add, [1], [2], z=[3]).key,
        client.submit(add, {"a": 1}, key=None, pure=True).key,
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
