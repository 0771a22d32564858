"""Buffers that can be sent and received into, and the properties of received memory."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from backhaul import Context, InvalidBuffer

if TYPE_CHECKING:
    from tests.native.conftest import Connected

pytestmark = [pytest.mark.asyncio]


class Point(ctypes.Structure):
    """Something of C."""

    _fields_ = (("x", ctypes.c_int32), ("y", ctypes.c_double))


class ArrayOnly:
    """Has its memory described, and no buffer protocol."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.array.__array_interface__


def mapped(content: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(content))
    memory[:] = content
    return memory


def arrow(content: bytes) -> Any:
    return pytest.importorskip("pyarrow").py_buffer(content)


RECORD = np.dtype([("id", "i4"), ("Offset:O", "f8"), ("when", "M8[us]")])

#: Something to send, and its bytes.
SENDABLE: dict[str, tuple[Callable[[], object], bytes]] = {
    "bytes": (lambda: b"abc", b"abc"),
    "large bytes": (lambda: b"abc" * 5000, b"abc" * 5000),
    "bytearray": (lambda: bytearray(b"abc"), b"abc"),
    "large bytearray": (lambda: bytearray(b"abc" * 5000), b"abc" * 5000),
    "slice": (lambda: memoryview(b"0123456789" * 1000)[7:9007], (b"0123456789" * 1000)[7:9007]),
    "empty slice": (lambda: memoryview(b"0123")[4:], b""),
    "cast": (lambda: memoryview(bytes(range(16))).cast("d"), bytes(range(16))),
    "cast to two dimensions": (
        lambda: memoryview(bytes(range(24))).cast("B").cast("I", (2, 3)),
        bytes(range(24)),
    ),
    "booleans": (lambda: memoryview(b"\0\1").cast("?"), b"\0\1"),
    "array.array": (lambda: array.array("d", [1.5, -2.0]), array.array("d", [1.5, -2]).tobytes()),
    "ctypes array": (lambda: (ctypes.c_uint16 * 3)(1, 2, 3), b"\1\0\2\0\3\0"),
    "ctypes structure": (lambda: Point(1, 2.0), bytes(Point(1, 2.0))),
    "mmap": (lambda: mapped(b"page" * 2000), b"page" * 2000),
    "pyarrow": (lambda: arrow(b"arrow" * 2000), b"arrow" * 2000),
    "numpy": (lambda: np.arange(6, dtype="i8"), np.arange(6, dtype="i8").tobytes()),
    "numpy, big-endian": (lambda: np.arange(6, dtype=">f4"), np.arange(6, dtype=">f4").tobytes()),
    "numpy, half": (lambda: np.ones(3, "f2"), np.ones(3, "f2").tobytes()),
    "numpy, complex": (lambda: np.ones(3, "c16"), np.ones(3, "c16").tobytes()),
    "numpy, text": (lambda: np.array(["ab", "c"]), np.array(["ab", "c"]).tobytes()),
    "numpy, bytes": (lambda: np.array([b"ab", b"c"]), b"abc\0"),
    "numpy, void": (lambda: np.frombuffer(b"abcd", "V2"), b"abcd"),
    "numpy, no dimension": (lambda: np.array(258, "<i4"), b"\2\1\0\0"),
    "numpy, no element": (lambda: np.empty((3, 0), "f8"), b""),
    "numpy, sub-array": (lambda: np.arange(12, dtype="u1").reshape(3, 4)[1:], bytes(range(4, 12))),
    "numpy, read-only": (lambda: np.frombuffer(b"abcd", "u1"), b"abcd"),
    "numpy, dates": (
        lambda: np.array(["2026-01-01", "NaT"], "M8[D]"),
        np.array(["2026-01-01", "NaT"], "M8[D]").tobytes(),
    ),
    "numpy, one date": (
        lambda: np.array("2026-01-01", "M8[ns]"),
        np.array("2026-01-01", "M8[ns]").tobytes(),
    ),
    "numpy, times": (lambda: np.arange(3).astype("m8[s]"), np.arange(3, dtype="i8").tobytes()),
    "numpy, many dates": (
        lambda: np.arange(5000).astype("M8[s]"),
        np.arange(5000, dtype="i8").tobytes(),
    ),
    "numpy, records": (lambda: np.zeros(3, RECORD), np.zeros(3, RECORD).tobytes()),
    "numpy, records without dates": (
        lambda: np.ones(2, [("O", "i2"), ("b", "f8")]),
        np.ones(2, [("O", "i2"), ("b", "f8")]).tobytes(),
    ),
    "numpy, one value": (lambda: np.float64(1.5), np.float64(1.5).tobytes()),
    "numpy, Fortran order in one dimension": (
        lambda: np.asfortranarray(np.arange(4, dtype="u1")),
        bytes(range(4)),
    ),
    "array interface": (lambda: ArrayOnly(np.arange(4, dtype="u1")), bytes(range(4))),
}


