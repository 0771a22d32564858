"""Arrays in memory of a GPU, by nothing but the driver, for programs that tests start.

No library of arrays works on the driver that stands in for NVIDIA's
(``crates/testkit/examples/fake_cuda``), which has memory and streams and no kernels. So the arrays
here are bytes with a shape: they can be filled, read, and offered by the CUDA Array Interface or
by DLPack, with whatever a test wants these to say.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import backhaul

__all__ = [
    "DATA",
    "DLPackArray",
    "DeviceArray",
    "Memory",
    "OlderArray",
    "Stream",
    "connected",
    "dlpack_tensor",
    "eventually",
    "filled",
    "raises",
]

#: A MiB that is not the same everywhere.
DATA = bytes(range(256)) * 4096

#: When to give up on what should have happened.
DEADLINE_S = 300.0


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    assert library.cuInit(0) == 0
    return library


@functools.cache
def _context(device: int) -> ctypes.c_void_p:
    context = ctypes.c_void_p()
    assert _library().cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    return context


def _call(device: int, function: str, *arguments: Any) -> None:
    # Each thread has its own current context.
    assert _library().cuCtxSetCurrent(_context(device)) == 0
    status = getattr(_library(), function)(*arguments)
    if status != 0:
        raise OSError(f"{function}: {status}")


class Memory:
    """Memory of a device, as ``cudaMalloc`` gives it; freed with the object."""

    def __init__(self, nbytes: int, device: int = 0) -> None:
        self.nbytes = nbytes
        self.device = device
        pointer = ctypes.c_uint64()
        _call(device, "cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(nbytes, 1)))
        self.pointer = pointer.value

    def free(self) -> None:
        pointer, self.pointer = self.pointer, 0
        if pointer:
            _call(self.device, "cuMemFree_v2", ctypes.c_uint64(pointer))

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self.free()


class Stream:
    """A stream, with which nothing waits unless a call says so."""

    NON_BLOCKING = 1
    LEGACY_DEFAULT = 1

    def __init__(self, device: int = 0, *, handle: int | None = None) -> None:
        self._device = device
        self._stream = ctypes.c_void_p(handle)
        if handle is not None:
            return
        _call(device, "cuStreamCreate", ctypes.byref(self._stream), self.NON_BLOCKING)

    @property
    def handle(self) -> int:
        assert self._stream.value is not None
        return self._stream.value

    def write(self, array: DeviceArray, data: ctypes.Array[ctypes.c_char]) -> None:
        """Queue a copy from the host; the buffer has to stay until it is done."""
        _call(
            self._device,
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(array.pointer),
            data,
            ctypes.c_size_t(len(data)),
            self._stream,
        )

    def synchronize(self) -> None:
        _call(self._device, "cuStreamSynchronize", self._stream)


class DeviceArray:
    """An array of bytes on a device; what its interface says can be overridden, or left out."""

    def __init__(
        self,
        nbytes: int,
        *,
        device: int = 0,
        memory: Memory | None = None,
        offset: int = 0,
        without: Sequence[str] = (),
        **interface: Any,
    ) -> None:
        self.memory = Memory(nbytes + offset, device) if memory is None else memory
        self.device = device
        self.nbytes = nbytes
        self.pointer = self.memory.pointer + offset
        self._interface = interface
        self._without = without

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.pointer, False),
            "strides": None,
            "stream": None,
            "version": 3,
            **self._interface,
        }
        return {key: value for key, value in interface.items() if key not in self._without}

    def write(self, data: bytes) -> DeviceArray:
        """Copy from the host, and wait until it is there."""
        nbytes = ctypes.c_size_t(len(data))
        pointer = ctypes.c_uint64(self.pointer)
        _call(self.device, "cuMemcpyHtoD_v2", pointer, data, nbytes)
        _call(self.device, "cuCtxSynchronize")
        return self

    def read(self) -> bytes:
        """Copy to the host."""
        data = ctypes.create_string_buffer(self.nbytes)
        pointer, nbytes = ctypes.c_uint64(self.pointer), ctypes.c_size_t(self.nbytes)
        _call(self.device, "cuMemcpyDtoH_v2", data, pointer, nbytes)
        return data.raw


def filled(data: bytes, **arguments: Any) -> DeviceArray:
    """Make an array with these bytes."""
    return DeviceArray(len(data), **arguments).write(data)


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("ordinal", ctypes.c_int32))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset_bytes", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


_python = ctypes.pythonapi
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_python.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
_python.PyCapsule_IsValid.argtypes = (ctypes.c_void_p, ctypes.c_char_p)

#: Objects that belong to exported tensors, by their address.
_exported: dict[int, Any] = {}


def _delete(address: int) -> None:
    del _exported[address]


# Called with a capsule that is on its way out, which must not become an object again.
def _destroy(capsule: int) -> None:
    if _python.PyCapsule_IsValid(capsule, b"dltensor"):
        get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
            ("PyCapsule_GetPointer", _python)
        )
        _delete(get(capsule, b"dltensor"))


_deleter = _Deleter(_delete)
_destructor = _Destructor(_destroy)


class DLPackArray:
    """An array that speaks DLPack and nothing else.

    Attributes
    ----------
    streams : list of object
        The streams for which it was asked for a tensor.
    """

    CUDA = 2

    def __init__(
        self,
        array: DeviceArray,
        *,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        bits: int = 8,
        offset_bytes: int = 0,
        kind: int = CUDA,
    ) -> None:
        self.array = array
        self.streams: list[object] = []
        shape = (array.nbytes,) if shape is None else shape
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        device = _Device(kind, array.device)
        tensor = _Tensor(array.pointer, device, len(shape), 1, bits, 1)
        tensor.shape = ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64))
        if self._strides is not None:
            tensor.strides = ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64))
        tensor.offset_bytes = offset_bytes
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.device.kind, self._tensor.device.ordinal

    def __dlpack__(self, *, stream: object = None) -> object:
        self.streams.append(stream)
        managed = _Managed(self._tensor, None, _deleter)
        address = ctypes.addressof(managed)
        # The tensor keeps the memory, though the object goes.
        _exported[address] = (managed, self.array, self._shape, self._strides)
        return _python.PyCapsule_New(address, b"dltensor", _destructor)


class OlderArray(DLPackArray):
    """One whose interface says nothing of streams, as those of PyTorch and JAX."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        found = dict(self.array.__cuda_array_interface__, version=2)
        del found["stream"]
        return found


