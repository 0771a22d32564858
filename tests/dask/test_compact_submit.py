"""Tasks that are submitted without an expression: same state, same errors, and who gets them."""

from __future__ import annotations

import asyncio
import copy
import operator
import pickle
import threading
import types
from typing import Any

import distributed
import numpy as np
import pytest
from dask._task_spec import Task
from distributed import (
    Actor,
    Client,
    Scheduler,
    Worker,
    get_client,
    span,
    wait,
)
from distributed.client import FutureCancelledError
from distributed.protocol import deserialize
from distributed.spans import Span
from distributed.utils import offload
from distributed.utils_test import gen_cluster, gen_test, inc

import dask
from backhaul.dask import resources
from backhaul.dask.client import submit
from backhaul.dask.compat import activation
from backhaul.dask.compat.operations import SUBMIT
from backhaul.dask.scheduler.fairness import GRAPHS_IN_TURN_MAX
from backhaul.dask.serialize.codec import codec
from backhaul.dask.serialize.pickled_task import PickledTask, Unloadable, keep
from tests.dask.submitted_state import Forgetful, Updates, said_of_all, state_of

SWITCH = "distributed.comm.backhaul.hot-path.submit"
CLUSTER: dict[str, Any] = {
    "client": True,
    "scheduler_kwargs": {"protocol": "backhaul"},
    "worker_kwargs": {"protocol": "backhaul", "resources": {"A": 2}},
}


@pytest.fixture(autouse=True)
def fresh(plain_dask: None) -> None:
    """Begin each test with Dask as it is, so that switches count."""


def submitted(scheduler: Scheduler) -> list[Any]:
    """Note the keys that come in compact messages from now on."""
    keys: list[Any] = []
    original = scheduler.stream_handlers[SUBMIT]

    async def noted(**message: Any) -> None:
        keys.append(message["key"])
        await original(**message)

    scheduler.stream_handlers[SUBMIT] = noted
    return keys


# A task that is a pickle


def kept_spec() -> tuple[Task, PickledTask]:
    task = Task("key", operator.add, 1, dask._task_spec.Alias("other"))
    pickled = codec.encode_task(task)
    assert pickled is not None
    return task, keep("key", pickled, ["other"])


def test_reads_of_the_scheduler_leave_the_task_a_pickle() -> None:
    _, kept = kept_spec()
    assert (kept.key, set(kept.dependencies), kept.data_producer) == ("key", {"other"}, False)
    assert bool(kept)
    assert isinstance(kept, Task)
    assert dask.core.istask(kept)
    assert not hasattr(kept, "no_such_attribute")
    assert type(kept) is PickledTask


@pytest.mark.parametrize(
    "look",
    [
        lambda spec: spec.func,
        lambda spec: spec.args,
        lambda spec: spec.is_coro,
        lambda spec: spec({"other": 2}),
        repr,
        hash,
        lambda spec: dask.base.tokenize(spec),
        lambda spec: spec.copy(),
        copy.copy,
        lambda spec: spec.substitute({}, key="renamed"),
        lambda spec: spec.substitute({"other": "another"}),
        lambda spec: pickle.loads(pickle.dumps(spec)),
        lambda spec: spec == kept_spec()[0],
        lambda spec: kept_spec()[0] == spec,
        lambda spec: Task.fuse(spec, Task("last", inc, dask._task_spec.Alias("key"))),
    ],
)
def test_a_look_into_it_finds_the_task(look: Any) -> None:
    task, kept = kept_spec()
    found = look(kept)
    assert found == look(task)
    assert type(found) is type(look(task))
    assert type(kept) is Task
    assert [getattr(kept, slot) for slot in ("func", "args", "kwargs", "_dependencies")] == [
        operator.add,
        task.args,
        {},
        {"other"},
    ]


def test_a_pickle_that_is_no_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match=r"the pickle of task 'key' must be bytes, got int"):
        keep("key", 5, ())  # type: ignore[arg-type]


