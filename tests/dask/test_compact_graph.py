"""Graphs that go as one message: same state, same errors, and who gets them."""

from __future__ import annotations

import asyncio
import operator
import pickle
import threading
from typing import Any

import distributed
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, List, Task, TaskRef
from distributed import Actor, Client, Scheduler, Worker, span, wait
from distributed.client import FutureCancelledError
from distributed.spans import Span
from distributed.utils_test import gen_cluster, inc

import dask
from backhaul._native import TaskGraph
from backhaul.dask import resources
from backhaul.dask.client import submit
from backhaul.dask.compat import activation
from backhaul.dask.compat.operations import GRAPH
from backhaul.dask.serialize.codec import codec
from backhaul.dask.serialize.pickled_task import PickledTask, tasks_of
from tests.dask.submitted_state import Forgetful, Updates, said_of_all, state_of

SWITCH = "distributed.comm.backhaul.hot-path.submit"
CLUSTER: dict[str, Any] = {
    "client": True,
    "scheduler_kwargs": {"protocol": "backhaul"},
    "worker_kwargs": {"protocol": "backhaul", "resources": {"A": 2}},
}
ONE: list[Any] = [("127.0.0.1", 1)]


@pytest.fixture(autouse=True)
def fresh(plain_dask: None) -> None:
    """Begin each test with Dask as it is, so that switches count."""


def sent(scheduler: Scheduler) -> list[int]:
    """Note how many tasks each compact message has from now on."""
    seen: list[int] = []
    original = scheduler.stream_handlers[GRAPH]

    async def noted(**message: Any) -> None:
        seen.append(len(TaskGraph(message["graph"])))
        await original(**message)

    scheduler.stream_handlers[GRAPH] = noted
    return seen


# Graphs as bytes


def refuse(task: Any) -> None:
    """Pickle nothing."""


def written(graph: dict[Any, Any], wanted: list[Any]) -> bytes | None:
    """Write a graph, in its own order."""
    order = {key: len(graph) - place for place, key in enumerate(graph)}
    return codec.encode_graph(graph, order, wanted, refuse)


def plain_graph() -> dict[Any, Any]:
    """Make one with a node of every kind."""
    nodes: list[Any] = [
        Task("a", inc, 1),
        Task(("b", 0), operator.add, TaskRef("a"), TaskRef(("elsewhere", 1))),
        Alias("c", ("b", 0)),
        DataNode("d", [1, {"x": (2.5, None)}]),
        List("e", TaskRef("a"), 7),
        Task(5, sum, List(TaskRef("a"), TaskRef("e")), _data_producer=True),
    ]
    nodes[4].key = "e"
    return {node.key: node for node in nodes}


def test_each_task_is_what_it_was() -> None:
    graph = plain_graph()
    data = written(graph, ["c", ("b", 0)])
    assert data is not None
    read = TaskGraph(data)
    keys = codec.unpack(read.keys())
    assert list(keys) == [*graph, ("elsewhere", 1)]
    assert len(read) == 6
    assert not read.are_texts()
    tasks, order, wanted = tasks_of(read, keys)
    assert wanted == {"c", ("b", 0)}
    assert order == {key: 6 - place for place, key in enumerate(graph)}
    for key, node in graph.items():
        assert tasks[key].dependencies == node.dependencies
        assert tasks[key].data_producer == node.data_producer
        is_call = type(node) is Task
        assert type(tasks[key]) is (PickledTask if is_call else type(node))
        if is_call:
            # Byte for byte what a task by itself is written as.
            assert tasks[key]._repr == codec.encode_task(node)
        assert tasks[key] == node


def test_groups_are_named_but_for_keys_that_dask_has_to_name() -> None:
    named: dict[Any, Any] = {
        key: Task(key, inc, 1) for key in ("inc-1", "inc-2", ("x-0a1b2c3d", 1), ("x-0a1b2c3d", 2))
    }
    data = written(named, ["inc-1"])
    assert data is not None
    groups = TaskGraph(data).groups()
    assert groups is not None
    found = [(name, prefix, codec.unpack(key)) for name, prefix, key in groups]
    assert found == [("inc", "inc", "inc-1"), ("x-0a1b2c3d", "x", ("x-0a1b2c3d", 1))]
    for odd in (5, 2.5, ("x", 1.0), ("x", True), (1, 2), "_x", "é", ("shuffle-x", 1), "shuffle-1"):
        data = written({odd: Task(odd, inc, 1)}, [odd])
        assert data is not None
        assert TaskGraph(data).groups() is None


