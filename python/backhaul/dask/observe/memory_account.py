"""Account of memory: how a worker's memory divides into private, shared, lent and spilled parts.

The numbers are those of the watch of the process (`backhaul._native.MemoryWatch`), by which the
worker spills and pauses and the nanny terminates. ``docs/guides/memory.md`` says how to read them.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from dataclasses import dataclass, fields
from typing import Any

import psutil
from distributed import Client, Worker

from backhaul.dask.comm.native_context import memory_watch

__all__ = ["ProcessMemory", "WorkerMemory", "memory", "process_memory", "worker_memory"]


@dataclass(frozen=True, kw_only=True)
class ProcessMemory:
    """Memory of one process, all in bytes.

    Each page of the process is in one of ``private_bytes``, ``file_bytes``, ``arena_used_bytes``,
    ``arena_orphaned_bytes``, ``arena_free_bytes`` and ``other_shared_bytes``, or is borrowed, and
    then in the arena of the process that has lent it. The other numbers are parts of these.

    Parameters
    ----------
    resident_bytes : int
        Resident memory as the system counts it: also borrowed pages, and some pages twice.
    counted_bytes : int
        Memory by which Dask spills, pauses and terminates: private memory, files, used blocks of
        the arena, other shared memory, and borrowed memory that its owner has freed.
    private_bytes : int
        Pages of no file, as of Python objects and of pandas' and Arrow's buffers.
    file_bytes : int
        Mapped pages of files, mostly of libraries, which processes of a host share.
    arena_used_bytes : int
        Blocks of the arena that hold results or arrays of tasks.
    arena_orphaned_bytes : int
        Blocks that are freed here, while other processes still use them.
    arena_free_bytes : int
        Free blocks that keep their pages for reuse.
    lent_bytes : int
        Blocks of the arena that other processes have mapped.
    borrowed_bytes : int
        Memory of other processes that is mapped here.
    borrowed_orphaned_bytes : int
        The part of it that its owner has freed, so that it counts here.
    other_shared_bytes : int
        Shared memory of other kinds, as of connections.
    """

    resident_bytes: int
    counted_bytes: int
    private_bytes: int
    file_bytes: int
    arena_used_bytes: int
    arena_orphaned_bytes: int
    arena_free_bytes: int
    lent_bytes: int
    borrowed_bytes: int
    borrowed_orphaned_bytes: int
    other_shared_bytes: int

    @property
    def own_bytes(self) -> int:
        """Pages that are in no other process's account, so that sums over a host count once.

        Mapped files are left out, because processes share them.
        """
        arena_bytes = self.arena_used_bytes + self.arena_orphaned_bytes + self.arena_free_bytes
        return self.private_bytes + arena_bytes + self.other_shared_bytes


@dataclass(frozen=True, kw_only=True)
class WorkerMemory(ProcessMemory):
    """Memory of the process of one worker, all in bytes.

    Parameters
    ----------
    limit_bytes : int or None
        Memory limit of the worker; None without one.
    results_bytes : int
        Results in memory, by Dask's ``sizeof``. A borrowed result counts at each of its holders.
    spilled_bytes : int
        Files of results that were spilled.
    arrow_bytes : int
        Memory that Arrow's default pool has handed out, a part of ``private_bytes``; 0 where no
        module has imported Arrow.
    """

    limit_bytes: int | None
    results_bytes: int
    spilled_bytes: int
    arrow_bytes: int


def memory(client: Client) -> dict[str, WorkerMemory] | Awaitable[dict[str, WorkerMemory]]:
    """Measure the memory of each worker by its use.

    Parameters
    ----------
    client : distributed.Client
        A connected client.

    Returns
    -------
    dict of str to WorkerMemory
        By address of the worker; an awaitable of it if the client is asynchronous. Workers without
        Backhaul, or that leave meanwhile, are missing.

    Examples
    --------
    >>> found = memory(client)  # doctest: +SKIP
    >>> {address: each.counted_bytes / each.limit_bytes for address, each in found.items()}
    ... # doctest: +SKIP
    >>> sum(each.own_bytes for each in found.values())  # doctest: +SKIP
    """
    found: dict[str, WorkerMemory] | Awaitable[dict[str, WorkerMemory]]
    found = client.sync(_memory, client)
    return found


async def _memory(client: Client) -> dict[str, WorkerMemory]:
    return dict(await client.run(worker_memory, on_error="ignore"))


def worker_memory(dask_worker: Worker) -> WorkerMemory:
    """Measure the memory of a worker of this process.

    Parameters
    ----------
    dask_worker : distributed.Worker
        The worker.
    """
    data: Any = dask_worker.data
    # A store of another kind, or without a limit, spills nothing.
    spilled: Any = getattr(data, "spilled_total", None)
    fast: Any = getattr(data, "fast", None)
    process = process_memory()
    return WorkerMemory(
        **{field.name: getattr(process, field.name) for field in fields(process)},
        limit_bytes=dask_worker.memory_manager.memory_limit or None,
        results_bytes=int(dask_worker.state.nbytes if fast is None else fast.total_weight),
        spilled_bytes=int(spilled.disk) if spilled is not None else 0,
        arrow_bytes=_arrow_bytes(),
    )


def process_memory() -> ProcessMemory:
    """Measure the memory of this process; all of it is private where there is no watch."""
    watch = memory_watch()
    if watch is not None:
        return ProcessMemory(**watch.account())
    resident: Any = psutil.Process().memory_info()
    shared_bytes = int(getattr(resident, "shared", 0))
    return ProcessMemory(
        resident_bytes=resident.rss,
        counted_bytes=resident.rss,
        private_bytes=resident.rss - shared_bytes,
        # Mapped files and shared memory together, which this call does not tell apart.
        file_bytes=shared_bytes,
        arena_used_bytes=0,
        arena_orphaned_bytes=0,
        arena_free_bytes=0,
        lent_bytes=0,
        borrowed_bytes=0,
        borrowed_orphaned_bytes=0,
        other_shared_bytes=0,
    )


def _arrow_bytes() -> int:
    arrow: Any = sys.modules.get("pyarrow")
    # The module may be in the middle of its import.
    pool = getattr(arrow, "default_memory_pool", None)
    return int(pool().bytes_allocated()) if pool is not None else 0