# The same state as upstream's


async def submissions(client: Client, scheduler: Scheduler, *workers: Worker) -> dict[str, Any]:
    """Submit in every way that there is, and tell what the scheduler made of it."""
    plugin = Updates()
    scheduler.add_plugin(plugin)
    ours = submitted(scheduler) if SUBMIT in scheduler.stream_handlers else []
    addresses = {worker.address: number for number, worker in enumerate(workers)}
    first = workers[0].address
    futures: dict[str, Any] = {}
    # With something under way all the time, which computation and which span a task becomes part of
    # does not hang on how fast this machine is.
    going_on = client.submit(go_on, key="going on", workers=[workers[1].address])
    while going_on.key not in scheduler.tasks:
        await asyncio.sleep(0.001)
    with dask.config.set({"distributed.diagnostics.computations.nframes": 2}):
        futures["code"] = client.submit(inc, 0)
        futures["code of one"] = client.submit(np.sum, np.ones(4), key="code")
    futures["plain"] = client.submit(inc, 1)
    futures["again"] = client.submit(inc, 1)
    futures["named"] = client.submit(inc, 2, key="named")
    futures["tuple"] = client.submit(inc, 2, key=("named", 1))
    futures["future"] = client.submit(operator.add, futures["plain"], futures["named"], key="sum")
    futures["nested"] = client.submit(sum, [futures["plain"], 5], key="nested")
    futures["keyword"] = client.submit(round, 2.345, ndigits=futures["plain"], key="keyword")
    futures["worker"] = client.submit(inc, 3, workers=first)
    futures["loose"] = client.submit(inc, 4, workers=["nobody"], allow_other_workers=True)
    futures["host"] = client.submit(inc, 5, workers=("127.0.0.1",))
    futures["resources"] = client.submit(inc, 6, resources={"A": 1}, retries=3)
    futures["priority"] = client.submit(inc, 7, priority=5, fifo_timeout="0 ms")
    futures["lambda"] = client.submit(lambda x: x + 1, 8, key="lambda")
    with dask.annotate(priority=lambda key: 3, mine="yes"), span("tag"):
        futures["annotated"] = client.submit(inc, 9, key="annotated")
    futures["array"] = client.submit(np.sum, np.ones(3), key="array")
    futures["large"] = client.submit(np.sum, np.ones(10_000), key="large")
    # Held to one worker: upstream does not keep account of actors that are stolen.
    futures["actor"] = client.submit(Counter, actor=True, key="actor", workers=[first])
    futures["broken"] = client.submit(operator.truediv, 1, 0, key="broken")
    futures["blamed"] = client.submit(inc, futures["broken"], key="blamed")
    await wait(list(futures.values()))
    futures["late"] = client.submit(inc, futures["broken"], key="late")
    await wait(futures["late"])
    found: dict[str, Any] = {
        name: state_of(scheduler, future.key, addresses) for name, future in futures.items()
    }
    found |= said_of_all(scheduler, client, plugin, addresses)
    counter = await futures["actor"]
    assert isinstance(counter, Actor)
    assert await counter.increment() == 1
    assert scheduler._active_graph_updates == 0
    found["ours"] = ours
    may_end.set()
    await going_on
    return found


#: What `go_on` waits for
may_end = threading.Event()


