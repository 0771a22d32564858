"""Descriptions of memory on a GPU by objects, and those that are refused; see ``test_device``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

#: Runs a program with the driver to its end, which must be in good order.
RunGpu: TypeAlias = Callable[..., None]


def test_a_device_buffer_says_what_it_is(run_gpu: RunGpu) -> None:
    run_gpu("""
buffer = backhaul.DeviceBuffer(len(DATA))
assert (buffer.nbytes, len(buffer), buffer.device) == (len(DATA), len(DATA), 0)
interface = buffer.__cuda_array_interface__
assert interface["data"] == (buffer.ptr, False)
assert (interface["shape"], interface["typestr"], interface["version"]) == ((len(DATA),), "|u1", 3)
assert interface["strides"] is None
assert interface["stream"] is None
buffer.copy_from_host(DATA)
copy = bytearray(len(DATA))
buffer.copy_to_host(copy)
assert copy == DATA
raises(ValueError, buffer.copy_to_host, bytearray(3), text="do not fit")
raises(ValueError, buffer.copy_from_host, b"abc", text="do not fit")
raises(backhaul.InvalidBuffer, buffer.copy_to_host, bytes(len(DATA)), text="read-only")
raises(backhaul.ConfigError, backhaul.DeviceBuffer, 1, device=9, text="no CUDA device 9")
raises(backhaul.OutOfMemory, backhaul.DeviceBuffer, 1 << 40)
assert "1048576 bytes" in repr(buffer)
assert backhaul.DeviceBuffer(0).nbytes == 0
""")


def test_memory_is_copied_between_host_and_devices(run_gpu: RunGpu) -> None:
    run_gpu(
        """
first, second = filled(DATA), DeviceArray(len(DATA), device=1)
_native.copy_memory(first, second)
assert second.read() == DATA
host = bytearray(len(DATA))
_native.copy_memory(second, host)
assert host == DATA
_native.copy_memory(bytes(len(DATA)), first)
assert first.read() == bytes(len(DATA))
copy = bytearray(3)
_native.copy_memory(b"abc", copy)
assert copy == b"abc"
_native.copy_memory(DeviceArray(0), bytearray())
raises(ValueError, _native.copy_memory, first, bytearray(3), text="1048576 bytes do not fit")
(uuid, name), (other, _) = _native.cuda_devices()
assert uuid.startswith("GPU-") and uuid != other and name
""",
        FAKE_CUDA_DEVICES="2",
    )


def test_a_device_buffer_is_handed_on_by_dlpack(run_gpu: RunGpu) -> None:
    run_gpu("""
import numpy

buffer = backhaul.DeviceBuffer(1000)
assert buffer.__dlpack_device__() == (2, 0)
facts, release = dlpack_tensor(buffer)
assert facts == (buffer.ptr, 2, 0, 8, (1000,))
# The tensor keeps the memory, so another buffer is elsewhere until it is released.
pointer = buffer.ptr
del buffer
assert backhaul.DeviceBuffer(1000).ptr != pointer
release()
assert pointer in {buffer.ptr for buffer in [backhaul.DeviceBuffer(1000) for _ in range(2)]}
buffer = backhaul.DeviceBuffer(1000)
for option in (dict(stream=1), dict(max_version=(1, 0)), dict(dl_device=(2, 0)), dict(copy=False)):
    buffer.__dlpack__(**option)
raises(ValueError, buffer.__dlpack__, dl_device=(1, 0))
raises(ValueError, buffer.__dlpack__, copy=True)
try:
    numpy.from_dlpack(buffer)
except (RuntimeError, BufferError, ValueError):
    pass
else:
    raise AssertionError("NumPy took memory of a device")
""")


def test_dlpack_tensors_are_sent_and_received(run_gpu: RunGpu) -> None:
    run_gpu("""
