"""Input that cannot be written or read: refused as Dask's own codec refuses it."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from distributed.comm.utils import to_frames
from distributed.protocol import core
from distributed.protocol.serialize import Serialize, ToPickle
from distributed.utils_test import captured_logger
from hypothesis import given, settings
from hypothesis import strategies as st

from backhaul.dask.serialize import codec


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """Give what a call returns, or the type and text of what it raises."""
    try:
        found = call(*arguments)
    except Exception as error:
        return type(error), str(error)
    try:
        return repr(found)
    except RecursionError:
        return type(found)


def same(ours: Callable[..., Any], theirs: Callable[..., Any], *arguments: Any) -> Any:
    found = outcome(ours, *arguments)
    assert found == outcome(theirs, *arguments)
    return found


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


class Hostile:
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("no")


class Odd(dict[str, int]):
    """Says it is longer than it is."""

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    "message",
    [
        2**64,
        [-(2**63) - 1],
        {"a": 2**100},
        "\ud800",
        {"\ud800": 1},
        {1, 2**70},
        nested(1023),
        nested(1024),
        nested(1025),
        nested(3000),
        memoryview(b"abcd")[::2],
        [ToPickle(Hostile())],
        Hostile(),
        Odd(a=1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_writing_ends_as_in_dask(message: Any) -> None:
    same(
        lambda: [bytes(frame) for frame in codec.dumps(message)],
        lambda: [bytes(frame) for frame in core.dumps(message)],
    )


def test_a_message_that_a_comm_cannot_write_is_logged_as_in_dask() -> None:
    async def theirs(message: Any) -> None:
        await to_frames(message, allow_offload=False)

    def logged(write: Callable[[Any], Any]) -> list[str]:
        with captured_logger("distributed", logging.ERROR) as log, pytest.raises(TypeError):
            write({"a": threading.Lock()})
        return [line for line in log.getvalue().splitlines() if not line.startswith(" ")]

    found, expected = logged(codec.encode), logged(lambda each: asyncio.run(theirs(each)))
    assert found[-1] == expected[-1]
    assert found.count("cannot pickle '_thread.lock' object") == 1
    assert expected.count("cannot pickle '_thread.lock' object") == 1


def test_a_message_that_holds_itself_is_refused() -> None:
    message: list[Any] = []
    message.append({"a": message})
    assert same(codec.dumps, core.dumps, message)[0] is ValueError


def test_an_exception_of_serialization_is_passed_on() -> None:
    class Interrupting:
        def __reduce__(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        codec.dumps({"a": ToPickle(Interrupting())})


class Changing:
    """Changes the container that it is part of while it is pickled."""

    def __init__(self, change: Callable[[], object]) -> None:
        self.change = change

    def __reduce__(self) -> Any:
        self.change()
        return (int, ())


def test_a_dict_that_serialization_changes_is_refused() -> None:
    grown: dict[str, Any] = {}
    grown |= {"a": ToPickle(Changing(lambda: grown.setdefault("z", 1))), "b": 2}
    with pytest.raises(RuntimeError, match="changed size"):
        codec.dumps(grown)
    swapped: dict[str, Any] = {}

    def swap() -> None:
        swapped.pop("b", None)
        swapped["c"] = 3

    swapped |= {"a": ToPickle(Changing(swap)), "b": 2}
    codec.dumps(swapped)
    emptied: dict[str, Any] = {}
    emptied |= {"a": ToPickle(Changing(lambda: emptied.clear())), "b": 2}
    with pytest.raises(RuntimeError, match="changed size"):
        codec.dumps([emptied])


def test_a_list_that_serialization_changes_is_written_as_dask_does() -> None:
    def message() -> list[Any]:
        found: list[Any] = []
        found += [ToPickle(Changing(lambda: found.pop())), 1, 2, 3]
        return found

    assert bytes(codec.dumps(message())[0]) == bytes(core.dumps(message())[0])


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        b"\x92\x01",
        b"\x01\x02",
        b"\xa2\xff\xff",
        b"\x81\xa2\xff\xff\x01",
        b"\x81\x80\x01",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xd4\xff\x00",
        b"\xd4\xfe\x00",
        b"\xd4\x05a",
        b"\xc7\x00\x05",
        b"\xca\x3f\x80\x00\x00",
        b"\x91" * 1023 + b"\x90",
        b"\x91" * 1024 + b"\x90",
        b"\x81\x01" * 1024 + b"\x01",
        b"\x81\x01" * 1025 + b"\x01",
        b"\x81\xabe__Pickled__\x01",
        b"\x81\xab__Pickled__\x01",
        b"\x81\xab__Pickled__\x05",
        b"\x81\xab__Pickled__\xa1a",
        b"\x81\xab__Pickled__\xc3",
        b"\x81\xae__Serialized__\x01",
        b"\x81\xae__Serialized__\xc3",
        b"\x81\xa7__Set__\xc3",
        b"\x82\xa7__Set__\xc3\xa7as-list\x91\x80",
        b"\x82\xa7__Set__\xc3\xa7as-list\x05",
        b"\x81\xa8__Enum__\xc3",
        b"\x84\xa8__Enum__\xc3\xa4name\xa1A\xaa__module__\xa2os\xa8__name__\xa4path",
    ],
    ids=lambda header: repr(header)[:40],
)
def test_reading_ends_as_in_dask(header: bytes) -> None:
    for rest in ([], [b"\x80"], [b"\xc1"], [b"\x81\xaenum-sub-frames\x00"]):
        same(codec.loads, core.loads, [header, *rest])
        same(codec.loads, core.loads, [memoryview(bytearray(header)), *rest])


@pytest.mark.parametrize(
    "frames",
    [[], ["text"], [5], [memoryview(b"\x01\x00").cast("H")], [memoryview(b"\x91\xc1\x05")[::2]]],
    ids=repr,
)
def test_frames_that_are_none_are_refused_as_in_dask(frames: list[Any]) -> None:
    found = outcome(codec.loads, frames)
    expected = outcome(core.loads, frames)
    assert found[0] == expected[0]


def samples() -> Iterator[list[bytes]]:
    array = np.arange(100.0)
    message = [
        {"op": "x", "key": "a", "n": 1, "who_has": {"k": ["a", "b"]}, "s": {1, 2}},
        {"data": Serialize(array), "p": ToPickle([1, array]), "t": (1.5, None, b"b")},
    ]
    yield [bytes(frame) for frame in core.dumps(message)]


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_damaged_messages_end_as_in_dask(data: st.DataObject) -> None:
    # A damaged pickle may do anything, so only headers are damaged.
    (frames,) = samples()
    header = bytearray(frames[0])
    kind = data.draw(st.sampled_from(["cut", "change", "insert"]))
    where = data.draw(st.integers(0, len(header) - 1))
    if kind == "cut":
        del header[where:]
    elif kind == "change":
        header[where] = data.draw(st.integers(0, 255))
    else:
        header.insert(where, data.draw(st.integers(0, 255)))
    same(codec.loads, core.loads, [bytes(header), *frames[1:]])


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60))
def test_random_bytes_end_as_in_dask(header: bytes) -> None:
    same(codec.loads, core.loads, [header])


KEPT = """
import contextlib, gc, tracemalloc
from distributed.protocol import Serialize, ToPickle
from backhaul.dask.serialize import codec

