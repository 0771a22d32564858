"""Values of all kinds and sizes that travel between clients and workers, and between workers."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import enum
import fractions
import io
import pathlib
import sys
import tempfile
import uuid
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from tests.dask.like_tcp.kit import Observation, Run, describe, outcome, program


def give(value: Any) -> Any:
    return value


def seen(value: Any) -> Any:
    """Describes a value as a task on another worker has it."""
    return describe(value)


def ways(run: Run, makers: list[Any]) -> Observation:
    """Observes results as a client has them, and as a peer, and values that a client scatters."""
    made = [run.submit_on(0, maker) for maker in makers]
    by_peers = [run.submit_on(1, seen, each) for each in made]
    found = []
    for maker, future, by_peer in zip(makers, made, by_peers, strict=True):
        scattered = run.client.scatter([maker()], hash=False, workers=[run.workers[0]])[0]
        direct = run.client.scatter([maker()], hash=False, direct=True, workers=[run.workers[1]])
        found.append([
            outcome(future.result),
            outcome(by_peer.result),
            outcome(run.submit_on(1, seen, scattered).result),
            outcome(lambda scattered=scattered: run.client.gather(scattered, direct=True)),
            outcome(run.submit_on(0, seen, direct[0]).result),
            outcome(run.submit_on(1, seen, maker()).result),
        ])  # fmt: skip
    return found


class Color(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: Any


@dataclass
class Record:
    name: str
    data: Any


class Slots:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Slots({self.value})"


class Subclass(dict[str, int]):
    pass


class FloatArray(np.ndarray[Any, Any]):
    """Array class of a program."""


@program()
def plain_objects(run: Run) -> Observation:
    """Objects of the standard library and of classes of a program."""
    shared: list[Any] = [1]
    values: list[Any] = [
        None, True, 2**300, -0.0, float("nan"), float("inf"), 1 - 2j, "",
        "é\ud800".encode("utf-8", "replace"),
        "text\0é鍵", (), [], {}, set(), frozenset({1}), [shared, shared], {"a": {("t", 1): [None]}},
        Color.RED, Point(1, [2]), Record("r", np.arange(3)), Slots(5), Subclass(a=1), Ellipsis,
        NotImplemented, slice(1, None, 2), range(3, 9, 2),
        datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        datetime.timedelta(days=1), decimal.Decimal("1.10"), fractions.Fraction(1, 3),
        uuid.UUID(int=5),
        pathlib.PurePosixPath("/a/b"), collections.OrderedDict(b=1, a=2),
        collections.Counter("aab"),
        collections.deque([1, 2], maxlen=2), collections.defaultdict(list, {"a": [1]}), int, len,
        ValueError("as a value"), io.StringIO, sys.maxsize, [[[[[[[]]]]]]],
        {1: 1, "1": 2, None: 3, 1.5: 4},
        type(None), b"", bytearray(b"abc"), array.array("d", [1.5, 2.5]), memoryview(b"view"),
    ]  # fmt: skip
    results = [run.submit_on(0, give, value) for value in values]
    found = [outcome(each.result) for each in results]
    found += [outcome(run.submit_on(1, seen, each).result) for each in results]
    same = run.submit_on(0, give, [shared, shared])
    back = same.result()
    return [*found, back[0] is back[1], run.submit_on(1, lambda x: x[0] is x[1], same).result()]


@program()
def sizes_of_bytes(run: Run) -> Observation:
    """Bytes from none to several MiB, around the thresholds of transports."""
    sizes = [
        0,
        1,
        100,
        1023,
        8191,
        8192,
        8193,
        65535,
        65536,
        65537,
        1 << 20,
        (1 << 20) + 1,
        5_000_000,
    ]
    found: list[Any] = ways(run, [lambda size=size: b"x" * size for size in sizes])
    found.append(ways(run, [lambda: bytearray(b"y" * 300_000), lambda: [b"z" * 70_000] * 30]))
    return found


@program()
def sizes_of_arrays(run: Run) -> Observation:
    """Arrays from no element to several MiB."""
    sizes = [0, 1, 2, 125, 1000, 1024, 8192, 8193, 65536, 131072, 600_001]
    return ways(run, [lambda size=size: np.arange(size, dtype=float) for size in sizes])


@program()
def element_types(run: Run) -> Observation:
    """Arrays of all kinds of elements, small and large."""
    kinds = [
        "?",
        "i1",
        "<u2",
        ">i4",
        "f2",
        "f4",
        ">f8",
        "c16",
        "S3",
        "<U2",
        "M8[ns]",
        "m8[s]",
        "V5",
    ]
    kinds += ["a,b"]
    found = []
    for size in (5, 40_000):
        makers: list[Any] = [
            lambda kind=kind, size=size: np.arange(size * 20, dtype="u1")[: size * 20].view("u1")
            .repeat(3)[: size * np.dtype(kind).itemsize].copy().view(kind)
            if kind not in ("?", "<U2", "a,b", "S3", "M8[ns]", "f2", "f4", ">f8", "c16")
            else np.ones(size).astype("f8" if kind == "a,b" else kind)
            for kind in kinds
        ]  # fmt: skip
        structured: Any = np.dtype([("x", "i4"), ("y", "f8", (2,)), ("z", "S4")], align=True)
        makers += [
            lambda size=size, structured=structured: np.zeros(size, dtype=structured),
            lambda size=size: np.array([None, "a", 1] * size, dtype=object),
            lambda size=size: np.ma.masked_greater(np.arange(size), 2),
            lambda size=size: np.zeros(size, "i4,f8").view(np.recarray),
            lambda size=size: np.arange(size, dtype=float).view(FloatArray),
            lambda size=size: np.matrix(np.arange(size)),
        ]
        found.append(ways(run, makers))
    return found


def layouts(side: int) -> list[Any]:
    """Returns makers of arrays in many layouts of memory."""

    def square() -> Any:
        return np.arange(side * side, dtype=float).reshape(side, side)

    def read_only() -> Any:
        value = square()
        value.flags.writeable = False
        return value

    def mapped() -> Any:
        with tempfile.TemporaryFile() as file:
            value = np.memmap(file, "f8", "w+", shape=(side, side))
        value[:] = square()
        return value

    return [
        square, read_only, mapped,
        lambda: np.asfortranarray(square()),
        lambda: square().T,
        lambda: square()[::2],
        lambda: square()[:, ::-1],
        lambda: square()[::-1],
        lambda: square()[1:, 1:],
        lambda: np.broadcast_to(square()[0], (side, side)),
        lambda: np.broadcast_to(np.float64(3), (50, 60)),
        lambda: np.lib.stride_tricks.as_strided(square(), (3, 3), (8, 8)),
        lambda: square().reshape(1, -1, 1, 2),
        lambda: square()[1:1],
        lambda: square().diagonal(),
        lambda: np.frombuffer(square().tobytes()),
        lambda: square().reshape(-1).view("u1")[3:-5].view("u1"),
    ]  # fmt: skip


@program()
def memory_layouts(run: Run) -> Observation:
    """Order, strides, views and read-only memory of small and large arrays; scalars of NumPy."""
    scalars: list[Any] = [
        lambda: np.array(5.5), lambda: np.float64(5.5), lambda: np.float32(1),
        lambda: np.bool_(True), lambda: np.datetime64("2026-01-01"), lambda: np.str_("x"),
        lambda: np.void(b"abc"),
    ]  # fmt: skip
    return [ways(run, layouts(4)), ways(run, layouts(300)), ways(run, scalars)]


@program()
def frames_and_tables(run: Run) -> Observation:
    """Frames, series and indices of pandas, tables and batches of Arrow."""
    found = []
    for size in (0, 3, 50_000):
        makers: list[Any] = [
            lambda size=size: pd.DataFrame({"a": np.arange(size), "c": ["x"] * size}),
            lambda size=size: pd.DataFrame(np.ones((size, 3))),
            lambda size=size: pd.DataFrame({"k": pd.Categorical(["u", "v", "u"][:size])}),
            lambda size=size: pd.Series(range(size), name="s"),
            lambda size=size: pd.date_range("2026", periods=min(size, 100)),
            lambda size=size: pd.DataFrame({"n": [1, None, 2][:size]}, dtype="Int64"),
            lambda size=size: pa.table({"a": list(range(size)), "b": ["é"] * size}),
            lambda size=size: pa.table({"a": list(range(size))}).to_batches(),
        ]  # fmt: skip
        found.append(ways(run, makers))
    return found


@program()
def arrays_in_containers(run: Run) -> Observation:
    """Arrays within lists, dictionaries and objects; the same array twice; views of one base."""

    def twice() -> Any:
        one = np.arange(20_000.0)
        return [one, one, {"again": one}]

    def views() -> Any:
        base = np.arange(100_000.0)
        return [base, base[:50_000], base[::2], base[50_000:]]

    def mixed() -> Any:
        return Record("r", {"a": np.ones(10), "b": [np.zeros((200, 200)), b"x" * 100_000]})

    makers = [twice, views, mixed, lambda: [np.arange(n) for n in range(50)]]
    found: list[Any] = [ways(run, makers)]
    pair = run.submit_on(0, twice)
    back = pair.result()
    found.append([back[0] is back[1], np.shares_memory(back[0], back[2]["again"])])
    on_peer = run.submit_on(1, lambda x: (x[0] is x[1], np.shares_memory(x[0], x[1])), pair)
    several = run.submit_on(0, views)
    shares = run.submit_on(1, lambda x: np.shares_memory(x[0], x[1]), several)
    return [*found, on_peer.result(), shares.result()]


@program()
def what_receivers_may_write(run: Run) -> Observation:
    """Returns which received arrays, buffers and frames may be written, and what that changes."""

    def write(value: Any) -> Any:
        return outcome(_written, value).text

    found = []
    for size in (10, 1000, 100_000):
        makers: list[Any] = [
            lambda size=size: np.zeros(size),
            lambda size=size: bytearray(size),
            lambda size=size: pd.DataFrame({"a": np.zeros(size)}),
            lambda size=size: [np.zeros(size), np.zeros(size)],
            lambda size=size: np.zeros((size, 2)).T,
        ]
        for maker in makers:
            future = run.submit_on(0, maker)
            mine = future.result()
            found.append([write(mine), outcome(future.result)])
            found.append(run.submit_on(1, write, future).result())
            found.append(run.submit_on(1, seen, future).result())
            found.append(run.submit_on(0, seen, future).result())
    return found


def _written(value: Any) -> Any:
    if isinstance(value, list):
        return [_written(each) for each in value]
    if isinstance(value, pd.DataFrame):
        value.iloc[0, 0] = 5.0
    elif isinstance(value, bytearray):
        value[0] = 7
    else:
        value[..., 0] = 5.0
    return value