with connected("inproc") as (near, far):
    source = DLPackArray(filled(b"....abcdefgh"), shape=(2, 2), bits=16, offset_bytes=4)
    target = DLPackArray(DeviceArray(8), strides=(1,))
    receiving = far.recv(target)
    near.send(source).wait(60)
    assert receiving.wait(60).nbytes == 8
    assert target.array.read() == b"abcdefgh"
    # The producer has the stream that is named wait for its own.
    assert source.streams == [1]
    # Columns first.
    turned = DLPackArray(DeviceArray(4), shape=(2, 2), strides=(1, 2))
    raises(backhaul.InvalidBuffer, near.send, turned, text="not C-contiguous")
    # Memory of the host: such an object has the buffer protocol, too.
    raises(TypeError, near.send, DLPackArray(DeviceArray(4), kind=1))
    # An interface that raises, as PyTorch's does, is asked for DLPack.
    class Both(DLPackArray):
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("it needs a gradient")
    receiving = far.recv(DeviceArray(4))
    near.send(Both(filled(b"both"))).wait(60)
    receiving.wait(60)
    raises(RuntimeError, near.send, Both(DeviceArray(4), kind=1), text="it needs a gradient")
    # One that says nothing of streams is put in order by DLPack,
    older = OlderArray(filled(b"older"))
    receiving = far.recv(DeviceArray(5))
    near.send(older).wait(60)
    receiving.wait(60)
    assert older.streams == [1]
    # if it can.
    class Alone(OlderArray):
        def __dlpack__(self, *, stream=None):
            raise BufferError("not now")
    receiving = far.recv(DeviceArray(5))
    near.send(Alone(filled(b"alone"))).wait(60)
    receiving.wait(60)
""")


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ("shape=(2, 3), strides=(1, 2)", "backhaul.InvalidBuffer", "not C-contiguous"),
        ("shape=(3,), strides=(2,)", "backhaul.InvalidBuffer", "not C-contiguous"),
        ("mask=object()", "backhaul.InvalidBuffer", "has a mask"),
        ("typestr='|O8'", "backhaul.InvalidBuffer", "references to Python objects"),
        ("typestr='float'", "ValueError", "is no type"),
        ("typestr=8", "TypeError", ""),
        ("shape=(1 << 62, 8)", "ValueError", "is no memory"),
        ("shape=(-1,)", "OverflowError", ""),
        ("shape=(7,)", "backhaul.InvalidBuffer", "are not within"),
        ("shape=(2,), typestr='<U1'", "backhaul.InvalidBuffer", "8 bytes at"),
        ("data=(4096, False)", "backhaul.InvalidBuffer", "is no memory of a device"),
        ("data='nowhere'", "TypeError", ""),
        ("without=['data']", "ValueError", 'has no "data"'),
        ("without=['shape']", "ValueError", 'has no "shape"'),
        ("without=['typestr']", "ValueError", 'has no "typestr"'),
    ],
)
def test_what_is_not_memory_in_one_piece_is_refused(
    run_gpu: RunGpu, arguments: str, kind: str, text: str
) -> None:
    run_gpu(
        f"""
array = DeviceArray(6, {arguments})
with connected("inproc") as (near, far):
    raises({kind}, near.send, array, text={text!r})
    raises({kind}, near.recv, array, text={text!r})
    raises({kind}, near.send_frames, [b"", array], text={text!r})
    # The connection is as good as before.
    receiving = far.recv(bytearray(4))
    near.send(b"good").wait(60)
    receiving.wait(60)
"""
    )


def test_interfaces_say_more_than_is_needed_or_less(run_gpu: RunGpu) -> None:
    run_gpu("""
with connected("inproc") as (near, far):
    def passes(array, expected):
        target = bytearray(len(expected))
        receiving = far.recv(target)
        near.send(array).wait(60)
        assert receiving.wait(60).nbytes == len(expected)
        assert target == expected
    passes(filled(b"abcdefgh", shape=(2, 1, 2), strides=(4, 99, 2), typestr="<i2"), b"abcdefgh")
    passes(filled(b"abcdefgh", shape=(), typestr="<f8"), b"abcdefgh")
    passes(filled(b"abcdefgh", shape=(2,), typestr="<U1"), b"abcdefgh")
    passes(filled(b"abcdefgh", without=["strides", "stream", "version"]), b"abcdefgh")
    passes(filled(b"abc", descr=[("", "|u1")], mask=None), b"abc")
    passes(DeviceArray(1, shape=(0, 3), strides=(7, 1)), b"")
    passes(DeviceArray(1, shape=(0,), data=(0, True)), b"")
    # A read-only array can be sent, and not received into.
    array = filled(b"abc")
    array._interface["data"] = (array.pointer, True)
    passes(array, b"abc")
    raises(backhaul.InvalidBuffer, near.recv, array, text="read-only")
    class NoDict:
        __cuda_array_interface__ = [1]
    raises(TypeError, near.send, NoDict(), text="is no dict")
    # And what a message is too long for is said.
    receiving = far.recv(DeviceArray(2))
    near.send(filled(b"abc"))
    raises(backhaul.TruncatedError, receiving.wait, 60)
