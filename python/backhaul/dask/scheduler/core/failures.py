"""Failures of tasks, in the form in which Dask keeps and sends them.

An exception that a task raised stays pickled, and the core has a number for it. For a failure that
the scheduler itself decides, the core has the name of the exception and its arguments; this module
makes the exception, with Dask's text.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from dask.utils import format_bytes

from backhaul.dask.compat.names import (
    KilledWorker,
    NoValidWorkerError,
    NoWorkerError,
    Serialized,
    Status,
    WorkerState,
    serialize,
)

__all__ = ["Raised", "found_failure", "worker_that_left"]


class Raised:
    """Exceptions and tracebacks of tasks, still pickled, by their numbers in the core."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Any] = {}
        self._count = 0

    def keep(self, one: Any) -> bytes:
        """Keep an exception or a traceback, and return its number for the core."""
        self._count += 1
        payload = str(self._count).encode()
        self._kept[payload] = one
        return payload

    def get(self, payload: bytes) -> Any:
        """Return the exception or traceback of a number."""
        return self._kept[payload]

    def clear(self) -> None:
        """Release all exceptions and tracebacks, because no task is left."""
        self._kept.clear()


def found_failure(
    name: str,
    of: Mapping[str, Any],
    *,
    key: Any,
    scheduler: Any,
    departed: Mapping[str, Any] | None = None,
) -> Any:
    """Make the exception of a task, still serialized, from a failure in the core.

    `of` are arguments of the exception of that name: addresses, sizes in bytes, restrictions. The
    settings and workers of the scheduler, and workers that have left, by address, are in its text.
    `ValueError` if the core names an exception that is not known here.
    """
    if name == "RuntimeError":
        return Serialized(*serialize(RuntimeError("Worker holding Actor was lost")))
    return pickle.dumps(_exception(name, of, key, scheduler, departed or {}))


def _exception(
    name: str, of: Mapping[str, Any], key: Any, scheduler: Any, departed: Mapping[str, Any]
) -> Exception:
    if name == "KilledWorker":
        address = of["worker"]
        last = scheduler.workers.get(address) or departed.get(address)
        last = last or worker_that_left(address, scheduler=scheduler)
        return KilledWorker(
            task=key, last_worker=last.clean(), allowed_failures=of["allowed_failures"]
        )
    if name == "MemoryError":
        text = (
            f"Task {key!r} has {format_bytes(of['input_bytes'])} worth of input dependencies, but "
            f"worker {of['worker']} has memory_limit set to {format_bytes(of['limit_bytes'])}."
        )
        if of["gathers"]:
            text += (
                " It seems like you called client.compute() on a huge collection. "
                "Consider writing to distributed storage or slicing/reducing first."
            )
        return MemoryError(text)
    if name == "NoValidWorkerError":
        return NoValidWorkerError(
            task=key,
            host_restrictions=set(of["host_restrictions"]),
            worker_restrictions=set(of["worker_restrictions"]),
            resource_restrictions=of["resource_restrictions"],
            timeout=scheduler.no_workers_timeout,
        )
    if name == "NoWorkerError":
        return NoWorkerError(task=key, timeout=scheduler.no_workers_timeout)
    raise ValueError(f"no exception that a scheduler makes: {name!r}")


def worker_that_left(address: str, **known: Any) -> Any:
    """Make a closed `WorkerState` for a worker that is not in the cluster any more."""
    return WorkerState(
        **{
            "address": address,
            "status": Status.closed,
            "pid": 0,
            "name": address,
            "memory_limit": 0,
            "local_directory": "",
            "nanny": None,
            "server_id": f"left-{address}",
            **known,
        }
    )