def dlpack_tensor(array: Any) -> tuple[tuple[int, int, int, int, tuple[int, ...]], Any]:
    """Take a tensor from an array: its facts, and what releases it.

    The facts are pointer, kind of device, number of the device, bits of an item, and shape.
    """
    capsule = array.__dlpack__()
    address = _python.PyCapsule_GetPointer(capsule, b"dltensor")
    _python.PyCapsule_SetName(capsule, b"used_dltensor")
    managed = _Managed.from_address(address)
    tensor = managed.tensor
    shape = tuple(tensor.shape[: tensor.dimensions])
    facts = (tensor.data, tensor.device.kind, tensor.device.ordinal, tensor.bits, shape)
    return facts, functools.partial(managed.deleter, address)


@contextmanager
def connected(
    lane: str, carriers: Sequence[str] | None = ("cuda",), **settings: Any
) -> Iterator[tuple[backhaul.Endpoint, backhaul.Endpoint]]:
    """Connect two endpoints of this process."""
    with (
        backhaul.Context(lanes=[lane], carriers=carriers, **settings) as context,
        context.listen("127.0.0.1:0") as listener,
    ):
        connecting = context.connect(listener.address)
        far = listener.accept().wait(DEADLINE_S)
        near = connecting.wait(DEADLINE_S)
        assert near.lane == far.lane == lane
        yield near, far


def raises(
    kind: type[BaseException],
    call: Callable[..., object],
    *arguments: Any,
    text: str = "",
    **options: Any,
) -> None:
    """Make sure that a call raises just this kind of exception, with a text in its message."""
    raised: BaseException | None = None
    try:
        call(*arguments, **options)
    except kind as error:
        raised = error
    assert type(raised) is kind, raised
    assert text in str(raised), raised


def eventually(condition: Callable[[], object]) -> None:
    """Return once a condition holds; for what nothing announces."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at, "it never came to hold"
        time.sleep(0.001)
