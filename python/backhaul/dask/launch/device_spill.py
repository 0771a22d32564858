"""Results on a GPU, of which those that were not used for longest make room for others.

A worker keeps results in a mapping, and lets its user give one. This one holds what lies on the GPU
up to a limit; beyond it, the least recently used are serialized by Dask's own serializers into
memory of the host, and come back when they are read. There they count as any result: Dask's
`SpillBuffer` writes them, and results that never were on a GPU, to disk past its own limit.

The scheme is that of dask-cuda's ``DeviceHostFile``.
"""

from __future__ import annotations

import functools
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import zict
from dask.typing import Key
from dask.utils import parse_bytes

import dask
from backhaul.dask.compat.names import (
    SpillBuffer,
    cuda_serialize,
    deserialize,
    parse_memory_limit,
    safe_sizeof,
    serialize,
)
from backhaul.dask.launch.device_memory import DeviceBytes, device_memory_bytes

__all__ = ["DeviceSpill", "OnHost", "is_on_device"]

logger = logging.getLogger("distributed.worker")

_SERIALIZERS = ("dask", "pickle")
_COLLECTIONS = (list, tuple, set, frozenset)


class OnHost:
    """Object from a GPU, as Dask has serialized it into memory of the host: header and buffers."""

    __slots__ = ("frames", "header")

    def __init__(self, header: dict[str, Any], frames: list[Any]) -> None:
        self.header = header
        self.frames = frames

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + sum(memoryview(frame).nbytes for frame in self.frames)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # To disk without a copy: a memoryview cannot be pickled, and need not be.
        frames = self.frames
        if int(protocol) >= 5:
            frames = [pickle.PickleBuffer(memoryview(frame).cast("B")) for frame in frames]
        else:
            frames = [bytes(frame) for frame in frames]
        return OnHost, (self.header, frames)


class DeviceSpill(MutableMapping[Key, object]):
    """The results of a worker: on its GPU, in memory of the host, and on disk.

    For one worker's event loop, as any mapping that Dask is given for its results.

    Parameters
    ----------
    worker_local_directory : str
        Where to write; Dask gives it by this name.
    device_limit : DeviceBytes
        Most memory of the GPU that results may take. For a GPU without memory of its own a fraction
        means no limit.
    memory_limit : str, float, int or None
        Memory of the worker, as for `distributed.Worker`.
    nthreads : int
        Threads of the worker, which define ``"auto"``.
    log : bool
        Whether each move is logged, at level INFO of ``distributed.worker``.

    Raises
    ------
    MachineError
        If the limit is a fraction, and there is no GPU.
    """

    def __init__(
        self,
        worker_local_directory: str,
        *,
        device_limit: DeviceBytes,
        memory_limit: Any,
        nthreads: int,
        log: bool = False,
    ) -> None:
        #: Objects on the host, or on disk: results, and results from the GPU as `OnHost`
        self._host = _host_mapping(worker_local_directory, memory_limit, nthreads)
        #: Keys of what is a result on the GPU, wherever it is now
        self._keys: set[Key] = set()
        said: list[Callable[[Key, object], None]] = []
        if log:
            said = [functools.partial(_log, where) for where in ("host", "GPU")]
        self._device: zict.Buffer[Key, object] = zict.Buffer(
            {},
            zict.Func(_to_host, _to_device, self._host),
            n=_bytes_max(device_limit),
            weight=_device_weight,
            fast_to_slow_callbacks=said[:1],
            slow_to_fast_callbacks=said[1:],
        )

    def __setitem__(self, key: Key, value: object) -> None:
        if key in self:
            del self[key]
        if is_on_device(value):
            self._keys.add(key)
            self._device[key] = value
        else:
            self._host[key] = value

    def __getitem__(self, key: Key) -> object:
        return self._device[key] if key in self._keys else self._host[key]

    def __delitem__(self, key: Key) -> None:
        if key in self._keys:
            self._keys.discard(key)
            del self._device[key]
        else:
            del self._host[key]

    def __contains__(self, key: object) -> bool:
        return key in self._keys or key in self._host

    def __len__(self) -> int:
        return len(self._device.fast) + len(self._host)

    def __iter__(self) -> Iterator[Key]:
        yield from self._device.fast
        yield from self._host

    @property
    def device_bytes(self) -> int:
        """Return the size of the results on the GPU, in bytes."""
        return int(self._device.fast.total_weight)

    @property
    def device_bytes_max(self) -> int:
        """Return the limit of their size, in bytes."""
        return int(self._device.fast.n)

    @property
    def fast(self) -> Any:
        """Return the mapping that Dask's memory monitor may spill; False if there is none."""
        return self._host.fast if isinstance(self._host, SpillBuffer) else False

    def evict(self) -> int:
        """Write the host's least recently used result to disk; called by Dask's memory monitor.

        Returns the bytes that this freed; -1 if it failed.
        """
        return int(self._host.evict()) if isinstance(self._host, SpillBuffer) else -1

    @property
    def spilled_total(self) -> Any:
        """Return the size on disk, as the host's mapping counts it."""
        return self._host.spilled_total if isinstance(self._host, SpillBuffer) else (0, 0)


def is_on_device(value: object) -> bool:
    """Tell whether a result, or an item of a collection that it is, lies on a GPU.

    So does what has ``__cuda_array_interface__``, and what Dask has a serializer for that leaves it
    there: arrays of CuPy and Numba, frames of cuDF, buffers of RMM.
    """
    if isinstance(value, _COLLECTIONS):
        return any(map(is_on_device, value))
    if isinstance(value, dict):
        return any(map(is_on_device, value.values()))
    if hasattr(type(value), "__cuda_array_interface__"):
        return True
    try:
        cuda_serialize.dispatch(type(value))
    except TypeError:
        return False
    return True


def _host_mapping(folder: str, memory_limit: Any, nthreads: int) -> SpillBuffer | dict[Key, object]:
    """Make what Dask would have made: as `WorkerMemoryManager` does."""
    limit_bytes = parse_memory_limit(memory_limit, nthreads, logger=logger)
    target = dask.config.get("distributed.worker.memory.target")
    spill = dask.config.get("distributed.worker.memory.spill")
    if not limit_bytes or not (target or spill):
        return {}
    disk_max = dask.config.get("distributed.worker.memory.max-spill")
    return SpillBuffer(
        os.path.join(folder, "storage"),
        target=int(limit_bytes * target) if target else sys.maxsize,
        max_spill=False if disk_max is False else parse_bytes(disk_max),
    )


def _bytes_max(limit: DeviceBytes) -> int:
    if not limit.is_fraction:
        return limit.within(0)
    total_bytes = device_memory_bytes()
    return sys.maxsize if total_bytes is None else limit.within(total_bytes)


def _device_weight(key: Key, value: object) -> int:
    return _device_bytes(value)


def _device_bytes(value: object) -> int:
    """Count the bytes of a result; the items of collections each, which Dask would estimate."""
    if isinstance(value, _COLLECTIONS):
        return sum(map(_device_bytes, value))
    if isinstance(value, dict):
        return sum(map(_device_bytes, value.values()))
    nbytes = getattr(value, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else int(safe_sizeof(value))


def _to_host(value: object) -> OnHost:
    return OnHost(*serialize(value, serializers=_SERIALIZERS, on_error="raise"))


def _to_device(kept: Any) -> object:
    return deserialize(kept.header, kept.frames)


def _log(where: str, key: Key, value: object) -> None:
    logger.info("Moved result %r, %d bytes, to the %s", key, _device_bytes(value), where)
