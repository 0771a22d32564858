"""`device_arrays.DeviceArray` as a class that Dask sends, for programs that tests start."""

from __future__ import annotations

import gc
from typing import Any

from device_arrays import DeviceArray

from backhaul.dask import BackhaulComm
from backhaul.dask.serialize.device_arrays import register_device_array

__all__ = ["Array", "array_of", "bytes_of", "device_bytes", "frames_of", "joined"]


class Array(DeviceArray):
    """An array on a GPU that remembers who allocated it."""

    allocated_by = "the task"


def _rebuild(frame: Any, shape: tuple[int, ...], typestr: str) -> Array:
    pointer, _ = frame.__cuda_array_interface__["data"]
    array = Array.__new__(Array)
    array.memory = frame
    array.device = 0
    array.nbytes = frame.nbytes
    array.pointer = pointer
    array._interface = {"shape": shape, "typestr": typestr}
    array._without = ()
    array.allocated_by = type(frame).__name__
    return array


register_device_array(Array, _rebuild)


def array_of(data: bytes) -> Array:
    """Make an array with these bytes; a task."""
    array = Array(len(data))
    if data:
        array.write(data)
    return array


def bytes_of(array: Array) -> tuple[bytes, str]:
    """Read an array, and tell who allocated it; a task."""
    return (array.read() if array.nbytes else b""), array.allocated_by


def joined(*arrays: Array) -> tuple[bytes, set[str]]:
    """Read arrays one after another, and tell who allocated them; a task."""
    return b"".join(map(DeviceArray.read, arrays)), {array.allocated_by for array in arrays}


def device_bytes(direction: str = "sent") -> int:
    """Count the bytes on GPUs that comms of this process have sent, or received."""
    gc.collect()
    comms = [comm for comm in BackhaulComm._instances if isinstance(comm, BackhaulComm)]
    return sum(comm._endpoint.statistics()[f"{direction}_device_bytes"] for comm in comms)


def frames_of(nbytes: int) -> Array:
    """Allocate for what comes, as a user's own allocator."""
    array = Array(nbytes)
    array.allocated_by = "the user"
    return array