def go_on() -> None:
    assert may_end.wait(300)


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_calls_that_are_close_have_the_same_generation(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    async def generation(**options: Any) -> int:
        future = client.submit(inc, 1, pure=False, **options)
        await future
        ts: Any = scheduler.tasks[future.key]
        return int(ts.priority[1])

    first = await generation()
    assert await generation(fifo_timeout="1 hour") == first
    assert await generation(fifo_timeout="0 ms") == first + 1
    assert await generation(fifo_timeout=3600.0) == first + 1


class Counter:
    """An actor."""

    def __init__(self) -> None:
        self.count = 0

    def increment(self) -> int:
        self.count += 1
        return self.count


def test_the_scheduler_knows_the_same_of_a_task_as_upstream_s_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 2026.7.1 takes metadata for told already that lies where others lay that are gone.
    monkeypatch.setattr(Span, "_metadata_seen", Forgetful(), raising=False)
    # The second one has a thread that is kept, and one for the others.
    two: dict[str, Any] = {"nthreads": [("127.0.0.1", 1), ("127.0.0.1", 2)], **CLUSTER}
    may_end.clear()
    ours = gen_cluster(**two)(submissions)()
    activation.uninstall()
    may_end.clear()
    upstream = gen_cluster(config={SWITCH: False}, **two)(submissions)()
    keys = ours.pop("ours")
    assert upstream.pop("ours") == []
    # All but what is the same task again, and the one with a large array.
    assert len(keys) == 21
    assert "large" not in keys
    for name in upstream:
        assert ours[name] == upstream[name], name


# Errors, floods, and who does not understand


def unknown(name: str) -> bytes:
    """Pickle a call of a function that no process of the cluster has."""
    pickled = codec.encode_task(Task("unknown", inc, 1))
    assert pickled is not None
    # A name of the same length.
    assert inc.__module__.encode() in pickled
    return pickled.replace(inc.__module__.encode(), name.encode())


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_a_function_that_the_workers_lack_fails_alone(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    spec = unknown("x" * len(inc.__module__))
    with pytest.MonkeyPatch.context() as patching:
        encoder = types.SimpleNamespace(encode_task=lambda task: spec)
        patching.setattr(submit, "codec", encoder)
        future = client.submit(inc, 1, key="unknown")
    with pytest.raises(RuntimeError, match="Error during deserialization of the task graph"):
        await future
    # A program may read it, too.
    looked_at: Any = scheduler.tasks["unknown"].run_spec
    assert isinstance(looked_at.func, Unloadable)
    # In the same message as others, it takes none of them along.
    assert await client.submit(inc, 1) == 2
    assert worker.status.name == "running"


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_a_task_that_cannot_be_read_ends_at_the_future(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    future: Any = distributed_future(client, "odd")
    client._send_to_scheduler({"op": SUBMIT, "key": "odd", "spec": 5})
    with pytest.raises(TypeError, match=r"the pickle of task 'odd' must be bytes, got int"):
        await future
    assert scheduler._active_graph_updates == 0
    assert await client.submit(inc, 1) == 2


def distributed_future(client: Client, key: Any) -> Any:
    return distributed.Future(key, client)


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_a_task_whose_input_is_lost_is_cancelled(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    future = client.submit(inc, distributed_future(client, "nobody-made-this"), key="orphan")
    with pytest.raises(FutureCancelledError, match="lost dependencies"):
        await future
    assert scheduler.tasks == {}


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_a_flood_is_worked_off_in_order_and_leaves_the_event_loop_its_turns(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    keys = submitted(scheduler)
    count = 4 * GRAPHS_IN_TURN_MAX
    in_turn: list[int] = []

    def turn(before: int) -> None:
        in_turn.append(len(keys) - before)
        if len(keys) < count + 1:
            asyncio.get_running_loop().call_soon(turn, len(keys))

    turn(0)
    futures = [client.submit(inc, i, pure=False) for i in range(count)]
    dropped = client.submit(inc, -1, key="dropped")
    dropped.release()
    total = client.submit(sum, futures[:3])
    assert await total == 6
    assert await client.gather(futures) == list(range(1, count + 1))
    assert keys == [*(future.key for future in futures), "dropped", total.key]
    # Between two looks lie parts of two turns.
    assert max(in_turn) <= 2 * GRAPHS_IN_TURN_MAX
    # Released after it was made, not before.
    assert "dropped" not in scheduler.tasks


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_a_task_comes_after_a_graph_that_it_needs_and_that_takes_long(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    keys = submitted(scheduler)
    gate = threading.Event()
    async with Client(scheduler.address, asynchronous=True, set_as_default=False) as other:
        # The thread that makes tasks of graphs is busy.
        blocked = asyncio.ensure_future(offload(gate.wait))
        try:
            await asyncio.sleep(0)
            many = client.map(inc, range(5), key=[("many", each) for each in range(5)])
            while not scheduler._active_graph_updates:
                await asyncio.sleep(0.001)
            future = other.submit(inc, distributed_future(other, many[-1].key), key="after")
            while "after" not in keys:
                await asyncio.sleep(0.001)
            assert scheduler.tasks == {}
        finally:
            gate.set()
        await blocked
        assert await future == 6


@gen_cluster(nthreads=[("127.0.0.1", 2)], **CLUSTER)
async def test_a_task_that_submits_another_is_named(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    def outer() -> int:
        return int(get_client().submit(inc, 1, key="inner").result()) + 1

    plugin = Updates()
    scheduler.add_plugin(plugin)
    assert await client.submit(outer, key="outer") == 3
    outer_generation, inner_generation = plugin.generations
    # Better than that of the task itself
    assert inner_generation < outer_generation


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_a_scheduler_that_does_not_understand_gets_dask_s_message(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    keys = submitted(scheduler)
    message: dict[str, Any] = {}
    original = submit._Sending.__call__

    def seen(self: Any, each: dict[str, Any]) -> None:
        message.update(each)
        # As after the client has found another scheduler.
        stream: Any = client.scheduler_comm
        stream.comm.remote_info.pop("backhaul")
        original(self, each)

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(submit._Sending, "__call__", seen)
        first = client.submit(inc, 1, retries=2, fifo_timeout="1 s")
        assert await first == 2
    assert message["op"] == SUBMIT
    assert scheduler.tasks[first.key].annotations == {"retries": 2}
    assert await client.submit(inc, 2) == 3
    assert keys == []


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)],
    config={"distributed.comm.default-scheme": "tcp"},
)
async def test_over_tcp_nothing_is_different(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    keys = submitted(scheduler) if SUBMIT in scheduler.stream_handlers else []
    assert await client.submit(inc, 1) == 2
    assert keys == []


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_bad_arguments_are_refused_as_in_dask(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    odd: Any = 5
    with pytest.raises(TypeError, match="First input to submit must be a callable function"):
        client.submit(odd)
    with pytest.raises(ValueError, match="Only use allow_other_workers= if using workers="):
        client.submit(inc, 1, allow_other_workers=True)
    with pytest.raises(TypeError, match="allow_other_workers= must be True or False"):
        client.submit(inc, 1, workers=["a"], allow_other_workers=odd)
    with pytest.raises(TypeError, match="Unexpected key type"):
        client.submit(inc, 1, key=object())
    assert await client.submit(inc, 1) == 2


class Special(Client):
    """A client that sends graphs in a way of its own."""

    def _graph_to_futures(self, *args: Any, **kwargs: Any) -> Any:
        self.graphs = getattr(self, "graphs", 0) + 1
        return super()._graph_to_futures(*args, **kwargs)  # type: ignore[no-untyped-call]


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_a_client_with_a_way_of_its_own_keeps_it(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    make: Any = Special
    async with make(scheduler.address, asynchronous=True) as special:
        assert await special.submit(inc, 1) == 2
        assert special.graphs == 1


@gen_cluster(nthreads=[("127.0.0.1", 1)] * 2, **CLUSTER)
async def test_a_task_whose_worker_is_gone_runs_again(
    client: Client, scheduler: Scheduler, *workers: Worker
) -> None:
    future = client.submit(inc, 1, key="task")
    assert await future == 2
    ts: Any = scheduler.tasks["task"]
    (holder,) = ts.who_has
    (worker,) = (worker for worker in workers if worker.address == holder.address)
    await worker.close()
    again = client.submit(inc, future)
    assert await again == 3
    assert type(scheduler.tasks["task"].run_spec) is PickledTask


@resources(A=1)
def asking(x: int) -> int:
    return x + 1


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_the_request_of_a_function_is_heeded(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    keys = submitted(scheduler)
    assert await client.submit(asking, 1, key="asking") == 2
    nested = client.submit(map, asking, [1], key="nested")
    plain_task = client.submit(inc, 1, key="plain")
    await wait([nested, plain_task])
    assert scheduler.tasks["nested"].resource_restrictions == {"A": 1}
    # No code read it.
    assert type(scheduler.tasks["plain"].run_spec) is PickledTask
    assert keys == ["plain"]


class OwnGraphs(Scheduler):
    """A scheduler with its own method for graphs."""

    heard: list[Any]

    async def update_graph(self, *args: Any, **graph: Any) -> None:
        self.heard.extend(graph["keys"])
        await super().update_graph(*args, **graph)


def replaced(scheduler: Scheduler, heard: list[Any]) -> None:
    """Put a program's own handler of graphs in the place of Dask's."""
    handler: Any = scheduler.stream_handlers["update-graph"]

    async def handle(*, client: str, expr_ser: Any, keys: Any, **graph: Any) -> None:
        expr = deserialize(expr_ser.header, expr_ser.frames)
        assert set(keys) <= set(expr.__dask_graph__())
        assert type(graph["code"]) is tuple
        assert type(graph["annotations"]) is dict
        assert "collections" in graph["span_metadata"]
        heard.extend(keys)
        await handler(client=client, expr_ser=expr_ser, keys=keys, **graph)

    scheduler.stream_handlers["update-graph"] = handle


def work(client: Client) -> list[Any]:
    """Submit tasks in each way that can be a compact message."""
    one = client.submit(inc, 1, key="one", priority=3)
    several = client.map(operator.neg, range(3), key=["a", "b", "c"])
    graph = client.get({"d": (inc, 1), "e": (inc, "d")}, ["e"], sync=False)
    return [one, client.submit(inc, one, key="two"), *several, *graph]


HEARD = ["one", "a", "b", "c", "e", "two"]
RESULTS = [2, 3, 0, -1, -2, 3]


@pytest.mark.parametrize("when", ["subclass", "before", "meanwhile"])
@gen_test()
async def test_a_programs_own_handler_of_graphs_gets_all(when: str) -> None:
    heard: list[Any] = []
    kind: Any = OwnGraphs if when == "subclass" else Scheduler
    async with (
        kind(protocol="backhaul", host="127.0.0.1", port=0, dashboard_address=":0") as scheduler,
        Worker(scheduler.address, nthreads=1),
    ):
        if when == "subclass":
            scheduler.heard = heard
        elif when == "before":
            replaced(scheduler, heard)
        async with Client(scheduler.address, asynchronous=True) as client:
            if when == "meanwhile":
                assert await client.submit(inc, 5) == 6
                replaced(scheduler, heard)
            futures = work(client)
            assert await client.gather(futures) == RESULTS
            assert sorted(heard) == sorted(HEARD)
            assert scheduler.tasks["one"].annotations == {"priority": 3}
            # Of a group that is known, too
            assert await client.submit(inc, 7, key="one-more") == 8
            assert await client.submit(inc, 8, key="one-more-8") == 9
            assert heard[-2:] == ["one-more", "one-more-8"]


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_a_task_without_a_form_for_a_programs_handler_ends_at_the_future(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    heard: list[Any] = []
    replaced(scheduler, heard)
    future: Any = distributed_future(client, "odd")
    client._send_to_scheduler({"op": SUBMIT, "key": "odd", "spec": 5})
    with pytest.raises(TypeError, match="bytes"):
        await future
    assert await client.submit(inc, 1, key="one") == 2
    assert heard == ["one"]
