"""The page ``/backhaul`` of the scheduler's dashboard.

The page is an application of Bokeh's beside Dask's own, on the same server and port, and has its
entry in the navigation of all pages. Without Bokeh, or with the dashboard switched off, there is
none. It consists of views, one below the other: `matrix_view`, `history_view`, `exchange_view`.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, thread_time, time
from typing import TYPE_CHECKING, Any, Protocol

import distributed.http
from distributed import Scheduler
from jinja2 import Environment, FileSystemLoader
from tornado.ioloop import IOLoop

from backhaul.dask.compat.instance_patches import DASHBOARD_PAGES
from backhaul.dask.observe.exchange_counters import ExchangeAccount
from backhaul.dask.observe.exchange_view import ExchangeView
from backhaul.dask.observe.history_view import HistoryView
from backhaul.dask.observe.ledger import Ledger
from backhaul.dask.observe.link_estimates import LinkAccount
from backhaul.dask.observe.matrix import WORKERS_MAX, Matrix, Peer, matrix_of
from backhaul.dask.observe.matrix_view import MatrixView
from backhaul.dask.observe.page_html import EXPECTED_BYTES, expectation
from backhaul.dask.observe.transfer_history import TransferHistory

if TYPE_CHECKING:
    from bokeh.document import Document

__all__ = ["PAGE", "Page", "View", "install"]

logger = logging.getLogger(__name__)

#: Where the page is.
PAGE = "/backhaul"

#: Between two looks at the ledger, in milliseconds.
_INTERVAL_MS = 500
#: Most of a CPU that a page may take for one browser: 5 ms a second. The cost of a look grows with
#: the square of the number of workers, so a page of many is drawn less often.
_CPU_SHARE = 0.005
#: Time of a look in all, over the time until it returns: Bokeh writes to the browser
#: afterwards, and asks twice a second whether a look is due. 1.4 with 64 workers and cells that are
#: all new each time.
_WITH_WRITING = 1.6


class View(Protocol):
    """A part of the page in one browser."""

    #: Model of Bokeh's for the page
    root: Any

    def update(self) -> None:
        """Show what is new."""


def install(
    scheduler: Scheduler,
    ledger: Callable[[], Ledger],
    links: LinkAccount,
    history: TransferHistory,
    exchanges: ExchangeAccount,
) -> bool:
    """Add the page to a scheduler's dashboard; does nothing, and returns False, if it has none."""
    # Where Dask shows a dashboard, it has imported this.
    if "distributed.dashboard.scheduler" not in sys.modules:
        logger.info("No page %s: the dashboard is switched off, or bokeh is missing", PAGE)
        return False
    from bokeh.server.tornado import BokehTornado
    from distributed.dashboard.core import BokehApplication
    from distributed.dashboard.scheduler import template_variables

    shown = [
        app for app in scheduler.http_application.applications if isinstance(app, BokehTornado)
    ]
    if not shown:
        logger.info("No page %s: the dashboard is switched off", PAGE)
        return False
    variables = template_variables(scheduler)
    # One list for all pages of this scheduler, which draw their navigation from it.
    pages = variables["pages"]
    if PAGE.strip("/") not in pages:
        at = max(0, len(pages) - 1)
        (slot,) = DASHBOARD_PAGES.slots
        DASHBOARD_PAGES.install(variables, {slot: [*pages[:at], PAGE.strip("/"), *pages[at:]]})
    application = BokehApplication(
        {PAGE: functools.partial(_document, ledger, links, history, exchanges)},
        scheduler,
        prefix=shown[0].prefix,
        template_variables=variables,
    )
    scheduler.http_application.add_application(application)
    application.initialize(IOLoop.current())
    application.start()
    return True


def _document(
    ledger: Callable[[], Ledger],
    links: LinkAccount,
    history: TransferHistory,
    exchanges: ExchangeAccount,
    scheduler: Scheduler,
    extra: dict[str, Any],
    doc: Document,
) -> None:
    views: list[View] = [
        MatrixView(lambda by_host: _look(scheduler, ledger(), links, by_host)),
        HistoryView(history),
        ExchangeView(exchanges),
    ]
    page = Page(views)
    page.update()
    doc.title = "Dask: Backhaul"
    doc.add_root(page.root)
    doc.template = _templates().get_template("simple.html")
    doc.template_variables.update(extra)
    doc.add_periodic_callback(page.update, _INTERVAL_MS)


def _look(scheduler: Scheduler, ledger: Ledger, links: LinkAccount, by_host: bool) -> Matrix:
    peers = [Peer(ws.address, ws.host, str(ws.name)) for ws in scheduler.workers.values()]
    matrix = matrix_of(ledger, peers, time(), workers_max=0 if by_host else WORKERS_MAX)
    if not matrix.by_host:
        address_of = {ledger.name_of(peer.address): peer.address for peer in peers}
        for cell in matrix.cells:
            sender, receiver = matrix.titles[cell.column], matrix.titles[cell.row]
            answer = links.answer(address_of[sender], address_of[receiver], EXPECTED_BYTES)
            cell.expected = "" if answer is None else expectation(*answer)
    return matrix


@functools.cache
def _templates() -> Environment:
    folder = Path(next(iter(distributed.http.__path__))) / "templates"
    return Environment(loader=FileSystemLoader(folder))


class Page:
    """The page in one browser, with its views from the top."""

    def __init__(self, views: Sequence[View]) -> None:
        from bokeh.layouts import column

        self._views = views
        #: When the next look may be taken, by the monotonic clock
        self._rest_until_s = -math.inf
        self.root = column(
            *(view.root for view in views),
            name="backhaul",
            sizing_mode="stretch_width",
            spacing=16,
        )

    def update(self) -> None:
        """Show what is new, unless that has just cost so much that a pause is due."""
        if monotonic() < self._rest_until_s:
            return
        started_s = thread_time()
        for view in self._views:
            view.update()
        cost_s = (thread_time() - started_s) * _WITH_WRITING
        self._rest_until_s = monotonic() + cost_s / _CPU_SHARE
