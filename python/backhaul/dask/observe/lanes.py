"""Which lane each pair of workers uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distributed import Client, Worker

from backhaul.dask.comm.comm import BackhaulComm

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["lane_reasons", "lanes"]


def lanes(client: Client) -> dict[tuple[str, str], str] | Awaitable[dict[tuple[str, str], str]]:
    """Find the lane from each worker to each other worker.

    Opens a connection between every two workers that have none; Dask keeps them for later use.

    Parameters
    ----------
    client : distributed.Client
        A connected client.

    Returns
    -------
    dict of (str, str) to str
        For each (from, to) pair of worker addresses, the lane: ``inproc``, ``shm``, ``ucx`` or
        ``tcp``, or, between workers that do not speak Backhaul, the scheme of their addresses. An
        awaitable of it if the client is asynchronous.

    Raises
    ------
    OSError
        If a worker cannot reach another.

    Examples
    --------
    >>> lanes(client)  # doctest: +SKIP
    {('backhaul://10.0.0.1:4001', 'backhaul://10.0.0.1:4002'): 'shm', ...}
    """
    found: dict[tuple[str, str], str] | Awaitable[dict[tuple[str, str], str]] = client.sync(
        _lanes, client
    )
    return found


async def _lanes(client: Client) -> dict[tuple[str, str], str]:
    scheduler: Any = client.scheduler
    workers = list((await scheduler.identity())["workers"])
    by_worker: dict[str, dict[str, str]] = await client.run(_lanes_from, workers)
    return {
        (source, target): lane
        for source, lanes_of_source in by_worker.items()
        for target, lane in lanes_of_source.items()
    }


async def _lanes_from(workers: list[str], dask_worker: Worker) -> dict[str, str]:
    """Find the lanes from this worker to the others; runs on the worker."""
    return {
        target: await _lane(dask_worker, target)
        for target in workers
        if target != dask_worker.address
    }


async def lane_reasons(targets: list[str], dask_worker: Worker) -> dict[str, tuple[str, str]]:
    """Find lane and reason for each address but the worker's own; to be run on the worker."""
    found: dict[str, tuple[str, str]] = {}
    for target in targets:
        if target == dask_worker.address:
            continue
        comm = await dask_worker.rpc.connect(target)
        try:
            if isinstance(comm, BackhaulComm):
                found[target] = (comm.lane, str(comm.info["reason"]))
            else:
                found[target] = (str(comm.peer_address.partition("://")[0]), "no comm of Backhaul")
        finally:
            dask_worker.rpc.reuse(target, comm)
    return found


async def _lane(dask_worker: Worker, target: str) -> str:
    comm = await dask_worker.rpc.connect(target)
    try:
        if isinstance(comm, BackhaulComm):
            return comm.lane
        return str(comm.peer_address.partition("://")[0])
    finally:
        dask_worker.rpc.reuse(target, comm)
