"""Graphs of few tasks, which pass no thread of the scheduler; and those that still do."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import distributed.scheduler
import pytest
from dask._expr import LLGExpr
from dask._task_spec import Task
from distributed import Client, Scheduler, Worker
from distributed.utils_test import gen_cluster, gen_test, inc

import dask
from backhaul.dask.compat import activation
from backhaul.dask.scheduler.small_graphs import GRAPHS_IN_TURN_MAX, TASKS_MAX

SWITCH = "distributed.comm.backhaul.hot-path.small-graphs"
CLUSTER: dict[str, Any] = {
    # What submit sends is a graph.
    "config": {"distributed.comm.backhaul.hot-path.submit": False},
    "client": True,
    "nthreads": [("127.0.0.1", 1)],
    "scheduler_kwargs": {"protocol": "backhaul"},
    "worker_kwargs": {"protocol": "backhaul"},
}


@pytest.fixture
def threads(plain_dask: None, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each graph that became tasks, whether that was in another thread than this one."""
    seen: list[bool] = []
    home = threading.get_ident()
    original = LLGExpr._layer

    def _layer(self: Any) -> Any:
        seen.append(threading.get_ident() != home)
        return original(self)

    activation.install()
    monkeypatch.setattr(LLGExpr, "_layer", _layer)
    return seen


@gen_cluster(**CLUSTER)
async def submitted(client: Client, scheduler: Scheduler, worker: Worker) -> None:
    assert await client.submit(inc, 1) == 2


def test_what_submit_sends_passes_no_thread(threads: list[bool]) -> None:
    submitted()
    assert threads == [False]


def test_switched_off_it_passes_one(threads: list[bool]) -> None:
    activation.uninstall()
    with dask.config.set({SWITCH: False}):
        submitted()
    assert threads == [True]


@gen_cluster(**CLUSTER)
async def graphs_of_others(client: Client, scheduler: Scheduler, worker: Worker) -> None:
    many = {f"key-{i}": Task(f"key-{i}", inc, i) for i in range(TASKS_MAX + 1)}
    legacy: dict[str, Any] = {"legacy": (inc, 1)}
    for number, graph in enumerate((many, legacy)):
        expr = LLGExpr(graph, _determ_token=str(number))
        futures = client._graph_to_futures(expr, list(graph), span_metadata={"collections": []})
        expected = [i + 1 for i in range(len(graph))] if number == 0 else [2]
        assert await client.gather([futures[key] for key in graph]) == expected


def test_what_is_large_or_has_code_of_others_passes_one(threads: list[bool]) -> None:
    graphs_of_others()
    assert threads == [True, True]


@gen_test()
async def few_in_a_turn() -> None:
    offload = distributed.scheduler.offload
    expr = LLGExpr({"key": Task("key", inc, 1)}, _determ_token="token")
    materialize = distributed.scheduler._materialize_graph

    async def graphs(count: int) -> int:
        """How many of so many graphs were handled before the event loop went on."""
        turned: list[bool] = []
        asyncio.get_running_loop().call_soon(turned.append, True)
        handled = 0
        for _ in range(count):
            graph, _ = await offload(materialize, expr=expr, validate=True)
            assert list(graph) == ["key"]
            handled += not turned
        return handled

    assert await graphs(3 * GRAPHS_IN_TURN_MAX) == GRAPHS_IN_TURN_MAX
    await asyncio.sleep(0)
    assert await graphs(3 * GRAPHS_IN_TURN_MAX) == GRAPHS_IN_TURN_MAX


def test_a_flood_of_them_leaves_the_event_loop_its_turns(plain_dask: None) -> None:
    activation.install()
    few_in_a_turn()


@gen_cluster(**CLUSTER)
async def bad_keys(client: Client, scheduler: Scheduler, worker: Worker) -> None:
    expr = LLGExpr({"key": Task("key", inc, 1)}, _determ_token="token")

    def fails(self: Any) -> Any:
        raise RuntimeError("no graph today")

    original, LLGExpr._layer = LLGExpr._layer, fails  # type: ignore[method-assign]
    try:
        futures = client._graph_to_futures(expr, ["key"], span_metadata={"collections": []})
        with pytest.raises(RuntimeError, match="no graph today"):
            await futures["key"]
    finally:
        LLGExpr._layer = original  # type: ignore[method-assign]
    assert await client.submit(inc, 2) == 3


def test_an_error_in_it_reaches_the_future(plain_dask: None) -> None:
    activation.install()
    bad_keys()