def test_a_task_that_is_not_simple_is_pickled_or_not_written() -> None:
    graph = {"a": Task("a", np.sum, np.ones(2)), "b": Task("b", inc, TaskRef("a"))}
    assert written(graph, ["b"]) is None
    data = codec.encode_graph(graph, {"a": 0, "b": 1}, ["b"], pickle.dumps)
    assert data is not None
    read = TaskGraph(data)
    tasks, _, _ = tasks_of(read, codec.unpack(read.keys()))
    assert tasks["a"]() == 2
    for odd in (
        {"a": 5},
        {"a": TaskRef("b")},
        # A class that a program derived from a task has a meaning for the program
        {"a": type("Mine", (Task,), {"__slots__": ()})("a", inc, 1)},
    ):
        assert codec.encode_graph(odd, {"a": 0}, ["a"], pickle.dumps) is None
    # Not in the order
    assert codec.encode_graph(graph, {"a": 0}, ["b"], pickle.dumps) is None


def test_bytes_that_are_no_graph_are_refused() -> None:
    data = written(plain_graph(), ["c"])
    assert data is not None
    for end in range(len(data)):
        with pytest.raises(ValueError, match="malformed graph"):
            TaskGraph(data[:end])
    with pytest.raises(ValueError, match="malformed graph"):
        TaskGraph(data + b"\0")


# The same state as upstream's


def pairwise(numbers: list[Any]) -> Any:
    """Add delayed objects up in a tree, whose names begin with that of the first."""
    name = numbers[0].key.partition("-")[0]
    while len(numbers) > 1:
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        numbers = [
            dask.delayed(operator.add)(*pair, dask_key_name=f"{name}-add-{len(numbers)}-{place}")
            for place, pair in enumerate(pairs)
        ]
    return numbers[0]


def leaves(name: str, count: int) -> list[Any]:
    return [dask.delayed(inc)(n, dask_key_name=f"{name}-{n}") for n in range(count)]


async def graphs(client: Client, scheduler: Scheduler, *workers: Worker) -> dict[str, Any]:
    """Send graphs in every way that there is, and tell what the scheduler made of them."""
    plugin = Updates()
    scheduler.add_plugin(plugin)
    ours = sent(scheduler) if GRAPH in scheduler.stream_handlers else []
    addresses = {worker.address: number for number, worker in enumerate(workers)}
    first = workers[0].address
    going_on = client.submit(go_on, key="going on", workers=[workers[1].address])
    while going_on.key not in scheduler.tasks:
        await asyncio.sleep(0.001)
    captured = {"by value": 7}
    held: dict[str, Any] = {}
    with dask.config.set({"distributed.diagnostics.computations.nframes": 2}):
        held["tree"] = client.compute(pairwise(leaves("leaf", 8)))
    held["as it stands"] = client.compute(pairwise(leaves("bare", 4)), optimize_graph=False)
    held["two"] = client.compute(leaves("both", 2))
    persisted = client.persist(pairwise(leaves("kept", 2)))
    held["of what is kept"] = client.compute(dask.delayed(inc)(persisted, dask_key_name="of-kept"))
    held["of a future"] = client.compute(dask.delayed(inc)(held["tree"], dask_key_name="of-future"))
    dsk: dict[Any, Any] = {("x", 1): (inc, 1), ("x", 2): (inc, ("x", 1)), "alias": ("x", 2), "n": 5}
    held["get"] = client.get(dsk, ["alias", "n"], sync=False)
    held["left out"] = client.get({"y-1": (inc, 1), "z-1": (inc, 1)}, ["y-1"], sync=False)
    held["closure"] = client.compute(
        dask.delayed(lambda x: x + captured["by value"])(1, dask_key_name="closure")
    )
    held["array"] = client.compute(dask.delayed(np.sum)(np.ones(3), dask_key_name="array"))
    held["worker"] = client.compute(pairwise(leaves("tied", 2)), workers=first)
    held["urgent"] = client.compute(pairwise(leaves("urgent", 2)), priority=5, retries=2)
    held["resources"] = client.compute(leaves("asks", 1)[0], resources={"A": 1})
    with dask.annotate(priority=3, mine="yes"), span("tag"):
        held["annotated"] = client.compute(leaves("annotated", 1)[0])
    with span("plain tag"):
        held["in a span"] = client.compute(leaves("spanned", 1)[0])
    held["broken"] = client.compute(dask.delayed(operator.truediv)(1, 0, dask_key_name="broken"))
    some = [each for one in held.values() for each in (one if isinstance(one, list) else [one])]
    await wait(some)
    found: dict[str, Any] = {
        f"{name} {number}": state_of(scheduler, future.key, addresses)
        for name, one in held.items()
        for number, future in enumerate(one if isinstance(one, list) else [one])
    }
    found |= said_of_all(scheduler, client, plugin, addresses)
    assert await held["tree"] == 36
    assert await client.gather(held["get"]) == [3, 5]
    assert await held["of what is kept"] == 4
    assert await held["of a future"] == 37
    assert await held["closure"] == 8
    assert await held["array"] == 3
    assert scheduler._active_graph_updates == 0
    found["ours"] = ours
    may_end.set()
    await going_on
    return found


