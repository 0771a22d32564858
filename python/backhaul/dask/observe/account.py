"""Account of transfers on a scheduler, from the reports of its workers."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from time import monotonic, time
from typing import Any

from distributed import Scheduler

from backhaul.dask.comm.ucx_scheme import is_ours
from backhaul.dask.compat.instance_patches import SCHEDULER_ACCOUNT
from backhaul.dask.config.settings import transfers_links_max
from backhaul.dask.observe import dashboard, prometheus
from backhaul.dask.observe.counters import Report, Reporter
from backhaul.dask.observe.exchange_counters import ExchangeAccount
from backhaul.dask.observe.heartbeat import METRIC
from backhaul.dask.observe.ledger import Ledger
from backhaul.dask.observe.link_estimates import LinkAccount
from backhaul.dask.observe.spill_history import SpillHistory
from backhaul.dask.observe.transfer_history import TransferHistory

__all__ = ["Account", "account_of", "install"]

logger = logging.getLogger(__name__)

#: Workers that may have left before the ledger is updated, while no program reads it
_LEAVERS_MAX = 64


def install(scheduler: Scheduler) -> None:
    """Keep an account of transfers on a scheduler, and show it; again costs nothing."""
    links_max = transfers_links_max()
    if links_max is None or account_of(scheduler) is not None:
        return
    account = Account(scheduler, links_max)
    if not account.attach():
        return
    prometheus.install()
    try:
        dashboard.install(
            scheduler, account.current, account.links, account.history, account.exchanges
        )
    except Exception:
        # In a release of Dask or Bokeh that we have not read: the scheduler starts all the same.
        logger.warning("The dashboard has no page %s", dashboard.PAGE, exc_info=True)


class Account:
    """Keeps the ledger of a scheduler, with at most so many links that are listed apart.

    The handler of heartbeats is replaced on the instance by one that takes the report out and calls
    upstream's. It is no plugin of Dask's: the scheduler calls each of these for each transition of
    a task, whether it cares or not, which would cost microseconds per task.
    """

    def __init__(self, scheduler: Scheduler, links_max: int) -> None:
        self._scheduler = scheduler
        self._ledger = Ledger(links_max=links_max)
        #: How fast links are, as their receivers say
        self.links = LinkAccount(links_max)
        #: Spilled bytes by time
        self.spills = SpillHistory()
        #: Bytes that the workers received lately, by lane
        self.history = TransferHistory()
        #: Counts of the last exchanges
        self.exchanges = ExchangeAccount()
        #: Called with the address of a worker that has reported links, and with the report
        self.listeners: list[Callable[[str, Report], object]] = []
        self._own = Reporter()
        self._upstream: Callable[..., Any] = scheduler.handlers["heartbeat_worker"]
        self._is_warned = False

    def attach(self) -> bool:
        """Take our place on the scheduler, if it is one that was read."""
        slot, *_ = SCHEDULER_ACCOUNT.slots
        return bool(SCHEDULER_ACCOUNT.install(self._scheduler, {slot: self.heartbeat_worker}))

    def current(self) -> Ledger:
        """Give the ledger, with what the scheduler itself has received up to now."""
        own = self._own(changed_max=None)
        address = self.address
        self._ledger.handle_report(address, own, time())
        self._ledger.leave_all_but({address, *self._scheduler.workers})
        self.links.keep(self._scheduler.workers, thoroughly=True)
        return self._ledger

    def heartbeat_worker(self, *, address: str, metrics: dict[str, Any], **others: Any) -> Any:
        """Handle a heartbeat, and note the report in it."""
        report = metrics.pop(METRIC, None)
        answer = self._upstream(address=address, metrics=metrics, **others)
        self.spills.note(self._scheduler.cumulative_worker_metrics, time())
        address = self._scheduler.coerce_address(address)
        # A worker that the scheduler does not know has been removed: it will close itself.
        if report is not None and address in self._scheduler.workers:
            self._note(address, report)
        return answer

    def _note(self, address: str, report: Any) -> None:
        try:
            self.history.note(self._ledger.handle_report(address, report, time()), monotonic())
            self.links.handle_report(address, self._scheduler.workers[address].host, report)
            self.exchanges.note(address, report.get("exchanges", ()))
            for told in self.listeners:
                told(address, report)
        except Exception as error:
            # Nothing may come out of here: a worker whose heartbeat fails closes itself.
            if not self._is_warned:
                self._is_warned = True
                logger.warning(
                    "Left out what worker %s reported of transfers, as another release of "
                    "Backhaul may: %r",
                    address,
                    error,
                )
        self.links.keep(self._scheduler.workers)
        # `current` drops workers that left, but it may not be called for days.
        if self._ledger.present > len(self._scheduler.workers) + _LEAVERS_MAX:
            self._ledger.leave_all_but({self.address, *self._scheduler.workers})

    @property
    def address(self) -> str:
        """Give the scheduler's address that bytes come in at; its first one may be of Dask's."""
        listeners: list[Any] = getattr(self._scheduler, "listeners", [])
        addresses = [str(each.contact_address) for each in listeners]
        ours = (each for each in addresses if is_ours(each))
        return next(ours, str(self._scheduler.address))


def account_of(scheduler: Scheduler) -> Account | None:
    """Find the account that a scheduler keeps; None if it keeps none."""
    handler: Any = scheduler.handlers.get("heartbeat_worker")
    # A core that has the scheduler's state gets heartbeats first.
    account = getattr(inspect.unwrap(handler), "__self__", None) if handler is not None else None
    return account if isinstance(account, Account) else None
