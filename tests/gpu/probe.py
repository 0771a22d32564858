"""Print what a driver of CUDA says of memory of each kind, for the log of `make gpu-test`.

Its answers are documented in part only: without a context, of managed memory, of addresses that are
reserved and mapped in parts, of what is freed. `crates/cuda/src/memory.rs` rests on it, and
``crates/testkit/examples/fake_cuda`` does as is assumed there.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable

_MIB = 1 << 20
_GRANULE = 2 * _MIB

#: Attributes of pointers of `cuda.h`, by number
ATTRIBUTES = {
    1: "context",
    2: "memory type",
    7: "buffer id",
    8: "is managed",
    9: "device ordinal",
    10: "is legacy IPC capable",
    11: "range start",
    12: "range size",
    14: "allowed handle types",
    17: "mempool handle",
}


class _Location(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("ordinal", ctypes.c_int))


class _AllocationProperties(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _PoolProperties(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("reserved", ctypes.c_ubyte * 64),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_DEVICE = _Location(1, 0)
_PINNED, _DESCRIPTORS, _READ_WRITE = 1, 1, 3

cuda = ctypes.CDLL("libcuda.so.1")


def call(function: str, *arguments: object) -> int:
    """Call the driver, and print what it says unless that is success."""
    status: int = getattr(cuda, function)(*arguments)
    if status != 0:
        print(f"    {function}: {status}")
    return status


def allocated(function: str, *arguments: object) -> int:
    """Allocate, and give the address; 0 if the driver refuses."""
    pointer = ctypes.c_uint64()
    call(function, ctypes.byref(pointer), *arguments)
    return pointer.value


def of_pool(handles: int) -> int:
    """Allocate of a pool of our own, whose handles are of that kind."""
    pool = ctypes.c_void_p()
    properties = _PoolProperties(_PINNED, handles, _DEVICE)
    call("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(properties))
    return allocated("cuMemAllocFromPoolAsync", ctypes.c_size_t(4 * _MIB), pool, None)


def mapped(handles: int) -> int:
    """Map memory twice, side by side, and leave as much of the reservation empty."""
    pointer = allocated("cuMemAddressReserve", ctypes.c_size_t(4 * _GRANULE), 0, 0, 0)
    properties = _AllocationProperties(_PINNED, handles, _DEVICE)
    access = _Access(_DEVICE, _READ_WRITE)
    size = ctypes.c_size_t(_GRANULE)
    for number in (0, 1):
        handle, at = ctypes.c_uint64(), ctypes.c_uint64(pointer + number * _GRANULE)
        call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), 0)
        call("cuMemMap", at, size, 0, handle, 0)
        call("cuMemSetAccess", at, size, ctypes.byref(access), 1)
    return pointer


def describe(pointer: int) -> None:
    """Print each attribute, status and value, and who exports it."""
    found = []
    for number, name in ATTRIBUTES.items():
        value = ctypes.c_uint64()
        status = cuda.cuPointerGetAttribute(ctypes.byref(value), number, ctypes.c_uint64(pointer))
        found.append(f"{name} {value.value:#x}" if status == 0 else f"{name} error {status}")
    print("    " + ", ".join(found))
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    places = ctypes.byref(base), ctypes.byref(size)
    status = cuda.cuMemGetAddressRange_v2(*places, ctypes.c_uint64(pointer))
    print(f"    cuMemGetAddressRange: {status}, {base.value:#x}, {size.value:#x}")
    room = (ctypes.c_ubyte * 64)()
    for function in ("cuIpcGetMemHandle", "cuMemPoolExportPointer"):
        status = getattr(cuda, function)(ctypes.byref(room), ctypes.c_uint64(pointer))
        print(f"    {function}: {status}")


def copy(size: int, count: int = 64) -> None:
    """Print how fast the device copies from one place to another, many times without waiting."""
    source, target = (allocated("cuMemAlloc_v2", ctypes.c_size_t(size)) for _ in range(2))
    stream = ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(stream), 1)
    places = ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(size)
    best = asked_s = 0.0
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(count):
            cuda.cuMemcpyAsync(*places, stream)
        asked_s = time.perf_counter() - begun
        call("cuStreamSynchronize", stream)
        taken_s = time.perf_counter() - begun
        best = max(best, count * size / taken_s)
    print(f"copies of {size} bytes: {best / 1e9:.1f} GB/s, {asked_s / count * 1e6:.1f} us to ask")


def typical_us(step: Callable[[], object], count: int = 200) -> float:
    """Give the median time of a step in microseconds."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken) * 1e6