""")


def test_work_on_the_stream_that_is_given_comes_before_the_transfer(run_gpu: RunGpu) -> None:
    # Each operation on a stream begins a quarter of a second late.
    run_gpu(
        """
def sent(used, **interface):
    array = filled(b"old" * 1000, **interface)
    data = ctypes.create_string_buffer(b"new" * 1000, 3000)
    before = ctypes.create_string_buffer(b"mid" * 1000, 3000)
    for written in (before, before, before, data):
        used.write(array, written)
    target = bytearray(3000)
    receiving = far.recv(target)
    near.send(array).wait(60)
    receiving.wait(60)
    used.synchronize()
    return bytes(target[:3])

with connected("inproc") as (near, far):
    stream, default = Stream(), Stream(handle=Stream.LEGACY_DEFAULT)
    assert sent(stream, stream=stream.handle) == b"new"
    # Without a stream in the interface the sender waits for none,
    assert sent(stream, stream=None) in (b"old", b"mid")
    # but for the default one: what has been copied from pageable memory may be on its way.
    assert sent(default, stream=None) == b"new"
    assert sent(default, without=["stream"], version=2) == b"new"
""",
        FAKE_CUDA_DELAY_US="250000",
    )


@pytest.mark.parametrize("asked", ["ptr", "interface", "dlpack"])
def test_work_on_a_buffer_of_ours_is_waited_for_once_its_address_was_asked_for(
    run_gpu: RunGpu, asked: str
) -> None:
    run_gpu(
        """
from types import SimpleNamespace

default = Stream(handle=Stream.LEGACY_DEFAULT)
texts = [ctypes.create_string_buffer(text * 1000, 3000) for text in (b"mid", b"mid", b"new")]
with connected("inproc") as (near, far):
    buffer = backhaul.DeviceBuffer(3000)
    buffer.copy_from_host(b"old" * 1000)
    if sys.argv[1] == "ptr":
        pointer = buffer.ptr
    elif sys.argv[1] == "interface":
        pointer, _ = buffer.__cuda_array_interface__["data"]
    else:
        tensor = ctypes.pythonapi.PyCapsule_GetPointer
        tensor.restype, tensor.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        capsule = buffer.__dlpack__()
        # A tensor begins with its address.
        pointer = ctypes.c_uint64.from_address(tensor(capsule, b"dltensor")).value
        del capsule
    place = SimpleNamespace(pointer=pointer)
    for text in texts:
        default.write(place, text)
    target = bytearray(3000)
    receiving = far.recv(target)
    near.send(buffer).wait(60)
    receiving.wait(60)
    assert bytes(target) == b"new" * 1000, bytes(target[:3])

    # Copies that the last owner has queued precede data that arrives for the next owner.
    source = backhaul.DeviceBuffer(3000)
    source.copy_from_host(b"own" * 1000)
    for text in texts:
        default.write(place, text)
    del buffer
    gc.collect()
    again = backhaul.DeviceBuffer(3000)
    sending = near.send(source)
    far.recv(again).wait(60)
    sending.wait(60)
    default.synchronize()
    content = bytearray(3000)
    again.copy_to_host(content)
    assert bytes(content) == b"own" * 1000, bytes(content[:3])
    assert again.ptr == place.pointer
""",
        asked,
        FAKE_CUDA_DELAY_US="100000",
    )


def test_a_buffer_of_ours_that_was_given_is_written_to_behind_its_copy(run_gpu: RunGpu) -> None:
    # Given memory is copied, and its send is over before that is.
    run_gpu(
        """
with connected("shm") as (near, far):
    buffers = [backhaul.DeviceBuffer(3000) for _ in range(100)]
    for buffer in buffers:
        buffer.copy_from_host(b"old" * 1000)
    receiving = far.recv_frames()
    near.send_frames(buffers).wait(60)
    for buffer in buffers:
        buffer.copy_from_host(b"new" * 1000)
    frames = receiving.wait(60)
    content = bytearray(3000)
    for place, frame in enumerate(frames):
        frame.copy_to_host(content)
        assert content == b"old" * 1000, (place, bytes(content[:3]))
""",
        FAKE_CUDA_DELAY_US="5000",
    )


def test_freed_memory_is_refused(run_gpu: RunGpu) -> None:
    run_gpu("""
with connected("inproc") as (near, far):
    array = filled(DATA)
    array.memory.free()
    raises(backhaul.InvalidBuffer, near.send, array, text="is no memory of a device")
    raises(backhaul.InvalidBuffer, far.recv, array, text="is no memory of a device")
""")
