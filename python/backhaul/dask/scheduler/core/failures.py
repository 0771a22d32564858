"""Failures of tasks, as upstream keeps and sends them.

What a task raised stays as it came; the core has a number for it. What the scheduler itself finds,
the core says by the name of the exception and what it is of; here that becomes the exception
itself, with upstream's words.
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
    """What tasks raised, and where, which nobody has looked into, by what the core has of it."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Any] = {}
        self._count = 0

    def keep(self, one: Any) -> bytes:
        """Keep an exception or a traceback, and give what stands for it."""
        self._count += 1
        payload = str(self._count).encode()
        self._kept[payload] = one
        return payload

    def get(self, payload: bytes) -> Any:
        """Give what something stands for."""
        return self._kept[payload]

    def clear(self) -> None:
        """Let go of all of it, as no task is left."""
        self._kept.clear()


def found_failure(
    name: str,
    of: Mapping[str, Any],
    *,
    key: Any,
    scheduler: Any,
    departed: Mapping[str, Any] | None = None,
) -> Any:
    """Make what a task keeps as its exception of what the core found.

    Parameters
    ----------
    name : str
        Name of the exception, as the core has it.
    of : mapping of str to object
        What it is of: addresses, sizes in bytes, restrictions.
    key : Key
        The key of the task.
    scheduler : distributed.Scheduler
        Whose settings and workers it names.
    departed : mapping of str to WorkerState, optional
        Those that have left, by address.

    Returns
    -------
    bytes or distributed.protocol.Serialized
        The exception, pickled.

    Raises
    ------
    ValueError
        If the core names an exception that is not known here.
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
    """Stand for a worker that is not in the cluster any more: what is known of it, and closed."""
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
