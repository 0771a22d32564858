"""Maps that go as one message: same state, same errors, and who gets them."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Callable
from typing import Any

import distributed
import numpy as np
import pytest
from dask._task_spec import Task
from distributed import Actor, Client, Scheduler, Worker, get_client, span, wait
from distributed.client import FutureCancelledError
from distributed.spans import Span
from distributed.utils_test import gen_cluster, inc

import dask
from backhaul._native import TaskCalls
from backhaul.dask import resources
from backhaul.dask.client import futures as futures_module
from backhaul.dask.client import map as map_module
from backhaul.dask.client import submit
from backhaul.dask.compat import activation
from backhaul.dask.compat.names import parse_input
from backhaul.dask.compat.operations import MAP
from backhaul.dask.serialize.codec import codec
from backhaul.dask.serialize.pickled_task import PickledTask
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


def mapped(scheduler: Scheduler) -> list[list[str]]:
    """Note the keys of each compact message from now on."""
    seen: list[list[str]] = []
    original = scheduler.stream_handlers[MAP]

    async def noted(**message: Any) -> None:
        seen.append(TaskCalls(message["calls"]).keys())
        await original(**message)

    scheduler.stream_handlers[MAP] = noted
    return seen


# Calls as bytes


def written(
    func: Callable[..., Any], calls: list[Any], **named: Any
) -> tuple[list[str], bytes | None]:
    """Write calls, and name them."""
    keys = [f"call-{number}" for number in range(len(calls))]
    kept: dict[str, Any] = {name: parse_input(value) for name, value in named.items()}

    def parse(args: Any) -> Any:
        found: Any = parse_input(args)
        task = Task("", func, *found, **kept)
        return task.args, task.dependencies

    return keys, codec.encode_calls(Task("", func, **kept), keys, calls, parse)


@pytest.mark.parametrize(
    ("calls", "named"),
    [
        ([(1,), (2**63,), (-5,), (1.5,)], {}),
        ([("text", None), (b"bytes", True)], {}),
        ([(1,), (2,)], {"base": 10, "more": [1, {"x": (2, 3)}]}),
        ([([1, 2], {"x": 1}), ((), frozenset({1}))], {}),
        ([(dask._task_spec.TaskRef("other"),), (7,)], {}),
        ([([dask._task_spec.TaskRef(("other", 1))], 1)], {}),
        ([(1,), (2,)], {"ref": dask._task_spec.TaskRef("named")}),
        ([(dask._task_spec.TaskRef("other"),)], {"ref": dask._task_spec.TaskRef("named")}),
        ([(operator.add,), (inc,)], {}),
    ],
)
def test_each_call_is_the_task_that_dask_makes(calls: list[Any], named: dict[str, Any]) -> None:
    keys, data = written(operator.add, calls, **named)
    assert data is not None
    kept: dict[str, Any] = {name: parse_input(value) for name, value in named.items()}
    found = TaskCalls(data)
    assert found.keys() == keys
    assert len(found) == len(keys)
    for key, args, (found_key, pickled, needs) in zip(keys, calls, found.tasks(), strict=True):
        parsed: Any = parse_input(args)
        task = Task(key, operator.add, *parsed, **kept)
        assert found_key == key
        # Byte for byte what a task by itself is written as.
        assert pickled == codec.encode_task(task)
        assert frozenset(() if needs is None else codec.unpack(needs)) == task.dependencies


def test_a_call_that_is_not_simple_is_not_written() -> None:
    shared = [1, 2]
    for calls, named in (
        ([(1,), (np.ones(2),)], {}),
        ([(1,), (object(),)], {}),
        ([(2**64,)], {}),
        ([("x" * (65 << 10),)], {}),
        # One object that both refer to
        ([(shared,)], {"named": shared}),
    ):
        assert written(operator.add, calls, **named)[1] is None
    assert codec.encode_calls(Task("", inc), [("x", 1)], [(1,)], print) is None


def test_calls_that_lack_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 keys for fewer calls"):
        codec.encode_calls(Task("", inc), ["a", "b"], [(1,)], print)


def test_bytes_that_are_no_calls_are_refused() -> None:
    _, data = written(inc, [(1,), (2,)])
    assert data is not None
    for end in range(len(data)):
        with pytest.raises(ValueError, match="malformed calls"):
            TaskCalls(data[:end])
    with pytest.raises(ValueError, match="malformed calls"):
        TaskCalls(data + b"\0")
    # Two of one name would be one task with two states.
    with pytest.raises(ValueError, match="malformed calls"):
        TaskCalls(data.replace(b"call-1", b"call-0"))


# The same state as upstream's


async def maps(client: Client, scheduler: Scheduler, *workers: Worker) -> dict[str, Any]:
    """Map in every way that there is, and tell what the scheduler made of it."""
    plugin = Updates()
    scheduler.add_plugin(plugin)
    ours = mapped(scheduler) if MAP in scheduler.stream_handlers else []
    addresses = {worker.address: number for number, worker in enumerate(workers)}
    first = workers[0].address
    futures: dict[str, list[Any]] = {}
    # With something under way all the time, which computation and which span a task becomes part of
    # does not hang on how fast this machine is.
    going_on = client.submit(go_on, key="going on", workers=[workers[1].address])
    while going_on.key not in scheduler.tasks:
        await asyncio.sleep(0.001)
    with dask.config.set({"distributed.diagnostics.computations.nframes": 2}):
        futures["code"] = client.map(inc, range(3))
        futures["code of dask's way"] = client.map(np.sum, [np.ones(4)], key=["code"])
    futures["again"] = client.map(inc, range(2, 5))
    futures["shortest"] = client.map(operator.add, range(9), (10, 20))
    futures["named"] = client.map(inc, [1, 2], key="named")
    futures["names"] = client.map(inc, [1, 2], key=["named-a", "other-b"])
    futures["tuples"] = client.map(inc, [1, 2], key=[("named", 1), ("named", 2)])
    futures["twice"] = client.map(inc, [70, 70, 71])
    futures["futures"] = client.map(operator.add, futures["code"], futures["named"], key=["s", "t"])
    futures["nested"] = client.map(sum, [[futures["code"][0], 5], [1, 2]], key=["n", "o"])
    futures["keyword"] = client.map(
        round, [2.345, 3.456], ndigits=futures["code"][0], key=["k", "l"]
    )
    futures["keywords"] = client.map(dict, [((1, 2),), ()], a=[1, 2], b={"x": None})
    futures["worker"] = client.map(inc, [30, 31], workers=first)
    futures["loose"] = client.map(inc, [40, 41], workers=["nobody"], allow_other_workers=True)
    futures["host"] = client.map(inc, [50, 51], workers={"127.0.0.1"})
    futures["resources"] = client.map(inc, [60, 61], resources={"A": 1}, retries=3)
    futures["priority"] = client.map(inc, [72, 73], priority=5, fifo_timeout="0 ms")
    futures["lambda"] = client.map(lambda x: x + 1, [8, 9], key="lambda")
    with dask.annotate(priority=lambda key: 3, mine="yes"), span("tag"):
        futures["annotated"] = client.map(inc, [9, 10], key="annotated")
    futures["array"] = client.map(np.sum, [np.ones(3)], key="array")
    futures["batches"] = client.map(inc, list(range(80, 90)), batch_size=4)
    # Held to one worker: upstream does not keep account of actors that are stolen.
    futures["actor"] = client.map(Counter, [0, 1], actor=True, key=["actor", "b"], workers=[first])
    futures["broken"] = client.map(operator.truediv, [1, 2], [0, 1], key="broken")
    futures["blamed"] = client.map(inc, futures["broken"], key=["blamed-x", "y"])
    await wait([each for some in futures.values() for each in some])
    futures["late"] = client.map(inc, futures["broken"], key=["late-x", "z"])
    await wait(futures["late"])
    found: dict[str, Any] = {
        f"{name} {number}": state_of(scheduler, future.key, addresses)
        for name, some in futures.items()
        for number, future in enumerate(some)
    }
    found |= said_of_all(scheduler, client, plugin, addresses)
    counter = await futures["actor"][1]
    assert isinstance(counter, Actor)
    assert await counter.increment() == 2
    assert await client.gather(futures["futures"]) == [3, 5]
    assert scheduler._active_graph_updates == 0
    found["ours"] = ours
    may_end.set()
    await going_on
    return found


#: What `go_on` waits for
may_end = threading.Event()


def go_on() -> None:
    assert may_end.wait(300)


class Counter:
    """An actor."""

    def __init__(self, count: int) -> None:
        self.count = count

    def increment(self) -> int:
        self.count += 1
        return self.count


def test_the_scheduler_knows_the_same_of_calls_as_upstream_s_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 2026.7.1 takes metadata for told already that lies where others lay that are gone.
    monkeypatch.setattr(Span, "_metadata_seen", Forgetful(), raising=False)
    # The second one has a thread that is kept, and one for the others.
    two: dict[str, Any] = {"nthreads": [("127.0.0.1", 1), ("127.0.0.1", 2)], **CLUSTER}
    may_end.clear()
    ours = gen_cluster(**two)(maps)()
    activation.uninstall()
    may_end.clear()
    upstream = gen_cluster(config={SWITCH: False}, **two)(maps)()
    seen = ours.pop("ours")
    assert upstream.pop("ours") == []
    # All but tuples, a call that comes twice, and arrays; batches are three.
    assert len(seen) == 23
    assert [len(keys) for keys in seen[-7:-4]] == [4, 4, 2]
    for name in upstream:
        assert ours[name] == upstream[name], name


@gen_cluster(nthreads=ONE, **CLUSTER)
async def test_names_are_dask_s(client: Client, scheduler: Scheduler, worker: Worker) -> None:
    seen = mapped(scheduler)
    impure = client.map(inc, range(3), pure=False)
    assert [str(future.key).rpartition("-")[2] for future in impure] == ["0", "1", "2"]
    pure = client.map(inc, [5], key="mine")
    single = client.submit(inc, 5)
    assert str(pure[0].key).startswith("mine-")
    assert single.key != client.map(inc, [5])[0].key
    assert await client.gather([*impure, *pure, single]) == [1, 2, 3, 6, 6]
    assert [len(keys) for keys in seen] == [3, 1, 1]
    assert client.map(inc, []) == []


# Errors, and who does not understand


@gen_cluster(nthreads=ONE, **CLUSTER)
async def test_calls_whose_input_is_lost_are_cancelled(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    lost: Any = distributed.Future("nobody-made-this", client)
    futures = client.map(operator.add, [lost, 1], [1, 2], key="orphan")
    for future in futures:
        with pytest.raises(FutureCancelledError, match="lost dependencies"):
            await future
    assert scheduler.tasks == {}


@pytest.mark.parametrize("odd", [5, b"", b"\xc4\x00\x90\x01"])
@gen_cluster(nthreads=ONE, **CLUSTER)
async def test_calls_that_cannot_be_read_leave_no_future_waiting(
    client: Client,
    scheduler: Scheduler,
    worker: Worker,
    odd: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = client.scheduler_comm
    waits = client.submit(inc, 1, workers=["nowhere"])
    client._send_to_scheduler({"op": MAP, "calls": odd})
    with pytest.raises(FutureCancelledError):
        await waits
    assert "cannot be read" in caplog.text
    while client.scheduler_comm is stream or client.status != "running":
        await asyncio.sleep(0.01)
    assert await client.gather(client.map(inc, range(3))) == [1, 2, 3]
    assert scheduler._active_graph_updates == 0


@gen_cluster(nthreads=ONE, **CLUSTER)
async def test_annotations_that_dask_refuses_end_at_the_futures(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    futures = client.map(inc, range(2), key="odd", retries=5, priority="not a number")  # type: ignore[arg-type]
    for future in futures:
        with pytest.raises(Exception, match=r"bad operand type|could not convert"):
            await future
    assert scheduler._active_graph_updates == 0


@gen_cluster(nthreads=[("127.0.0.1", 2)], **CLUSTER)
async def test_a_task_that_maps_is_named(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    def outer() -> int:
        client = get_client()
        return sum(client.gather(client.map(inc, range(3), key="inner")))

    plugin = Updates()
    scheduler.add_plugin(plugin)
    assert await client.submit(outer, key="outer") == 6
    outer_generation, inner_generation = plugin.generations
    # Better than that of the task itself
    assert inner_generation < outer_generation


@gen_cluster(nthreads=ONE, **CLUSTER)
async def test_a_scheduler_that_does_not_understand_gets_dask_s_message(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    seen = mapped(scheduler)
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
        futures = client.map(inc, range(3), retries=2, fifo_timeout="1 s")
        assert await client.gather(futures) == [1, 2, 3]
    (message,) = messages
    assert message["op"] == MAP
    found: list[Any] = [scheduler.tasks[future.key] for future in futures]
    assert [ts.annotations for ts in found] == [{"retries": 2}] * 3
    assert [ts.priority[2] for ts in found] == [0, 1, 2]
    assert await client.gather(client.map(inc, range(3, 5))) == [4, 5]
    assert seen == []


@gen_cluster(client=True, nthreads=ONE, config={"distributed.comm.default-scheme": "tcp"})
async def test_over_tcp_nothing_is_different(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    seen = mapped(scheduler) if MAP in scheduler.stream_handlers else []
    assert await client.gather(client.map(inc, range(3))) == [1, 2, 3]
    assert seen == []


@gen_cluster(nthreads=ONE, **CLUSTER)
async def test_bad_arguments_are_refused_as_in_dask(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    odd: Any = 5
    with pytest.raises(TypeError, match="First input to map must be a callable function"):
        client.map(odd, [1])
    with pytest.raises(TypeError, match="no longer supports mapping over Iterators"):
        client.map(inc, iter([1]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Only use allow_other_workers= if using workers="):
        client.map(inc, [1], allow_other_workers=True)
    with pytest.raises(TypeError, match="allow_other_workers= must be True, False, or None"):
        client.map(inc, [1], workers=["a"], allow_other_workers=odd)
    with pytest.raises(TypeError, match="Workers must be a list or set of workers or None"):
        client.map(inc, [1], workers=("a",))
    assert await client.gather(client.map(inc, [1])) == [2]


@gen_cluster(
    nthreads=ONE, config={"distributed.admin.large-graph-warning-threshold": "1 kB"}, **CLUSTER
)
async def test_a_large_graph_causes_dasks_warning(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    seen = mapped(scheduler)
    with pytest.warns(
        UserWarning, match=r"(?s)Sending large graph of size .* may cause some slowdown"
    ):
        await client.gather(client.map(inc, range(100)))
    assert len(seen) == 1


@gen_cluster(nthreads=[("127.0.0.1", 1)] * 2, **CLUSTER)
async def test_a_call_whose_worker_is_gone_runs_again(
    client: Client, scheduler: Scheduler, *workers: Worker
) -> None:
    futures = client.map(inc, range(6), key="call")
    assert await client.gather(futures) == list(range(1, 7))
    await workers[0].close()
    assert await client.gather(client.map(inc, futures)) == list(range(2, 8))
    assert {type(ts.run_spec) for ts in scheduler.tasks.values()} == {PickledTask}


@gen_cluster(nthreads=ONE, **CLUSTER)
async def test_a_map_that_is_interrupted_leaves_nothing(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    make = futures_module.make_futures

    def interrupted(client: Client, states: list[Any], futures: list[Any]) -> None:
        make(client, states[:2], futures)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(map_module, "make_futures", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.map(inc, range(5), key="gone")
    while scheduler.tasks or client.futures:
        await asyncio.sleep(0.01)
    assert not client.refcount
    assert await client.gather(client.map(inc, range(5), key="gone")) == [1, 2, 3, 4, 5]


@resources(A=1)
def asking(x: int) -> int:
    return x + 1


def call(func: Callable[[int], int], x: int) -> int:
    return func(x)


@gen_cluster(nthreads=ONE, **CLUSTER)
async def test_the_request_of_a_function_is_heeded(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    seen = mapped(scheduler)
    asked = client.map(asking, [1], key="asking")
    nested = client.map(call, [inc, asking], [1, 2], key=["nested-a", "nested-b"])
    plain = client.map(inc, [1, 2], key=["plain-a", "plain-b"])
    await wait([*asked, *nested, *plain])
    assert scheduler.tasks["nested-b"].resource_restrictions == {"A": 1}
    assert seen == [["plain-a", "plain-b"]]
