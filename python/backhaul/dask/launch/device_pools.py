"""Allocators of GPU memory that workers set up by RMM: what dask-cuda calls ``rmm_…``.

RMM, the RAPIDS Memory Manager, is not needed by Backhaul, and not imported here but in workers that
are asked for it. ``LocalCUDACluster`` of dask-cuda 26.10 documents the meaning of each option.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any

from distributed import Worker, WorkerPlugin

from backhaul.dask.launch.device_memory import DeviceBytes, device_bytes, device_memory_bytes
from backhaul.errors import ConfigError

__all__ = ["OPTIONS", "PoolOptions", "RmmSetup", "pool_options"]

#: What RMM wants sizes of pools to be multiples of, in bytes
_UNIT_BYTES = 256

#: Libraries that RMM has an allocator for
_LIBRARIES = ("cupy", "torch")

_INSTALL = "pip install 'backhaul[rmm]', or the rmm of your CUDA, where workers run"


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolOptions:
    """Values of the options, each by its name without ``rmm_``."""

    #: How much a pool begins with
    pool_size: DeviceBytes | None = None
    #: How much it, or CUDA's own pool, may grow to
    maximum_pool_size: DeviceBytes | None = None
    #: Memory that moves between host and GPU as it is touched
    managed_memory: bool = False
    #: CUDA's own pool, in the order of streams
    asynchronous: bool = False
    #: Free memory of that one above this is given back when streams are waited for
    release_threshold: DeviceBytes | None = None
    #: Where each worker writes what it allocates
    log_directory: str | None = None
    #: Whether it is counted, for the dashboard
    track_allocations: bool = False
    #: Libraries that shall allocate in the same way
    allocator_external_lib_list: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.managed_memory and self.asynchronous:
            raise ConfigError("rmm_managed_memory=True and rmm_async=True exclude each other")
        if self.release_threshold and not self.asynchronous:
            raise ConfigError(f"{self.release_threshold} needs rmm_async=True")
        if self.maximum_pool_size and not (self.pool_size or self.asynchronous):
            raise ConfigError(f"{self.maximum_pool_size} needs rmm_pool_size, or rmm_async=True")
        if self.log_directory and not (self.pool_size or self.managed_memory or self.asynchronous):
            raise ConfigError(
                f"rmm_log_directory={self.log_directory!r} logs nothing without rmm_pool_size, "
                "rmm_managed_memory=True or rmm_async=True"
            )
        first, most = self.pool_size, self.maximum_pool_size
        if first and most and first.is_fraction == most.is_fraction and first.amount > most.amount:
            raise ConfigError(f"{first} is more than {most}")

    def arguments(self, total_bytes: int, log_file: str | None) -> dict[str, Any]:
        """Return the arguments for RMM, with the bytes that the GPU has.

        They are those of ``rmm.mr.CudaAsyncMemoryResource`` if `asynchronous`, else of
        ``rmm.reinitialize``; empty if neither is asked for.
        """

        def within(amount: DeviceBytes | None) -> int | None:
            return None if amount is None else amount.within(total_bytes, unit_bytes=_UNIT_BYTES)

        if self.asynchronous:
            return {
                "initial_pool_size": within(self.pool_size),
                "release_threshold": within(self.release_threshold),
            }
        if not (self.pool_size or self.managed_memory):
            return {}
        return {
            "pool_allocator": self.pool_size is not None,
            "managed_memory": self.managed_memory,
            "initial_pool_size": within(self.pool_size),
            "maximum_pool_size": within(self.maximum_pool_size),
            "logging": log_file is not None,
            "log_file_name": log_file,
        }

    def __str__(self) -> str:
        sizes = [self.pool_size, self.maximum_pool_size, self.release_threshold]
        said = [str(size) for size in sizes if size]
        flags = {"rmm_managed_memory": self.managed_memory, "rmm_async": self.asynchronous}
        flags["rmm_track_allocations"] = self.track_allocations
        said += [f"{option}=True" for option, value in flags.items() if value]
        if self.allocator_external_lib_list:
            libraries = ",".join(self.allocator_external_lib_list)
            said.append(f"rmm_allocator_external_lib_list={libraries!r}")
        return ", ".join(said)


_NAMES = {
    "rmm_async" if f.name == "asynchronous" else f"rmm_{f.name}": f for f in fields(PoolOptions)
}
#: Names of the options
OPTIONS = tuple(_NAMES)


def pool_options(options: Mapping[str, object]) -> PoolOptions | None:
    """Read the given options, by `OPTIONS`; None if nothing is asked for.

    Raises
    ------
    ConfigError
        If a value is not understood, options contradict each other, or RMM is not installed here,
        where workers are started.
    """
    read: dict[str, Any] = {}
    for option, place in _NAMES.items():
        value = options.get(option)
        if place.name in ("pool_size", "maximum_pool_size", "release_threshold"):
            read[place.name] = device_bytes(option, value)
        elif place.name == "log_directory":
            read[place.name] = None if value is None else _directory(option, value)
        elif place.name == "allocator_external_lib_list":
            read[place.name] = _libraries(option, value)
        else:
            read[place.name] = _flag(option, value)
    wanted = PoolOptions(**read)
    if wanted == PoolOptions():
        return None
    if find_spec("rmm") is None:
        raise ConfigError(f"{wanted}: RMM is not installed: {_INSTALL}")
    return wanted


class RmmSetup(WorkerPlugin):
    """Sets up how a worker allocates memory of its GPU, before it is given tasks."""

    name = "backhaul-rmm"

    def __init__(self, options: PoolOptions) -> None:
        self.options = options

    def setup(self, worker: Worker) -> None:
        """Set it up; called by Dask in the worker.

        Raises
        ------
        ConfigError
            If RMM is not installed there, or refuses; a worker whose plugin fails does not start.
        """
        whose = f"worker {worker.name!r} cannot have {self.options}"
        try:
            rmm = importlib.import_module("rmm")
        except ImportError as error:
            raise ConfigError(f"{whose}: {error}: {_INSTALL}") from error
        try:
            self._set_up(rmm, str(worker.name))
        except Exception as error:
            raise ConfigError(f"{whose}: {type(error).__name__}: {error}") from error

    def _set_up(self, rmm: Any, name: str) -> None:
        options = self.options
        sizes = (options.pool_size, options.maximum_pool_size, options.release_threshold)
        total_bytes = 0
        if any(size and size.is_fraction for size in sizes):
            total_bytes = device_memory_bytes() or 0
            if not total_bytes:
                raise ConfigError("a fraction of the GPU's memory, but the GPU shares the host's")
        log_file = None
        if options.log_directory is not None:
            log_file = os.path.join(options.log_directory, f"rmm_log_{name}.txt")
        arguments = options.arguments(total_bytes, log_file)
        if options.asynchronous:
            resource = rmm.mr.CudaAsyncMemoryResource(**arguments)
            if options.maximum_pool_size is not None:
                most = options.maximum_pool_size.within(total_bytes, unit_bytes=_UNIT_BYTES)
                resource = rmm.mr.LimitingResourceAdaptor(resource, allocation_limit=most)
            rmm.mr.set_current_device_resource(resource)
            if log_file is not None:
                rmm.enable_logging(log_file_name=log_file)
        elif arguments:
            rmm.reinitialize(**arguments)
        if options.track_allocations:
            resource = rmm.mr.get_current_device_resource()
            rmm.mr.set_current_device_resource(rmm.mr.TrackingResourceAdaptor(resource))
        for library in options.allocator_external_lib_list:
            _tell(library)


def _tell(library: str) -> None:
    """Make a library allocate by RMM."""
    allocators = importlib.import_module(f"rmm.allocators.{library}")
    if library == "cupy":
        importlib.import_module("cupy").cuda.set_allocator(allocators.rmm_cupy_allocator)
    else:
        torch = importlib.import_module("torch")
        torch.cuda.memory.change_current_allocator(allocators.rmm_torch_allocator)


def _flag(option: str, value: object) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ConfigError(f"{option} must be True or False, got {value!r}")
    return value


def _directory(option: str, value: object) -> str:
    if not isinstance(value, str | os.PathLike) or not os.path.isdir(value):
        raise ConfigError(f"{option} must be a directory that is there, got {value!r}")
    return os.fspath(value)


def _libraries(option: str, value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value or ()
    if not isinstance(names, list | tuple):
        raise ConfigError(f"{option} must be names like 'cupy,torch', got {value!r}")
    found = tuple(str(name).strip() for name in names)
    for name in found:
        if name not in _LIBRARIES:
            raise ConfigError(f"{option} must be some of {', '.join(_LIBRARIES)}, got {name!r}")
    return found
