"""Tasks that are pickled whole: which are, and what becomes of those that cannot be loaded."""

from __future__ import annotations

import operator
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from dask._task_spec import Alias, Task
from distributed import Client, Scheduler, Worker
from distributed.protocol import dask_deserialize, dask_serialize
from distributed.utils_test import gen_cluster, inc

import dask
from backhaul.dask.serialize.codec import codec
from backhaul.dask.serialize.task_fallback import PICKLE_BYTES_MAX, pickle_whole

CLUSTER: dict[str, Any] = {
    "client": True,
    "scheduler_kwargs": {"protocol": "backhaul"},
    "worker_kwargs": {"protocol": "backhaul"},
}


class Adder:
    """An object with a method."""

    def __init__(self, number: int, more: Any = None) -> None:
        self.number = number
        self.more = more

    def add(self, other: int) -> int:
        return self.number + other


def refuse() -> None:
    raise ValueError("cannot be loaded")


class Unloaded:
    """An object that no process can load."""

    def __init__(self, refuses: Any = refuse) -> None:
        self.refuses = refuses

    def __reduce__(self) -> Any:
        return self.refuses, ()


class Ending(BaseException):
    """An error that ends a process, as that of a panic of a Rust extension is none of Python's."""


def end() -> None:
    raise Ending("at once")


class Locked(Exception):
    """An error that cannot be pickled, nor say what it is."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __str__(self) -> str:
        raise ValueError("no words")


def lock() -> None:
    raise Locked


def local(number: int) -> Any:
    def add(adder: Adder) -> int:
        return adder.add(number)

    return add


@pytest.mark.parametrize(
    ("task", "result"),
    [
        (Task("k", Adder(1).add, 2), 3),
        (Task("k", local(4), Adder(3)), 7),
        (Task(("k", 1), len, {1, 2}), 2),
        (Task("k", np.sum, np.arange(4)), 6),
        (Task("k", np.sum, np.asfortranarray(np.ones((2, 3)))[:, ::2]), 4.0),
        (Task("k", abs, np.float32(-2)), 2.0),
    ],
    ids=["method", "closure", "set", "array", "strides", "scalar"],
)
def test_tasks_that_the_codec_leaves_are_pickled(task: Task, result: Any) -> None:
    assert codec.encode_task(task) is None
    pickled = pickle_whole(task)
    assert pickled is not None
    found = pickle.loads(pickled)
    assert found.key == task.key
    assert found() == result


def test_arrays_are_writable() -> None:
    pickled = pickle_whole(Task("k", np.asarray, np.zeros(3)))
    assert pickled is not None
    array = pickle.loads(pickled)()
    array[0] = 1.0
    assert list(array) == [1.0, 0.0, 0.0]


def test_dependencies_of_a_task_are_kept() -> None:
    task = Task("k", Adder(1).add, Alias("other"))
    pickled = pickle_whole(task)
    assert pickled is not None
    found = pickle.loads(pickled)
    assert found.dependencies == frozenset({"other"})
    assert found({"other": 5}) == 6


class Counted:
    """An object that takes so many parts to pickle, and counts them."""

    counted = 0

    def __reduce__(self) -> Any:
        Counted.counted += 1
        return bytes, (bytes([Counted.counted % 256]) * 1000,)


def test_nothing_is_pickled_beyond_the_limit() -> None:
    assert pickle_whole(Task("k", np.sum, np.zeros(PICKLE_BYTES_MAX // 8))) is None
    assert pickle_whole(Task("k", len, bytes(PICKLE_BYTES_MAX))) is None
    parts = [Counted() for _ in range(1000)]
    assert pickle_whole(Task("k", len, parts)) is None
    # It ends with the frame that is too long.
    assert PICKLE_BYTES_MAX // 1000 <= Counted.counted < 200
    parts = [Counted() for _ in range(50)]
    assert pickle_whole(Task("k", len, parts)) is not None


def test_an_object_that_cannot_be_pickled_is_left_to_dask() -> None:
    assert pickle_whole(Task("k", str, Adder(1, threading.Lock()))) is None


@gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
async def test_objects_with_futures_go_dask_s_way(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    future = client.submit(inc, 1)
    task = Task("k", str, Adder(1, future))
    assert pickle_whole(task) is None
    assert await client.submit(type, Adder(1, future)) is Adder


@pytest.mark.parametrize("refuses", [refuse, end, lock])
def test_a_task_that_cannot_be_loaded_stands_for_itself_wherever_it_goes(refuses: Any) -> None:
    pickled = pickle_whole(Task(("k", 2), max, Unloaded(refuses), Alias("other")))
    assert pickled is not None
    found = pickle.loads(pickled)
    # A scheduler that has looked at it sends it on, over tcp:// too.
    for task in (found, pickle.loads(pickle.dumps(found))):
        assert task.key == ("k", 2)
        assert task.dependencies == frozenset({"other"})
        with pytest.raises(RuntimeError, match="Error during deserialization") as raised:
            task({"other": 1})
        assert raised.value.__cause__ is not None


class Registered:
    """An object that is Dask's to serialize: pickle cannot, cloudpickle would."""

    def __init__(self, by: str) -> None:
        self.by = by
        self.unnamed = lambda: None


@dask_serialize.register(Registered)  # type: ignore[untyped-decorator]
def _serialize_registered(_: Registered) -> Any:
    return {}, []


@dask_deserialize.register(Registered)  # type: ignore[untyped-decorator]
def _deserialize_registered(_header: Any, _frames: Any) -> Registered:
    return Registered("dask")


def test_objects_with_dasks_serializers_are_left_to_dask() -> None:
    pickled = pickle_whole(Task("k", operator.attrgetter("by"), Registered("pickle")))
    assert pickled is not None
    assert pickle.loads(pickled)() == "dask"


@pytest.mark.parametrize("refuses", [refuse, end, lock])
@pytest.mark.parametrize("by", ["submit", "compute"])
def test_a_task_that_no_worker_can_load_fails_alone(by: str, refuses: Any) -> None:
    @gen_cluster(nthreads=[("127.0.0.1", 1)], **CLUSTER)
    async def run(client: Client, scheduler: Scheduler, worker: Worker) -> None:
        held = client.submit(inc, 1)
        assert await held == 2
        if by == "submit":
            future = client.submit(type, Unloaded(refuses), pure=False)
        else:
            future = client.compute(dask.delayed(type)(Unloaded(refuses)))
        with pytest.raises(RuntimeError, match="Error during deserialization of the task graph"):
            await future
        # The worker goes on, with all that it has.
        assert await client.submit(inc, held) == 3
        assert list(scheduler.workers) == [worker.address]
        assert worker.status.name == "running"

    run()
