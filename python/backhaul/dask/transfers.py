"""Where bytes and time went: who has sent what to whom, over which lane, how fast.

Workers count what they receive and put it into their heartbeats (`backhaul.dask.flows`); the
scheduler keeps it in a ledger (`backhaul.dask.ledger`), which `transfers` reads and a page of the
dashboard shows. ``docs/transfers.md`` says what each number means.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from time import time
from typing import TYPE_CHECKING, Any

from distributed import Client, Scheduler, Worker

from backhaul.dask import dashboard, prometheus
from backhaul.dask.config import transfers_links_max
from backhaul.dask.facts import heartbeat_difference
from backhaul.dask.flows import SIZE_CLASSES, Reporter, timed_bytes_min
from backhaul.dask.ledger import Ledger
from backhaul.errors import NotObserved

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pandas as pd

__all__ = ["Account", "install_for_scheduler", "install_for_worker", "transfers"]

logger = logging.getLogger(__name__)

#: Under this name a heartbeat carries a report.
_METRIC = "backhaul-transfers"
_HEARTBEAT = "heartbeat_worker"
#: How long workers are waited for, in seconds.
_REFRESH_S = 5
#: Workers that may have left before the ledger is told, while nobody looks at it.
_LEAVERS_MAX = 64


def transfers(client: Client, *, refresh: bool = True) -> pd.DataFrame | Awaitable[pd.DataFrame]:
    """Tell who has sent what to whom, over which lane and how fast, since each of them started.

    Every message that a worker or the scheduler has received over Backhaul is in it once: results
    that a worker asked for, scattered and shuffled data, and Dask's own messages. What comes over
    Dask's own ``tcp://`` is not: a cluster without Backhaul has no rows. What a client receives is
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
        An awaitable of it if the client is asynchronous. One row for each link (receiver, sender
        and lane) and class of message sizes, with the columns

        - ``receiver``, ``sender`` (str): addresses of workers or of the scheduler. A process that
          holds several has the first one and how many more; one that holds none, like a client, has
          its process id and host; ``(others)`` stands for what is not told apart any more.
        - ``lane`` (category): ``inproc``, ``shm`` or ``tcp``.
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
    >>> timed = frame.dropna(subset="seconds")  # doctest: +SKIP
    >>> timed.groupby(["receiver", "sender"])[["bytes", "seconds"]].sum()  # doctest: +SKIP
    """
    found: pd.DataFrame | Awaitable[pd.DataFrame] = client.sync(_transfers, client, refresh)
    return found


async def _transfers(client: Client, refresh: bool) -> pd.DataFrame:
    if refresh:
        # A worker that is leaving, or has no Backhaul, has nothing to add.
        try:
            await asyncio.wait_for(client.run(_report_now, on_error="ignore"), _REFRESH_S)
        except TimeoutError:
            warnings.warn(
                f"Not all workers reported within {_REFRESH_S} s: "
                "of those that did not, the last heartbeats count",
                stacklevel=2,
            )
    try:
        rows = await client.run_on_scheduler(_rows)
    except ModuleNotFoundError:
        rows = None
    if rows is None:
        scheduler: Any = client.scheduler
        workers = list((await scheduler.identity())["workers"])
        ours = [address for address in workers if address.startswith("backhaul://")]
        if ours:
            raise NotObserved(
                f"the scheduler {scheduler.address} keeps no account of transfers, though "
                f"{len(ours)} workers use Backhaul, like {ours[0]}: have it load "
                "backhaul.dask.preload (distributed.scheduler.preload), and leave "
                "distributed.comm.backhaul.transfers.enabled true"
            )
    return _frame(rows or [])


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
    frame["lane"] = frame["lane"].astype(pd.CategoricalDtype(["inproc", "shm", "tcp"]))
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
    """Have a worker tell the scheduler everything; runs on the worker."""
    metric = dask_worker.metrics.get(_METRIC)
    if isinstance(metric, WorkerMetric):
        metric.tell_all()
        await dask_worker.heartbeat()


def _rows(dask_scheduler: Scheduler) -> list[tuple[Any, ...]] | None:
    """Give what the scheduler knows, as plain values; runs on the scheduler."""
    account = _installed(dask_scheduler)
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


class WorkerMetric:
    """What a worker calls for each heartbeat, as it calls its other metrics."""

    def __init__(self) -> None:
        self._reporter = Reporter()
        self._tells_all = False

    def __call__(self, worker: Worker) -> dict[str, Any]:
        """Make a report."""
        if self._tells_all:
            self._tells_all = False
            return self._reporter(changed_max=None)
        return self._reporter()

    def tell_all(self) -> None:
        """Have the next report leave out nothing."""
        self._tells_all = True


class Account:
    """Keeps the ledger of a scheduler.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.
    links_max : int
        Most links that are told apart.

    Notes
    -----
    The handler of heartbeats is replaced on the instance by one that takes the report out and calls
    upstream's. It is no plugin of Dask's: the scheduler calls each of these for each transition of
    a task, whether it cares or not, which would cost microseconds per task.
    """

    def __init__(self, scheduler: Scheduler, links_max: int) -> None:
        self._scheduler = scheduler
        self._ledger = Ledger(links_max=links_max)
        self._own = Reporter()
        self._upstream: Callable[..., Any] = scheduler.handlers[_HEARTBEAT]
        self._is_warned = False

    def attach(self) -> None:
        """Take our place on the scheduler."""
        self._scheduler.handlers[_HEARTBEAT] = self.heartbeat_worker

    def current(self) -> Ledger:
        """Give the ledger, with what the scheduler itself has received up to now."""
        own = self._own(changed_max=None)
        self._ledger.handle_report(self._scheduler.address, own, time())
        self._ledger.leave_all_but({self._scheduler.address, *self._scheduler.workers})
        return self._ledger

    def heartbeat_worker(self, *, address: str, metrics: dict[str, Any], **others: Any) -> Any:
        """Handle a heartbeat, and note the report in it."""
        report = metrics.pop(_METRIC, None)
        answer = self._upstream(address=address, metrics=metrics, **others)
        address = self._scheduler.coerce_address(address)
        # One that is unknown is on its way out.
        if report is not None and address in self._scheduler.workers:
            self._note(address, report)
        return answer

    def _note(self, address: str, report: Any) -> None:
        try:
            self._ledger.handle_report(address, report, time())
        except Exception as error:
            # Whatever it is: a worker whose heartbeat fails closes.
            if not self._is_warned:
                self._is_warned = True
                logger.warning(
                    "Left out what worker %s reported of transfers, as another release of "
                    "Backhaul may: %r",
                    address,
                    error,
                )
        # Nobody may look for days, while workers come and go.
        if self._ledger.present > len(self._scheduler.workers) + _LEAVERS_MAX:
            self._ledger.leave_all_but({self._scheduler.address, *self._scheduler.workers})


def install_for_scheduler(scheduler: Scheduler) -> None:
    """Have a scheduler keep an account of transfers, and show it; again costs nothing."""
    links_max = transfers_links_max()
    if links_max is None or _installed(scheduler) is not None:
        return
    difference = heartbeat_difference(scheduler)
    if difference is not None:
        logger.warning("Backhaul keeps no account of transfers: distributed has %s", difference)
        return
    account = Account(scheduler, links_max)
    account.attach()
    prometheus.install()
    try:
        dashboard.install(scheduler, account.current)
    except Exception:
        # In a release of Dask or Bokeh that we have not read: the scheduler starts all the same.
        logger.warning("The dashboard has no page %s", dashboard.PAGE, exc_info=True)


def install_for_worker(worker: Worker) -> None:
    """Have a worker tell what it receives; again costs nothing."""
    if transfers_links_max() is not None and _METRIC not in worker.metrics:
        worker.metrics[_METRIC] = WorkerMetric()
        prometheus.install()


def _installed(scheduler: Scheduler) -> Account | None:
    account = getattr(scheduler.handlers.get(_HEARTBEAT), "__self__", None)
    return account if isinstance(account, Account) else None