def until_known(size: int) -> None:
    """Print how long a copy takes until it is known to be over, by each way to learn of it."""
    source, target = (allocated("cuMemAlloc_v2", ctypes.c_size_t(size)) for _ in range(2))
    places = ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(size)
    stream, event = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(stream), 1)
    call("cuEventCreate", ctypes.byref(event), 2)
    flag = ctypes.c_void_p()
    libc = ctypes.CDLL(None)
    semaphore = ctypes.create_string_buffer(64)
    libc.sem_init(semaphore, 0, 0)
    post = ctypes.cast(libc.sem_post, ctypes.c_void_p)

    def by_synchronizing() -> None:
        cuda.cuMemcpyAsync(*places, stream)
        cuda.cuStreamSynchronize(stream)

    def by_query() -> None:
        cuda.cuMemcpyAsync(*places, stream)
        cuda.cuEventRecord(event, stream)
        while cuda.cuEventQuery(event):
            pass

    def by_flag() -> None:
        value = ctypes.c_uint32.from_address(flag.value or 0)
        value.value = 0
        cuda.cuMemcpyAsync(*places, stream)
        # Memory of the host has one address for both.
        if cuda.cuStreamWriteValue32_v2(stream, flag, 1, 0) == 0:
            while value.value == 0:
                pass

    def by_host_function() -> None:
        cuda.cuMemcpyAsync(*places, stream)
        cuda.cuLaunchHostFunc(stream, post, semaphore)
        libc.sem_wait(semaphore)

    ways = [by_synchronizing, by_query, by_host_function]
    if hasattr(cuda, "cuStreamWriteValue32_v2"):
        call("cuMemHostAlloc", ctypes.byref(flag), ctypes.c_size_t(64), 1)
        ways.append(by_flag)
    found = (f"{way.__name__} {typical_us(way):.1f}" for way in ways)
    print(f"copy of {size} bytes until it is known to be over, us: {', '.join(found)}")


def ask() -> None:
    """Print how long single calls take."""
    stream, event = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(stream), 1)
    call("cuEventCreate", ctypes.byref(event), 2)
    pointer = ctypes.c_uint64(allocated("cuMemAlloc_v2", ctypes.c_size_t(_MIB)))
    numbers = (ctypes.c_int * 4)(1, 2, 7, 9)
    room = (ctypes.c_uint64 * 4)()
    places = (ctypes.c_void_p * 4)(*(ctypes.addressof(room) + 8 * n for n in range(4)))
    handle = (ctypes.c_ubyte * 64)()
    steps: dict[str, Callable[[], object]] = {
        "cuEventRecord": lambda: cuda.cuEventRecord(event, stream),
        "cuEventQuery": lambda: cuda.cuEventQuery(event),
        "cuStreamWaitEvent": lambda: cuda.cuStreamWaitEvent(stream, event, 0),
        "cuStreamQuery": lambda: cuda.cuStreamQuery(stream),
        "cuCtxGetDevice": lambda: cuda.cuCtxGetDevice(room),
        "cuPointerGetAttributes": lambda: cuda.cuPointerGetAttributes(4, numbers, places, pointer),
        "cuIpcGetMemHandle": lambda: cuda.cuIpcGetMemHandle(handle, pointer),
    }
    print("calls, us: " + ", ".join(f"{name} {typical_us(it):.1f}" for name, it in steps.items()))


def legacy_query() -> None:
    """Print whether a query of the legacy stream counts what is under way on a blocking one.

    It waits for them where something is put on it; of a query the documentation does not say.
    """
    stream, legacy = ctypes.c_void_p(), ctypes.c_void_p(1)
    call("cuStreamCreate", ctypes.byref(stream), 0)
    size = ctypes.c_size_t(256 * _MIB)
    pointer = ctypes.c_uint64(allocated("cuMemAlloc_v2", size))
    call("cuCtxSynchronize")
    for _ in range(200):
        call("cuMemsetD8Async", pointer, ctypes.c_ubyte(1), size, stream)
    of_legacy, of_blocking = cuda.cuStreamQuery(legacy), cuda.cuStreamQuery(stream)
    print(f"work on a blocking stream: it says {of_blocking}, the legacy stream {of_legacy}")
    call("cuCtxSynchronize")
    call("cuMemFree_v2", pointer)


def main() -> None:
    """Look at each kind at its beginning and within, with a context and without."""
    call("cuInit", 0)
    version, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuDriverGetVersion", ctypes.byref(version))
    print(f"driver of CUDA {version.value}")
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    size = ctypes.c_size_t(4 * _MIB)
    kinds: dict[str, Callable[[], int]] = {
        "cuMemAlloc, 6 bytes": lambda: allocated("cuMemAlloc_v2", ctypes.c_size_t(6)),
        "cuMemAlloc, 4 MiB": lambda: allocated("cuMemAlloc_v2", size),
        "managed": lambda: allocated("cuMemAllocManaged", size, 1),
        "default pool": lambda: allocated("cuMemAllocAsync", size, None),
        "pool with descriptors": lambda: of_pool(_DESCRIPTORS),
        "cuMemCreate": lambda: mapped(0),
        "cuMemCreate with descriptors": lambda: mapped(_DESCRIPTORS),
    }
    for name, allocate in kinds.items():
        print(name)
        pointer = allocate()
        call("cuCtxSynchronize")
        for offset in (0, 3, _GRANULE - 1):
            print(f"  at {pointer:#x} + {offset:#x}")
            describe(pointer + offset)
        call("cuCtxSetCurrent", None)
        print("  without a context")
        describe(pointer)
        call("cuCtxSetCurrent", context)
        if name.startswith("cuMemAlloc"):
            call("cuMemFree_v2", ctypes.c_uint64(pointer))
            print("  freed")
            describe(pointer)
    for nbytes in (8, _MIB, 64 * _MIB, 256 * _MIB):
        copy(nbytes)
        until_known(nbytes)
    legacy_query()
    ask()


if __name__ == "__main__":
    main()
