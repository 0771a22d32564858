"""Requests of functions, and how they are found in the tasks of a graph."""

from __future__ import annotations

import functools
import itertools
import pickle
import random
from typing import Any

import cloudpickle
import pytest
from dask._task_spec import Task, TaskRef

from backhaul.dask import resources
from backhaul.dask.resource_pools import declarations
from backhaul.dask.resource_pools.requests import BESIDE_TASKS, CPU, Needs, declared_name, needs_of
from backhaul.errors import ConfigError


@resources(GPU=1, CPU=0, affinity=["GPU"])
def kernel(x: Any) -> Any:
    return x


@resources(GPU=2, MEMORY=1e9)
def large(x: Any) -> Any:
    return x


def plain(x: Any) -> Any:
    return x


ON_GPU = Needs({"GPU": 1, "CPU": 0}, ["GPU"])


def test_cpu_is_one_unless_it_is_said_and_nothing_is_left_out() -> None:
    chosen = random.Random(1)
    for _ in range(200):
        amounts = {name: chosen.choice([0, 0.5, 1, 3]) for name in ("GPU", "DISK", "CPU")}
        said = {name: units for name, units in amounts.items() if chosen.random() < 0.7}
        needs = Needs(said)
        assert needs.cpu == said.get("CPU", 1)
        assert needs.resources == {n: u for n, u in said.items() if n != "CPU" and u}
        assert needs == pickle.loads(pickle.dumps(needs))
        assert hash(needs) == hash(Needs(dict(reversed(said.items()))))


@pytest.mark.parametrize(
    "spec",
    [
        kernel,
        (kernel, "x"),
        (plain, [(kernel, "x")]),
        functools.partial(plain, kernel),
        Task("y", kernel, TaskRef("x")),
        Task("y", map, kernel, TaskRef("x")),
        Task("y", plain, Task(None, kernel, 1)),
        Task.fuse(Task("x", plain, 1), Task("y", kernel, TaskRef("x"))),
        cloudpickle.loads(cloudpickle.dumps(Task("y", kernel, 1))),
    ],
)
def test_the_request_of_a_nested_function_is_found(spec: Any) -> None:
    assert needs_of(spec) == ON_GPU


def test_no_name_of_a_user_is_one_of_ours_or_that_of_another() -> None:
    words = ["declared ", "declared", "CPU", "tasks without ", "GPU", " "]
    every = itertools.chain.from_iterable(itertools.product(words, repeat=n) for n in range(1, 6))
    names = {"".join(parts) for parts in every}
    assert {CPU, BESIDE_TASKS, "declared CPU", "declared declared CPU"} <= names
    ours = {declared_name(name) for name in names}
    assert len(ours) == len(names)
    assert ours.isdisjoint({CPU, BESIDE_TASKS})
    assert declared_name(CPU) == "declared CPU"


@pytest.mark.parametrize("spec", [plain, 1, "kernel", ("x", 0), Task("x", plain, 1), int, object()])
def test_a_function_without_a_request_has_no_needs(spec: Any) -> None:
    assert needs_of(spec) is None


def test_a_fused_task_asks_for_the_larger_of_each() -> None:
    fused = Task.fuse(Task("x", kernel, 1), Task("y", large, TaskRef("x")))
    assert needs_of(fused) == Needs({"GPU": 2, "MEMORY": 1e9, "CPU": 1}, ["GPU"])


def test_functions_made_in_another_process_still_ask() -> None:
    @resources(GPU=1)
    def local(x: Any) -> Any:
        return x

    assert needs_of(cloudpickle.loads(cloudpickle.dumps(local))) == Needs({"GPU": 1})


def test_an_object_without_attributes_is_refused() -> None:
    with pytest.raises(TypeError, match="can have no attributes"):
        resources(GPU=1)(len)
    with pytest.raises(TypeError, match="only what can be called"):
        resources(GPU=1)(3)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, {}),
        ("GPU=2", {"GPU": 2}),
        ("GPU=2,MEM=1.5", {"GPU": 2, "MEM": 1.5}),
        ("GPU=[[0,1],[2,3]] MEMORY=64e9", {"GPU": [[0, 1], [2, 3]], "MEMORY": 64e9}),
        ("GPU=[0, 1]  NIC=1", {"GPU": [0, 1], "NIC": 1}),
    ],
)
def test_command_lines_say_numbers_ids_and_groups(text: str | None, expected: Any) -> None:
    assert declarations.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GPU", "must be like NAME=VALUE, got 'GPU'"),
        ("GPU=NaN", "'NaN' is neither a number nor ids"),
        ("GPU=[0,1", "neither a number nor ids"),
        ("GPU=[[0],[0]]", "GPU 0 is in two groups, number 0 and number 1"),
        ("GPU=-1", "there cannot be that much of GPU: -1 is negative"),
        ('GPU="two"', "GPU must be a number, ids like"),
        ("GPU=true", "GPU must be a number, ids like"),
        ("GPU=[-1]", "GPU must be a number, ids like"),
    ],
)
def test_an_impossible_declaration_is_refused_with_its_name(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        declarations.parse(text)
    assert message in str(caught.value)


def test_dask_gets_the_declared_amounts() -> None:
    said = declarations.checked({"GPU": ((0, 1), (2,)), "NIC": range(2), "MEMORY": 64e9})
    assert declarations.totals(said) == {"GPU": 3, "NIC": 2, "MEMORY": 64e9}
    assert declarations.groups_of(said) == {"GPU": [[0, 1], [2]], "NIC": [[0, 1]]}
