"""Handlers of streams, coroutines and the message that a task has finished: as Dask has them."""

from __future__ import annotations

import enum
import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import tornado.gen
from dask._task_spec import DataNode, Task
from distributed import Client, Scheduler, Worker
from distributed.protocol import pickle
from distributed.utils_test import gen_cluster, gen_test
from distributed.worker_state_machine import (
    ComputeTaskEvent,
    FreeKeysEvent,
    StateMachineEvent,
    TaskFinishedMsg,
    TaskState,
    WorkerState,
)

from backhaul.dask.compat import activation
from backhaul.dask.compat.installed import INSTALLED
from backhaul.dask.worker import eligibility, event_stream, finished_message

if TYPE_CHECKING:
    from tests.dask.conftest import CommPair

HOST = "backhaul://127.0.0.1"


@pytest.fixture(autouse=True)
def installed() -> None:
    activation.install()


def dasks(name: str) -> Any:
    """Get a function of Dask's that is patched."""
    (found,) = (
        replacement
        for patch, replaced in INSTALLED.items()
        for function, replacement in zip(patch.functions, replaced, strict=True)
        if str(function) == name
    )
    return found.original


# Messages


class MadeHere:
    pass


class Name(enum.Enum):
    ONE = 1


@pytest.mark.parametrize("kind", [int, str, float, dict, bytes, bool, type(print), MadeHere, None])
def test_a_finished_task_is_reported_as_dask_does(kind: Any) -> None:
    state = WorkerState(nthreads=1, validate=False)
    task = TaskState("x")
    task.type, task.nbytes, task.run_id, task.metadata = kind, 5, 7, {"a": 1}
    task.startstops.append({"action": "compute", "start": 1.0, "stop": 2.0})
    state.threads["x"] = 3
    arguments: Any = {"run_id": 7, "stimulus_id": "s"}
    expected = dasks("WorkerState._get_task_finished_msg")(state, task, **arguments)
    # Remembered values are there the second time.
    for _ in range(2):
        message = state._get_task_finished_msg(task, **arguments)
        assert type(message) is TaskFinishedMsg
        assert message == expected
        assert message.to_dict() == expected.to_dict()


def test_only_classes_that_cannot_change_are_remembered() -> None:
    state = WorkerState(nthreads=1, validate=False)
    task = TaskState("x")
    task.nbytes, task.run_id = 5, 7
    for kind in (MadeHere, Name, frozenset):
        task.type = kind
        message = state._get_task_finished_msg(task, run_id=7, stimulus_id="s")
        assert pickle.loads(message.type) is kind
    assert {MadeHere, Name, frozenset} & finished_message._described.keys() == {frozenset}


# Coroutines


async def coroutine() -> None:
    pass


def plain() -> None:
    pass


def marked() -> None:
    pass


marked.__tornado_coroutine__ = True  # type: ignore[attr-defined]


class Asynchronous:
    async def __call__(self) -> None:
        pass


@pytest.mark.parametrize(
    "function",
    [
        coroutine,
        plain,
        marked,
        tornado.gen.coroutine(plain),
        functools.partial(coroutine),
        functools.partial(plain),
        len,
        int,
        Asynchronous(),
        "".join,
    ],
    ids=repr,
)
def test_coroutines_are_told_apart_as_dask_does(function: Callable[..., Any]) -> None:
    expected = bool(Task("x", function).is_coro)
    for _ in range(2):
        assert eligibility.is_coroutine(Task("x", function)) == expected
    assert not eligibility.is_coroutine(DataNode("x", 1))


# Streams


class Stimulated:
    """A worker that records its stimuli, and other calls."""

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard
        # No thread of its reads ahead.
        self.executors: dict[str, Any] = {}
        self.handlers = {
            "free-keys": Worker._handle_remote_stimulus(self, FreeKeysEvent),  # type: ignore[arg-type]
            "compute-task": Worker._handle_remote_stimulus(self, ComputeTaskEvent),  # type: ignore[arg-type]
            "other": lambda number: heard.append(number),
            "await": self.wait,
        }

    def handle_stimulus(self, *events: StateMachineEvent) -> None:
        self.heard.append([event.stimulus_id for event in events])

    async def wait(self, number: int) -> None:
        self.heard.append(number)


def free(stimulus_id: str) -> dict[str, Any]:
    return {"op": "free-keys", "keys": ["x"], "stimulus_id": stimulus_id}


@pytest.fixture
def heard() -> list[Any]:
    return []


@pytest.fixture
def worker(heard: list[Any]) -> Stimulated:
    return Stimulated(heard)


async def handle(comm_pair: CommPair, worker: Stimulated, messages: list[Any]) -> None:
    server = type("Server", (), {"stream_handlers": worker.handlers})
    async with comm_pair() as (a, b):
        await a.write(messages)
        await a.close()
        await event_stream.handle_stream(server, b, None)


@gen_test()
async def test_events_of_one_batch_come_together(
    comm_pair: CommPair, worker: Stimulated, heard: list[Any]
) -> None:
    await handle(comm_pair, worker, [free("a"), free("b"), free("c")])
    assert heard == [["a", "b", "c"]]


@gen_test()
async def test_other_messages_keep_their_place_among_events(
    comm_pair: CommPair, worker: Stimulated, heard: list[Any]
) -> None:
    messages = [
        free("a"),
        {"op": "other", "number": 1},
        {"op": "other", "number": 2},
        free("b"),
        free("c"),
        {"op": "await", "number": 3},
        free("d"),
        {"op": "close-stream"},
        free("e"),
    ]
    await handle(comm_pair, worker, messages)
    assert heard == [["a"], 1, 2, ["b", "c"], 3, ["d"]]


@gen_test()
async def test_events_before_a_message_that_cannot_be_handled_are_handled(
    comm_pair: CommPair, worker: Stimulated, heard: list[Any]
) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'odd'"):
        await handle(comm_pair, worker, [free("a"), {**free("b"), "odd": 1}, free("c")])
    with pytest.raises(KeyError, match="unknown"):
        await handle(comm_pair, worker, [free("d"), {"op": "unknown"}, free("e")])
    assert heard == [["a"], ["d"]]


@gen_test()
async def test_a_handler_of_somebody_elses_is_called_for_each_message(
    comm_pair: CommPair, worker: Stimulated, heard: list[Any]
) -> None:
    theirs = worker.handlers["free-keys"]
    worker.handlers["free-keys"] = lambda **message: theirs(**message)
    await handle(comm_pair, worker, [free("a"), free("b")])
    assert heard == [["a"], ["b"]]


@gen_cluster(client=True, scheduler=HOST, nthreads=[(HOST, 1)])
async def test_what_is_released_in_the_batch_that_sent_it_is_not_run(
    client: Client, scheduler: Scheduler, a: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []
    for number in range(50):
        futures = [client.submit(ran.append, n, pure=False) for n in range(5)]
        await client.cancel(futures)
        del futures
        assert await client.submit(int, number, pure=False) == number
    assert a.state.validate
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
