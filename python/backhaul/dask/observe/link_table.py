"""How fast the links between workers are expected to be, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distributed import Client, Scheduler

from backhaul.dask.observe.account import account_of
from backhaul.dask.observe.counters import SIZE_CLASSES
from backhaul.dask.observe.summaries import link_table, summarized
from backhaul.dask.observe.transfers import ask_names, ask_scheduler, ask_workers

if TYPE_CHECKING:
    from collections.abc import Awaitable

    import pandas as pd

__all__ = ["links"]

#: Size of the messages for which pairs that have not met are listed, in bytes.
_UNMET_BYTES = 4 << 20
_COLUMNS = (
    *("receiver", "sender", "lane", "memory", "size_class"),
    *("bandwidth", "latency", "samples", "origin"),
)
_ORIGINS = ("same process", "process pair", "host pair", "class", "prior")


def links(
    client: Client, *, unmet: bool = True, refresh: bool = True
) -> pd.DataFrame | Awaitable[pd.DataFrame]:
    """Tell how fast each link is, as far as its messages tell, and where that comes from.

    The receivers estimate, from the last few messages of each class of sizes; see
    ``docs/design/placement.md``. `transfers` tells what has moved, this what to expect.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    unmet : bool, default True
        List every pair of workers, also those between which nothing has moved: these have one row,
        for messages of 4 MiB. With n workers that is up to n * (n - 1) rows.
    refresh : bool, default True
        Have each worker report now, as for `transfers`.

    Returns
    -------
    pandas.DataFrame
        An awaitable of it if the client is asynchronous. It shows, and its method ``summary()``
        returns as text, one row for each pair of hosts and lane. The frame has one row for each
        link that was measured (receiver, sender, lane, memory and class of message sizes), and
        those of `unmet`, with

        - ``receiver``, ``sender`` (str): addresses of workers or of the scheduler, as for
          `transfers`.
        - ``lane`` (category): the lane of the messages; missing where there were none.
        - ``memory`` (category): ``host`` or ``device``, where the messages lay.
        - ``size_class`` (ordered category): sizes of the messages, like ``1-16MiB``.
        - ``bandwidth`` (float64): bytes per second of a message that is alone. Infinite where
          messages are lent, and their bytes do not move.
        - ``latency`` (float64): seconds that pass whatever the size; 0 where only long messages
          have come.
        - ``samples`` (int64): messages of this class that came. The last six count.
        - ``origin`` (ordered category): ``process pair`` for what was measured; ``host pair``,
          ``class`` (other links within a host, or between hosts) or ``prior`` (what is expected of
          any) for pairs that have not met; ``same process`` for workers of one process.

    Raises
    ------
    NotObserved
        If workers use Backhaul but the scheduler does not know of it.

    Examples
    --------
    >>> frame = links(client)  # doctest: +SKIP
    >>> frame.sort_values("bandwidth").head()  # the slowest links  # doctest: +SKIP
    """
    found: pd.DataFrame | Awaitable[pd.DataFrame] = client.sync(_links, client, unmet, refresh)
    return found


async def _links(client: Client, unmet: bool, refresh: bool) -> pd.DataFrame:
    if refresh:
        await ask_workers(client)
    rows = await ask_scheduler(client, _measured_and_unmet if unmet else _measured)
    return summarized(_frame(rows), link_table, await ask_names(client, rows))


def _frame(rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(rows, columns=list(_COLUMNS))
    order = ["receiver", "sender", "lane", "memory", "size_class"]
    frame = frame.sort_values(order, ignore_index=True)
    sizes = pd.CategoricalDtype(list(SIZE_CLASSES.values()), ordered=True)
    frame["size_class"] = frame["size_class"].map(SIZE_CLASSES).astype(sizes)
    frame["lane"] = frame["lane"].astype(
        pd.CategoricalDtype(["inproc", "shm", "ucx", "tcp", "tls"])
    )
    frame["memory"] = frame["memory"].astype(pd.CategoricalDtype(["host", "device"]))
    for column in ("bandwidth", "latency"):
        frame[column] = frame[column].astype("float64")
    frame["samples"] = frame["samples"].astype("int64")
    frame["origin"] = frame["origin"].astype(pd.CategoricalDtype(_ORIGINS, ordered=True))
    return frame


def _measured(dask_scheduler: Scheduler) -> list[tuple[Any, ...]] | None:
    """Give what was measured, as plain values; runs on the scheduler."""
    return _rows(dask_scheduler, unmet=False)


def _measured_and_unmet(dask_scheduler: Scheduler) -> list[tuple[Any, ...]] | None:
    """Give that, and what is expected of the other pairs; runs on the scheduler."""
    return _rows(dask_scheduler, unmet=True)


def _rows(scheduler: Scheduler, *, unmet: bool) -> list[tuple[Any, ...]] | None:
    account = account_of(scheduler)
    if account is None:
        return None
    ledger = account.current()
    found: list[tuple[Any, ...]] = []
    met = set()
    for tokens, hosts, lane, memory, bytes_min, estimate in account.links.rows():
        (sender, receiver), (sender_host, _) = tokens, hosts
        names = (
            ledger.process_name(receiver) or receiver,
            ledger.process_name(sender) or f"a process on {sender_host}",
        )
        if memory == "host":
            met.add(names)
        found.append((*names, lane, memory, bytes_min, *estimate, "process pair"))
    if unmet:
        # Workers of one process share their links.
        workers = {ledger.name_of(address): address for address in scheduler.workers}
        for receiver, to in workers.items():
            for sender, of in workers.items():
                answer = account.links.answer(of, to, _UNMET_BYTES)
                if sender != receiver and (receiver, sender) not in met and answer is not None:
                    _, bandwidth, latency, samples, origin = answer
                    size = max(b for b in SIZE_CLASSES if b <= _UNMET_BYTES)
                    expected = (bandwidth, latency, samples, origin)
                    found.append((receiver, sender, None, "host", size, *expected))
    return found
