"""Names of tasks: the same as Dask's, to the letter."""

from __future__ import annotations

import datetime
import enum
import functools
import operator
from typing import Any

import pytest
from dask.tokenize import normalize_token, tokenize
from distributed import Client, Future, Scheduler, Worker
from distributed.utils_test import gen_cluster, inc

import dask
from backhaul.dask.client.keys import function_token, names_of_calls, tokens_of_calls


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    def __dask_tokenize__(self) -> str:
        return "text"


@functools.wraps(inc)
def wrapped(x: int) -> int:
    return x


class Methods:
    @staticmethod
    def static(x: int) -> int:
        return x

    def bound(self) -> None:
        pass

    def __dask_tokenize__(self) -> str:
        return "methods"


FUNCTIONS = [
    inc,
    operator.add,
    abs,
    print,
    Methods.static,
    Methods().bound,
    wrapped,
    int,
    "text".join,
    functools.partial(inc, 1),
]
ARGUMENTS: list[tuple[Any, ...]] = [
    (),
    (1,),
    (-1, 2**200, True),
    (1.5, float("inf"), float("nan"), -0.0, 1j),
    ("text", "quotes '\"", "\n\u2603\ud800"[:-1], b"\x00'"),
    (None, None),
    ([1, 2], (3,), {"a": {4}}),
    (Colour.RED, Text("x"), datetime.date(2026, 11, 23), ...),
]


@pytest.mark.parametrize("args", ARGUMENTS)
def test_tokens_are_those_of_dask(args: tuple[Any, ...]) -> None:
    for func in FUNCTIONS:
        # Twice, as the second time more is known.
        for _ in range(2):
            assert function_token(func, {}, args) == tokenize(func, {}, *args), func
        assert function_token(func, {"a": 1}, args) == tokenize(func, {"a": 1}, *args)
    for token in ("token", "quote'"):
        assert tokens_of_calls(token, [args, args]) == [tokenize(token, args)] * 2
        one_each = [f"x-{tokenize(token, (arg,))}" for arg in args]
        assert names_of_calls("x", token, [args]) == one_each
        assert names_of_calls("x", token, [args, (*args, 0)]) == [
            f"x-{tokenize(token, (arg, arg))}" for arg in args
        ]


def test_numbers_of_a_range_are_named_as_dask_names_them() -> None:
    for numbers in (range(3), range(-2, 5, 3), range(0)):
        expected = [f"x-{tokenize('token', (number,))}" for number in numbers]
        assert names_of_calls("x", "token", (numbers,)) == expected


def test_a_function_whose_name_was_reassigned_has_another_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = function_token(inc, {}, (1,))
    original = inc

    def replaced(x: int) -> int:
        return x

    monkeypatch.setattr("distributed.utils_test.inc", replaced)
    assert function_token(original, {}, (1,)) == tokenize(original, {}, 1) != before


#: A program with a function that is pickled by value, and statements that may change its pickle
PROGRAM = """
import math
import operator

OFFSET = 3
TABLE = (1, 2)
CHANGED = [1]

def helper(x):
    return x + OFFSET

def outer(count):
    def nested(x: int, y=(1, "a"), *, z=None) -> float:
        "Adds."
        return math.sqrt(helper(x)) + count + TABLE[0] + operator.add(x, y[0])
    return nested

def mutable(x):
    return CHANGED[0] + x

func = outer(5)
"""
CHANGES = [
    "OFFSET = 4",
    "TABLE = (2, 1)",
    "def helper(x): return x",
    "helper.attribute = 1",
    "func.__defaults__ = ((2, 'a'),)",
    "func.__kwdefaults__['z'] = 1",
    "func.__annotations__['x'] = str",
    "func.__doc__ = 'Other.'",
    "func.__name__ = 'other'",
    "func.attribute = [1]",
    "func.__closure__[0].cell_contents = 6",
    "func.__code__ = outer(5).__code__.replace(co_firstlineno=77)",
    "math = operator",
    "sqrt = 1",
    "func = mutable",
    "CHANGED.append(1); CHANGED[0] = 2",
    "helper = lambda x: x",
    "def helper(x): return func",
    "helper = print",
]


@pytest.mark.parametrize("module", ["__main__", "no_such_module"])
def test_a_function_pickled_by_value_has_the_token_of_its_present_state(module: str) -> None:
    scope: dict[str, Any] = {"__name__": module}
    exec(PROGRAM, scope)
    for change in ["", *CHANGES]:
        exec(change, scope)
        for _ in range(2):
            for func in (scope["func"], scope["helper"]):
                assert function_token(func, {}, (1,)) == tokenize(func, {}, 1), change


def test_the_token_of_a_function_that_stays_the_same_is_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(PROGRAM, scope)
    calls = []
    normalize = normalize_token.dispatch(type(inc))

    def counted(func: Any) -> Any:
        calls.append(func)
        return normalize(func)

    monkeypatch.setitem(normalize_token._lookup, type(inc), counted)
    tokens = {function_token(scope["func"], {}, (number,)) for number in range(50)}
    assert len(tokens) == 50
    assert 1 <= len(calls) <= 2
    # An object that may change in place is looked into each time.
    for number in range(5):
        function_token(scope["mutable"], {}, (number,))
    assert len(calls) >= 6


def test_a_registered_tokenizer_of_functions_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    function_token(inc, {}, (1,))
    kind = type(inc)
    monkeypatch.setitem(normalize_token._lookup, kind, lambda func: ("mine", func.__name__))
    assert function_token(inc, {}, (1,)) == tokenize(inc, {}, 1)


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)],
    scheduler_kwargs={"protocol": "backhaul"},
    worker_kwargs={"protocol": "backhaul"},
)
async def test_the_same_call_is_the_same_task(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    with dask.config.set({"tokenize.ensure-deterministic": True}):
        first = client.submit(inc, 1)
        assert first.key == f"inc-{tokenize(inc, {}, 1)}"
        second = client.submit(inc, first)
        assert second.key == f"inc-{tokenize(inc, {}, first)}"
        assert client.submit(inc, 1).key == first.key
        # One future is not another, even of the same task.
        assert client.submit(inc, Future(first.key, client)).key != second.key
        assert await second == 3
