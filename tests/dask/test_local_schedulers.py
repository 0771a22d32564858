"""Resources on Dask's local schedulers: the same requests, the same ids, the same errors."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import dask.local
import dask.threaded
import pytest

import dask
from backhaul.dask import get_resources, processes, resource_id, resources, sync, threaded
from backhaul.errors import ConfigError
from dask import delayed

ISLANDS = {"GPU": [[0, 1], [2, 3]], "MEMORY": 64e9}

Get = Callable[..., Any]
in_process = pytest.mark.parametrize("get", [threaded.get, sync.get], ids=["threaded", "sync"])

#: Tasks that run at once, and who holds each unit
running: Counter[Any] = Counter()
most: Counter[Any] = Counter()
lock = threading.Lock()


@pytest.fixture(autouse=True)
def fresh_counts() -> None:
    running.clear()
    most.clear()


def counted(name: Any) -> None:
    with lock:
        running[name] += 1
        most[name] = max(most[name], running[name])
    # Others get a chance to run meanwhile.
    os.sched_yield()
    with lock:
        running[name] -= 1


@resources(GPU=1, CPU=0)
def on_gpu(number: int) -> Any:
    unit = resource_id("GPU")
    counted(("GPU", unit))
    return unit, get_resources(), os.getpid()


@resources(GPU=2)
def on_pair(*before: Any) -> Any:
    return resource_id("GPU")


def plain(number: int) -> int:
    counted("plain")
    return number


@in_process
def test_tasks_hold_units_one_at_a_time(get: Get) -> None:
    tasks = [delayed(on_gpu)(number) for number in range(50)]
    *found, pair = dask.compute(
        *tasks, delayed(on_pair)(*tasks[:3]), scheduler=get, resources=ISLANDS
    )
    assert {held["CPU"] for _, held, _ in found} == {0}
    assert {unit for unit, _, _ in found} <= set(range(4))
    assert pair in [(0, 1), (2, 3)]
    assert set(most.values()) == {1}


def test_processes_hold_units_of_all_of_them_together() -> None:
    with dask.config.set({"backhaul.resources": {"GPU": [[0, 1]]}}):
        graph = {("one", n): (on_gpu, n) for n in range(2)} | {"pair": (on_pair, ("one", 0))}
        one, other, pair = processes.get(graph, [("one", 0), ("one", 1), "pair"], num_workers=1)
    assert {one[0], other[0]} <= {0, 1}
    assert os.getpid() not in {one[2], other[2]}
    assert pair == (0, 1)


def test_threads_are_as_many_as_cpus_and_others_run_beside_them() -> None:
    everyone = threading.Barrier(20, timeout=300)

    @resources(CPU=0)
    def meets() -> int:
        # All of them together, or none passes.
        return everyone.wait()

    graph: dict[Any, Any] = {("meets", n): (meets,) for n in range(20)}
    graph |= {("plain", n): (plain, n) for n in range(50)}
    found = threaded.get(graph, list(graph), num_workers=2)
    assert sorted(found[:20]) == list(range(20))
    assert most["plain"] <= 2


@in_process
def test_annotations_ask_as_functions_do(get: Get) -> None:
    with dask.annotate(resources={"GPU": 2}):
        held = delayed(get_resources, pure=False)()
    assert held.compute(scheduler=get, resources=ISLANDS, optimize_graph=False) == {
        "GPU": (0, 1),
        "CPU": 1,
    }


@in_process
def test_chains_stay_on_the_unit_of_their_inputs(get: Get) -> None:
    @resources(GPU=1, CPU=0, affinity=["GPU"])
    def step(before: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*before, resource_id("GPU"))

    graph: dict[Any, Any] = {}
    for start in range(4):
        graph[start, 0] = (step, ())
        graph |= {(start, link): (step, (start, link - 1)) for link in range(1, 6)}
    chains = get(graph, [(start, 5) for start in range(4)], resources=ISLANDS)
    # A chain moves on only where its unit has been taken by another one meanwhile.
    assert all(len(chain) == 6 for chain in chains)
    if get is sync.get:
        assert all(len(set(chain)) == 1 for chain in chains)


@in_process
def test_a_request_that_can_never_be_met_fails_before_anything_runs(get: Get) -> None:
    graph = {"first": (plain, 1), "pair": (on_pair, "first")}
    with pytest.raises(ConfigError, match="2 of GPU are more than the 1 that there are"):
        get(graph, "pair", resources={"GPU": 1})
    with pytest.raises(ConfigError, match="there is no GPU; there is CPU="):
        get(graph, "pair")
    assert not most


@in_process
def test_errors_are_those_of_the_task_and_give_all_back(get: Get) -> None:
    @resources(GPU=4)
    def fails() -> None:
        raise RuntimeError("on purpose")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="on purpose"):
            get({"x": (fails,)}, "x", resources=ISLANDS)


@in_process
def test_graphs_that_ask_for_nothing_go_to_dasks_own(
    get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    for module, name in ((dask.threaded, "get"), (dask.local, "get_sync")):
        original = getattr(module, name)

        def own(dsk: Any, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            seen.append(dsk)
            return original(dsk, *args, **kwargs)

        monkeypatch.setattr(module, name, own)
    graph = {"x": (plain, 1)}
    assert get(graph, "x") == 1
    assert seen == [graph]