message = {"op": "x", "s": {1}, "d": Serialize(b"1" * 1000), "t": ToPickle({"a": 1})}

def rounds(count):
    for _ in range(count):
        codec.loads(codec.dumps(message))
        for bad in (b"\\xc1", b"\\x92\\x01", b"\\x91" * 2000, b"\\x81\\x80\\x01"):
            with contextlib.suppress(Exception):
                codec.codec.unpack(bad)
        with contextlib.suppress(TypeError):
            codec.codec.pack([1, {"a": object()}])

rounds(200)
gc.collect()
tracemalloc.start()
rounds(50)
gc.collect()
grown = []
for _ in range(4):
    before = tracemalloc.get_traced_memory()[0]
    rounds(500)
    gc.collect()
    grown.append(tracemalloc.get_traced_memory()[0] - before)
print(min(grown))
"""


def test_nothing_is_kept_of_messages() -> None:
    # In a process of its own: the logs and threads of servers that other tests ran keep things. A
    # table of Python's, as that of interned strings, may grow in one of the four.
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 12_500


@pytest.mark.parametrize("message", [threading.Lock(), threading.RLock(), (each for each in "")])
def test_an_object_that_cannot_be_pickled_is_named_as_in_dask(message: Any) -> None:
    def contexts(dumps: Callable[[Any], Any]) -> list[str]:
        with pytest.raises(TypeError) as raised:
            dumps([message])
        found: list[str] = []
        error: BaseException | None = raised.value
        while error is not None:
            found.append(str(error))
            error = error.__context__
        return found

    assert contexts(codec.dumps) == contexts(core.dumps)