@pytest.mark.parametrize("kind", SENDABLE)
async def test_any_contiguous_memory_is_sent(kind: str, connected: Connected) -> None:
    make, content = SENDABLE[kind]
    buffer = bytearray(len(content))
    with connected("shm") as (a, b):
        a.send(make())
        assert (await b.recv(buffer)).nbytes == len(content)
        assert buffer == content
        a.send_frames([make(), b"between", make()])
        assert await b.recv_frames() == [content, b"between", content]


#: Something to receive into, and how to read its bytes.
RECEIVABLE: dict[str, Callable[[], object]] = {
    "bytearray": lambda: bytearray(16),
    "slice": lambda: memoryview(bytearray(20))[4:],
    "cast": lambda: memoryview(bytearray(16)).cast("d"),
    "array.array": lambda: array.array("i", [0] * 4),
    "ctypes array": lambda: (ctypes.c_uint32 * 4)(),
    "ctypes structure": lambda: Point(),
    "mmap": lambda: mmap.mmap(-1, 16),
    "numpy": lambda: np.zeros((2, 2), "f4"),
    "numpy, dates": lambda: np.zeros(2, "M8[us]"),
    "numpy, one date": lambda: np.zeros((), [("when", "M8[us]"), ("pad", "i8")]),
    "numpy, records": lambda: np.zeros(2, [("a", "i4"), ("b", "f4")]),
    "numpy, no dimension": lambda: np.zeros((), "c16"),
    "array interface": lambda: ArrayOnly(np.zeros(16, "u1")),
}


def content_of(memory: Any) -> bytes:
    if isinstance(memory, ArrayOnly):
        memory = memory.array
    return memory.tobytes() if isinstance(memory, np.ndarray) else bytes(memory)


@pytest.mark.parametrize("kind", RECEIVABLE)
async def test_any_writable_contiguous_memory_is_received_into(
    kind: str, connected: Connected
) -> None:
    memory = RECEIVABLE[kind]()
    with connected("shm") as (a, b):
        a.send(bytes(range(16)))
        assert (await b.recv(memory)).nbytes == 16
    assert content_of(memory) == bytes(range(16))


def read_only() -> Any:
    array = np.zeros(4, "M8[s]")
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("memory", "kind"),
    [
        (b"bytes", "bytes"),
        (memoryview(bytearray(4)).toreadonly(), "memoryview"),
        (np.frombuffer(b"abcd", "u1"), "ndarray"),
        (read_only(), "ndarray"),
        (np.float64(1), "float64"),
        (ArrayOnly(np.frombuffer(b"abcd", "u1")), "ArrayOnly"),
    ],
)
async def test_read_only_memory_is_not_received_into(
    memory: object, kind: str, connected: Connected
) -> None:
    refusal = f"cannot receive into a {kind}: it is read-only"
    with connected("shm") as (_, b), pytest.raises(InvalidBuffer, match=refusal):
        b.recv(memory)


async def test_a_refused_receive_does_not_hold_the_memory(connected: Connected) -> None:
    memory = bytearray(4)
    with connected("shm") as (_, b):
        with pytest.raises(InvalidBuffer):
            b.recv(memoryview(memory).toreadonly())
        memory.append(1)


@pytest.mark.parametrize(
    ("memory", "strides"),
    [
        (np.zeros((3, 4), "f8").T, r"\[8, 32\] for shape \[4, 3\]"),
        (np.asfortranarray(np.zeros((3, 4))), r"\[8, 24\] for shape \[3, 4\]"),
        (np.arange(6)[::2], r"\[16\] for shape \[3\]"),
        (np.arange(6)[::-1], r"\[-8\] for shape \[6\]"),
        (np.broadcast_to(np.float32(1), (5,)), r"\[0\] for shape \[5\]"),
        (np.zeros(6, "M8[s]")[::2], r"\[16\] for shape \[3\]"),
        (np.zeros(6, RECORD)[::3], r"\[60\] for shape \[2\]"),
        (memoryview(b"0123456789")[::3], r"\[3\] for shape \[4\]"),
        (ArrayOnly(np.arange(6)[::2]), r"\[16\] for shape \[3\]"),
    ],
)
async def test_memory_in_pieces_is_refused(memory: Any, strides: str, connected: Connected) -> None:
    with connected("shm") as (a, b):
        for refused in (
            lambda: a.send(memory),
            lambda: a.send_frames([b"", memory]),
            lambda: b.recv(memory),
        ):
            with pytest.raises(InvalidBuffer, match=f"is not C-contiguous .strides {strides}"):
                refused()


