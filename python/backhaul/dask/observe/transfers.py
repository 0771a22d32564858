"""Transfers by sender and receiver: bytes, time, lane and rate.

Workers count what they receive (`backhaul.dask.observe.counters`) and put it into their heartbeats
(`backhaul.dask.observe.heartbeat`); the scheduler keeps it in a ledger
(`backhaul.dask.observe.account`), which `transfers` reads and a page of the dashboard shows.
``docs/transfers.md`` says what each number means.
"""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING, Any

from distributed import Client, Scheduler, Worker

from backhaul.dask.comm.ucx_scheme import is_ours
from backhaul.dask.observe.account import account_of
from backhaul.dask.observe.counters import SIZE_CLASSES, timed_bytes_min
from backhaul.dask.observe.heartbeat import report_of
from backhaul.dask.observe.summaries import (
    Processes,
    process_names,
    summarized,
    transfer_table,
)
from backhaul.errors import NotObserved

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pandas as pd

__all__ = ["ask_names", "ask_scheduler", "ask_workers", "transfers"]

#: How long workers are waited for, in seconds.
_REFRESH_S = 5


def transfers(client: Client, *, refresh: bool = True) -> pd.DataFrame | Awaitable[pd.DataFrame]:
    """Return the transfers by sender and receiver, with lanes and rates, since each process began.

    Every message that a worker or the scheduler has received over Backhaul is in it once: results
    that a worker asked for, scattered and shuffled data, and Dask's own messages. Messages over
    Dask's own ``tcp://`` are not: a cluster without Backhaul has no rows. Messages to a client are
    not either.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    refresh : bool, default True
        Have each worker report now, and wait for that for 5 s at most: one that has just died, or
        holds its GIL, would keep the others waiting for longer. Otherwise the last heartbeat
        counts, and where a worker has many peers, the last but few.

    Returns
    -------
    pandas.DataFrame
        An awaitable of it if the client is asynchronous. It shows, and its method ``summary()``
        returns as text, one row for each pair of hosts and lane, with names of workers. The frame
        has one row for each link (receiver, sender and lane) and class of message sizes, with the
        columns

        - ``receiver``, ``sender`` (str): addresses of workers or of the scheduler. A process that
          holds several has the first one and how many more; one that holds none, like a client, has
          its process id and host; ``(others)`` stands for what is not told apart any more.
        - ``lane`` (category): ``inproc``, ``shm``, ``ucx``, ``tcp`` or ``tls``.
        - ``size_class`` (ordered category): sizes of the messages, like ``1-16MiB``.
        - ``messages``, ``bytes`` (int64): how many came, and their bytes.
        - ``lent_bytes`` (int64): those of the bytes that were read where they lay at the sender,
          rather than moved.
        - ``seconds`` (float64): time in which at least one of them was on its way, each moment
          divided equally among all messages on the link. Not a number below 64 KiB, where messages
          are not timed.
        - ``bandwidth`` (float64): bytes over seconds, in bytes per second.
        - ``first``, ``last`` (datetime64, UTC): when the scheduler first heard that something
          had come over the link, and when it last did.
        - ``present`` (bool): both sides are part of the cluster now.

    Raises
    ------
    NotObserved
        If workers use Backhaul but the scheduler does not know of it.

    Examples
    --------
    >>> frame = transfers(client)  # doctest: +SKIP
    >>> print(frame.summary())  # doctest: +SKIP
    >>> timed = frame.dropna(subset="seconds")  # doctest: +SKIP
    >>> timed.groupby(["receiver", "sender"])[["bytes", "seconds"]].sum()  # doctest: +SKIP
    """
    found: pd.DataFrame | Awaitable[pd.DataFrame] = client.sync(_transfers, client, refresh)
    return found


async def _transfers(client: Client, refresh: bool) -> pd.DataFrame:
    if refresh:
        await ask_workers(client)
    rows = await ask_scheduler(client, _rows)
    return summarized(_frame(rows), transfer_table, await ask_names(client, rows))