#: What `go_on` waits for
may_end = threading.Event()


def go_on() -> None:
    assert may_end.wait(300)


def test_the_scheduler_knows_the_same_of_graphs_as_upstream_s_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 2026.7.1 takes metadata for told already that lies where others lay that are gone.
    monkeypatch.setattr(Span, "_metadata_seen", Forgetful(), raising=False)
    # The second one has a thread that is kept, and one for the others.
    two: dict[str, Any] = {"nthreads": [("127.0.0.1", 1), ("127.0.0.1", 2)], **CLUSTER}
    may_end.clear()
    ours = gen_cluster(**two)(graphs)()
    activation.uninstall()
    may_end.clear()
    upstream = gen_cluster(config={SWITCH: False}, **two)(graphs)()
    seen = ours.pop("ours")
    assert upstream.pop("ours") == []
    # All but what asks for something besides, and a graph with a future in it
    assert seen == [15, 7, 2, 3, 1, 4, 1, 1, 1, 1]
    for name in upstream:
        assert ours[name] == upstream[name], name


# Errors, and who does not understand


@gen_cluster(nthreads=ONE, **CLUSTER)
async def test_a_graph_whose_input_is_lost_is_cancelled(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    seen = sent(scheduler)
    (future,) = client.get({"x": Task("x", inc, TaskRef("nobody-made-this"))}, ["x"], sync=False)
    with pytest.raises(FutureCancelledError, match="lost dependencies"):
        await future
    assert seen == [1]
    assert scheduler.tasks == {}


@pytest.mark.parametrize("odd", [5, b"", b"\xc4\x00\x90\x01"])
@gen_cluster(nthreads=ONE, **CLUSTER)
async def test_a_graph_that_cannot_be_read_leaves_no_future_waiting(
    client: Client,
    scheduler: Scheduler,
    worker: Worker,
    odd: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = client.scheduler_comm
    waits = client.submit(inc, 1, workers=["nowhere"])
    client._send_to_scheduler({"op": GRAPH, "graph": odd})
    with pytest.raises(FutureCancelledError):
        await waits
    assert "cannot be read" in caplog.text
    while client.scheduler_comm is stream or client.status != "running":
        await asyncio.sleep(0.01)
    assert await client.compute(pairwise(leaves("leaf", 4))) == 10
    assert scheduler._active_graph_updates == 0


@gen_cluster(nthreads=ONE, **CLUSTER)
async def test_a_graph_that_cannot_be_ordered_is_left_to_dask(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    seen = sent(scheduler)
    dsk: dict[Any, Any] = {"x": (inc, "y"), "y": (inc, "x")}
    (future,) = client.get(dsk, ["x"], sync=False)
    with pytest.raises(RuntimeError, match="Cycle detected"):
        await future
    assert seen == []


@gen_cluster(nthreads=ONE, **CLUSTER)
async def test_a_recipe_is_sent_as_it_is(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    da = pytest.importorskip("dask.array")
    seen = sent(scheduler)
    assert await client.compute((da.ones((8, 8), chunks=4) + 1).sum()) == 128
    assert seen == []


class Counted:
    """Class of an actor."""


@gen_cluster(nthreads=ONE, **CLUSTER)
async def test_actors_may_be_named_by_collections(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    """A collection has no truth value, so no code may ask for it."""
    made = dask.delayed(Counted)()
    assert await client.compute(dask.delayed(type)(made), actors=made) is Actor
    made = dask.delayed(Counted)()
    assert await client.compute(dask.delayed(type)(made), actors=False) is Counted


@gen_cluster(nthreads=ONE, **CLUSTER)
async def test_a_scheduler_that_does_not_understand_gets_dask_s_message(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    seen = sent(scheduler)
    messages: list[dict[str, Any]] = []
    original = submit._Sending.__call__

    def forgets(self: Any, message: dict[str, Any]) -> None:
        messages.append(message)
        # As after the client has found another scheduler.
        stream: Any = client.scheduler_comm
        stream.comm.remote_info.pop("backhaul")
        original(self, message)

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(submit._Sending, "__call__", forgets)
        future = client.compute(pairwise(leaves("leaf", 4)))
        assert await future == 10
    (message,) = messages
    assert message["op"] == GRAPH
    found: Any = scheduler.tasks[future.key]
    assert found.priority[2] == 6
    assert await client.compute(pairwise(leaves("more", 4))) == 10
    assert seen == []


@gen_cluster(nthreads=[("127.0.0.1", 1)] * 2, **CLUSTER)
async def test_a_task_whose_worker_is_gone_runs_again(
    client: Client, scheduler: Scheduler, *workers: Worker
) -> None:
    futures = client.compute(leaves("leaf", 6))
    assert await client.gather(futures) == list(range(1, 7))
    await workers[0].close()
    assert await client.gather(client.map(inc, futures)) == list(range(2, 8))
    assert {type(ts.run_spec) for ts in scheduler.tasks.values()} == {PickledTask}


@resources(A=1)
def asking(x: int) -> int:
    return x + 1


@gen_cluster(nthreads=ONE, **CLUSTER)
async def test_the_request_of_a_function_is_heeded(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    seen = sent(scheduler)
    future = client.compute(dask.delayed(asking)(1, dask_key_name="asking"))
    await wait(future)
    assert scheduler.tasks["asking"].resource_restrictions == {"A": 1}
    assert seen == []


@gen_cluster(
    nthreads=ONE, config={"distributed.admin.large-graph-warning-threshold": "1 kB"}, **CLUSTER
)
async def test_a_large_graph_causes_dasks_warning(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    seen = sent(scheduler)
    with pytest.warns(
        UserWarning, match=r"(?s)Sending large graph of size .* may cause some slowdown"
    ):
        await client.gather(client.compute(leaves("leaf", 100)))
    assert seen == [100]


@gen_cluster(client=True, nthreads=ONE, config={"distributed.comm.default-scheme": "tcp"})
async def test_over_tcp_nothing_is_different(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    seen = sent(scheduler) if GRAPH in scheduler.stream_handlers else []
    assert await client.compute(pairwise(leaves("leaf", 4))) == 10
    assert seen == []


@gen_cluster(nthreads=ONE, **CLUSTER)
async def test_a_future_in_a_graph_is_one_where_it_is_used(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    kept: Any = distributed.Future(client.submit(inc, 1, key="kept").key, client)
    dsk = {"x-1": Task("x-1", type, [kept])}
    (future,) = client.get(dsk, ["x-1"], sync=False)
    await wait(future)
    assert await kept == 2