@pytest.mark.parametrize(
    "memory",
    [
        np.array([object(), None]),
        np.zeros(2, [("plain", "i4"), ("object", "O")]),
        (ctypes.py_object * 2)(),
    ],
)
async def test_references_to_objects_are_refused(memory: Any, connected: Connected) -> None:
    with connected("shm") as (a, b):
        for refused in (lambda: a.send(memory), lambda: b.recv(memory)):
            with pytest.raises(InvalidBuffer, match=r"references to Python objects .*O.* pickle"):
                refused()


@pytest.mark.parametrize("memory", ["text", 1, None, [b"list"], {}, object()])
async def test_what_has_no_memory_is_refused(memory: Any, connected: Connected) -> None:
    with connected("shm") as (a, b):
        for refused in (
            lambda: a.send(memory),
            lambda: a.send_frames([memory]),
            lambda: b.recv(memory),
        ):
            kind = type(memory).__name__
            with pytest.raises(TypeError, match=f"a {kind} offers neither the buffer protocol nor"):
                refused()


@pytest.mark.parametrize("frames", [b"bytes", bytearray(), "text", memoryview(b""), np.eye(2)])
async def test_one_buffer_is_no_list_of_frames(frames: Any, connected: Connected) -> None:
    with connected("shm") as (a, _):
        kind = type(frames).__name__
        with pytest.raises(TypeError, match=f"must be a list of buffers, got one {kind}"):
            a.send_frames(frames)


async def test_an_error_among_the_frames_sends_nothing(connected: Connected) -> None:
    def frames() -> Any:
        yield b"first"
        raise ZeroDivisionError

    with connected("shm") as (a, b):
        with pytest.raises(ZeroDivisionError):
            a.send_frames(frames())
        a.send_frames([b"next"])
        assert await b.recv_frames() == [b"next"]


@pytest.mark.parametrize("sizes", [[1, 63, 64, 65, 4096, 100_000, 0, 3 << 20]])
async def test_received_memory_is_aligned_writable_and_apart(
    lane: str, sizes: list[int], connected: Connected
) -> None:
    with connected(lane) as (a, b):
        send = a.send_frames([bytes([i]) * nbytes for i, nbytes in enumerate(sizes)])
        frames = await b.recv_frames()
        await send
    assert [frame.nbytes for frame in frames] == sizes
    for i, frame in enumerate(frames):
        assert not frame.readonly
        assert frame.contiguous
        array = np.frombuffer(frame, "u1")
        if frame.nbytes:
            assert array.ctypes.data % 64 == 0
        array[:] = 0xFF - i
    for i, frame in enumerate(frames):
        assert bytes(frame) == bytes([0xFF - i]) * frame.nbytes


async def test_received_memory_outlives_everything_else(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b):
        sends = [a.send_frames([bytes([i]) * 100_000] * 3) for i in range(20)]
        kept = []
        for _ in range(20):
            frames = await b.recv_frames()
            kept.append(np.frombuffer(frames[1], "u1"))
            del frames
        for send in sends:
            await send
        del a, b, sends, send
    gc.collect()
    # Memory of the neighbours is free, and used again.
    with connected(lane) as (a, b):
        for _ in range(20):
            a.send_frames([b"\xff" * 100_000] * 2)
            await b.recv_frames()
    assert all((array == i).all() for i, array in enumerate(kept))


async def test_a_received_frame_can_be_sent_on(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b):
        for nbytes in (10, 10_000, 1_000_000):
            sends = [a.send_frames([b"x" * nbytes, b"y"])]
            frames = await b.recv_frames()
            sends.append(b.send_frames(frames))
            del frames
            assert await a.recv_frames() == [b"x" * nbytes, b"y"]
            for send in sends:
                await send


async def test_received_memory_goes_back_to_the_pool() -> None:
    with Context(lanes=["shm"]) as context, context.listen("127.0.0.1:0") as listener:
        a = await context.connect(listener.address)
        b = await listener.accept()
        for _ in range(10):
            send = a.send_frames([bytes(1 << 20)])
            frames = await b.recv_frames()
            await send
            assert context.statistics()["pool_live_bytes"] >= 1 << 20
            del frames
        statistics = context.statistics()
        assert statistics["pool_live_bytes"] == 0
        assert statistics["pool_cached_bytes"] >= 1 << 20
        assert statistics["pool_peak_bytes"] < 10 << 20
        assert statistics["pool_misses"] < 5 < statistics["pool_hits"]