async def ask_workers(client: Client) -> None:
    """Make each worker report everything to the scheduler; warns if that takes some too long."""
    # A worker that is leaving, or has no Backhaul, has nothing to add.
    try:
        await asyncio.wait_for(client.run(_report_now, on_error="ignore"), _REFRESH_S)
    except TimeoutError:
        warnings.warn(
            f"Not all workers reported within {_REFRESH_S} s: "
            "of those that did not, the last heartbeats count",
            stacklevel=2,
        )


async def ask_scheduler(
    client: Client, rows_of: Callable[[Scheduler], list[tuple[Any, ...]] | None]
) -> list[tuple[Any, ...]]:
    """Ask the account of the scheduler for rows; none in a cluster without Backhaul.

    Raises
    ------
    NotObserved
        If workers use Backhaul but the scheduler keeps no account.
    """
    try:
        rows: list[tuple[Any, ...]] | None = await client.run_on_scheduler(rows_of)
    except ModuleNotFoundError:
        rows = None
    if rows is None:
        scheduler: Any = client.scheduler
        workers = list((await scheduler.identity())["workers"])
        ours = [address for address in workers if is_ours(address)]
        if ours:
            raise NotObserved(
                f"the scheduler {scheduler.address} keeps no account of transfers, though "
                f"{len(ours)} workers use Backhaul, like {ours[0]}: have it load "
                "backhaul.dask.preload (distributed.scheduler.preload), and leave "
                "distributed.comm.backhaul.transfers.enabled true"
            )
    return rows or []


async def ask_names(client: Client, rows: list[tuple[Any, ...]]) -> Processes:
    """Ask the scheduler for the hosts and workers that the summary of some rows names."""
    if not rows:
        return {}
    names: Processes = await client.run_on_scheduler(process_names)
    return names


def _frame(rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(
        rows,
        columns=[
            "receiver",
            "sender",
            "lane",
            "size_class",
            "messages",
            "bytes",
            "lent_bytes",
            "seconds",
            "first",
            "last",
            "present",
        ],
    )
    frame = frame.sort_values(["receiver", "sender", "lane", "size_class"], ignore_index=True)
    is_timed = frame["size_class"] >= timed_bytes_min
    names = pd.CategoricalDtype(list(SIZE_CLASSES.values()), ordered=True)
    frame["size_class"] = frame["size_class"].map(SIZE_CLASSES).astype(names)
    frame["lane"] = frame["lane"].astype(
        pd.CategoricalDtype(["inproc", "shm", "ucx", "tcp", "tls"])
    )
    for column in ("messages", "bytes", "lent_bytes"):
        frame[column] = frame[column].astype("int64")
    frame["seconds"] = frame["seconds"].astype("float64").where(is_timed)
    frame.insert(8, "bandwidth", frame["bytes"] / frame["seconds"])
    for column in ("first", "last"):
        moments = pd.to_datetime(frame[column].astype("float64"), unit="s", utc=True)
        # Pandas would choose another unit for none.
        frame[column] = moments.astype("datetime64[ns, UTC]")
    frame["present"] = frame["present"].astype(bool)
    return frame


async def _report_now(dask_worker: Worker) -> None:
    """Make a worker report everything to the scheduler; runs on the worker."""
    metric = report_of(dask_worker)
    if metric is not None:
        metric.report_all()
        await dask_worker.heartbeat()


def _rows(dask_scheduler: Scheduler) -> list[tuple[Any, ...]] | None:
    """Give what the scheduler knows, as plain values; runs on the scheduler."""
    account = account_of(dask_scheduler)
    if account is None:
        return None
    return [
        (
            row.receiver,
            row.sender,
            row.lane,
            row.bytes_min,
            *row.counts,
            row.first_s,
            row.last_s,
            row.present,
        )
        for row in account.current().rows()
    ]
