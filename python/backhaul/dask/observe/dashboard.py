"""The page ``/backhaul`` of the scheduler's dashboard: senders, receivers, rates and lanes.

The page is an application of Bokeh's beside Dask's own, on the same server and port, and has its
entry in the navigation of all pages. Without Bokeh, or with the dashboard switched off, there is
none.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, thread_time, time
from typing import TYPE_CHECKING, Any

import distributed.http
from distributed import Scheduler
from jinja2 import Environment, FileSystemLoader
from tornado.ioloop import IOLoop

from backhaul.dask.compat.instance_patches import DASHBOARD_PAGES
from backhaul.dask.observe.ledger import Ledger
from backhaul.dask.observe.link_estimates import LinkAccount
from backhaul.dask.observe.matrix import Cell, Matrix, Peer, amount, duration, matrix_of
from backhaul.dask.observe.page_html import EXPECTED_BYTES, TOOLTIP, expectation, head, sums

if TYPE_CHECKING:
    from bokeh.document import Document

__all__ = ["PAGE", "UNTIMED_COLOR", "Page", "install"]

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
#: Side of the matrix that cells share, and the sides that one may have, in pixels.
_SIDE_PX, _CELL_MIN_PX, _CELL_MAX_PX = 760, 11, 120
#: Ends of the scale of colours, in bytes per second: the same on every page, whatever is in it.
_SLOWEST, _FASTEST = 1e7, 1e11
#: Colour of a cell of which no bandwidth is known.
UNTIMED_COLOR = "#d5d5d0"

_COLUMNS = (
    *("x", "y", "color", "text_color", "lane_text", "rate_text"),
    *("receiver", "sender", "lanes", "bandwidth", "bytes", "messages", "seconds", "lent", "recent"),
    *("expected", "receiver_name", "sender_name"),
)


def install(scheduler: Scheduler, ledger: Callable[[], Ledger], links: LinkAccount) -> bool:
    """Add the page to a scheduler's dashboard; does nothing if it has none.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler, in its event loop.
    ledger : callable
        Gives the ledger as it is now.
    links : LinkAccount
        Estimates of links.

    Returns
    -------
    bool
        Whether there is a page now.
    """
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
        {PAGE: functools.partial(_document, ledger, links)},
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
    scheduler: Scheduler,
    extra: dict[str, Any],
    doc: Document,
) -> None:
    page = Page(lambda: _look(scheduler, ledger(), links))
    page.update()
    doc.title = "Dask: Backhaul"
    doc.add_root(page.root)
    doc.template = _templates().get_template("simple.html")
    doc.template_variables.update(extra)
    doc.add_periodic_callback(page.update, _INTERVAL_MS)


def _look(scheduler: Scheduler, ledger: Ledger, links: LinkAccount) -> Matrix:
    peers = [Peer(ws.address, ws.host, str(ws.name)) for ws in scheduler.workers.values()]
    matrix = matrix_of(ledger, peers, time())
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
    """The view of one browser.

    Parameters
    ----------
    look : callable
        Gives the matrix as it is now.
    """

    def __init__(self, look: Callable[[], Matrix]) -> None:
        from bokeh.layouts import column, row
        from bokeh.models import ColumnDataSource, FixedTicker, Range1d
        from bokeh.models.widgets import Div
        from bokeh.palettes import Viridis256

        self._look = look
        #: When the next look may be taken, by the monotonic clock
        self._rest_until_s = -math.inf
        self._palette = Viridis256
        #: Workers at the edges, and content of the cells, as shown last
        self._edges: object = None
        self._cells: object = None
        #: Cells have room for a letter only.
        self._is_short = False
        self.source = ColumnDataSource({name: [] for name in _COLUMNS}, name="backhaul-cells")
        self.hosts = ColumnDataSource({"x0": [], "y0": [], "x1": [], "y1": []})
        self._range_x, self._range_y = Range1d(start=0, end=1), Range1d(start=1, end=0)
        self._ticker = FixedTicker(ticks=[])
        self._head = Div(name="backhaul-head", sizing_mode="stretch_width")
        self._sums = Div(name="backhaul-sums", width=460)
        self.figure = self._make_figure()
        self.root = column(
            self._head,
            row(self.figure, self._sums, spacing=32),
            name="backhaul",
            sizing_mode="stretch_width",
        )

    def update(self) -> None:
        """Show what is new, unless that has just cost so much that a pause is due."""
        if monotonic() < self._rest_until_s:
            return
        started_s = thread_time()
        self._show()
        cost_s = (thread_time() - started_s) * _WITH_WRITING
        self._rest_until_s = monotonic() + cost_s / _CPU_SHARE

    def _show(self) -> None:
        matrix = self._look()
        self._head.text = head(matrix)
        edges = (matrix.titles, matrix.labels)
        cells = [(cell.row, cell.column, cell.counts) for cell in matrix.cells]
        if (edges, cells) == (self._edges, self._cells):
            return
        if edges != self._edges:
            self._stage_ready_tasks(matrix)
        self._edges, self._cells = edges, cells
        self._sums.text = sums(matrix, with_letters=self._is_short)
        columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        for cell in matrix.cells:
            for name, value in self._cell(matrix, cell).items():
                columns[name].append(value)
        self.source.data = columns

    def _make_figure(self) -> Any:
        from bokeh.models import FixedTicker, HoverTool, LogColorMapper
        from bokeh.models.annotations import ColorBar
        from bokeh.plotting import figure

        plot = figure(
            x_range=self._range_x,
            y_range=self._range_y,
            x_axis_location="above",
            x_axis_label="sender",
            y_axis_label="receiver",
            tools="",
            toolbar_location=None,
            background_fill_color="#f1f1ee",
            border_fill_color=None,
            outline_line_color=None,
            min_border=8,
            name="backhaul-matrix",
        )
        plot.grid.grid_line_color = "#ffffff"
        plot.grid.grid_line_width = 2
        plot.axis.ticker = self._ticker
        for grid in plot.grid:
            grid.ticker = FixedTicker(ticks=[])
        plot.axis.axis_line_color = None
        plot.axis.major_tick_line_color = None
        plot.axis.axis_label_text_font_style = "normal"
        plot.axis.axis_label_text_color = "#777777"
        cells = plot.rect(
            "x", "y", width=1, height=1, color="color", line_color="#ffffff", source=self.source
        )
        hosts = plot.segment(
            "x0", "y0", "x1", "y1", color="#444444", line_width=1.5, source=self.hosts
        )
        hosts.level = "overlay"
        font: dict[str, Any] = {
            "text_color": "text_color",
            "text_align": "center",
            "text_baseline": "middle",
            "source": self.source,
        }
        self._lane_text = plot.text("x", "y", text="lane_text", text_font_style="bold", **font)
        self._rate_text = plot.text("x", "y", text="rate_text", **font)
        plot.add_tools(HoverTool(renderers=[cells], tooltips=TOOLTIP, point_policy="follow_mouse"))
        scale = LogColorMapper(palette=self._palette, low=_SLOWEST, high=_FASTEST)
        ticks = [10.0**power for power in range(7, 12)]
        bar = ColorBar(
            color_mapper=scale,
            ticker=FixedTicker(ticks=ticks),
            major_label_overrides={tick: amount(tick, "B/s") for tick in ticks},
            title="bandwidth while busy",
            title_standoff=8,
            width=14,
            padding=2,
            margin=18,
            bar_line_color=None,
            title_text_font_style="normal",
            title_text_color="#777777",
            background_fill_color=None,
        )
        plot.add_layout(bar, "right")
        return plot

    def _stage_ready_tasks(self, matrix: Matrix) -> None:
        """Fit the figure to the number of workers."""
        number = max(1, len(matrix.labels))
        cell_px = min(_CELL_MAX_PX, max(_CELL_MIN_PX, _SIDE_PX // number))
        plot = self.figure
        plot.frame_width = plot.frame_height = max(240, cell_px * number)
        cell_px = plot.frame_width // number
        self._range_x.update(start=0, end=number)
        self._range_y.update(start=number, end=0)
        middles = [position + 0.5 for position in range(number)]
        for grid in plot.grid:
            grid.ticker.ticks = list(range(1, number))
        # However small the cells, labels do not run into each other.
        step = math.ceil(9 / cell_px)
        self._ticker.ticks = middles[: len(matrix.labels) : step]
        labels = {
            middle: _shortened(label) for middle, label in zip(middles, matrix.labels, strict=False)
        }
        plot.xaxis.major_label_overrides = labels
        plot.yaxis.major_label_overrides = labels
        # Upright where they are wider than their cells.
        widest = max(map(len, labels.values()), default=0) * 7
        plot.xaxis.major_label_orientation = math.pi / 2 if widest > cell_px else 0.0
        size = f"{min(13, max(7, cell_px - 3))}px"
        plot.axis.major_label_text_font_size = size
        with_rates = cell_px >= 58
        self._rate_text.visible = with_rates
        self._lane_text.glyph.y_offset = -8 if with_rates else 0
        self._rate_text.glyph.y_offset = 9 if with_rates else 0
        lane_px = (
            13 if with_rates else min(12, max(6, round(cell_px * (0.62 if cell_px < 30 else 0.33))))
        )
        self._lane_text.glyph.text_font_size = f"{lane_px}px"
        self._rate_text.glyph.text_font_size = "12px"
        self._is_short = cell_px < 30
        ends = [0, *matrix.bounds, number] if matrix.bounds else []
        low: list[float] = [0.0] * len(ends)
        high: list[float] = [float(number)] * len(ends)
        at = [float(end) for end in ends]
        self.hosts.data = {
            "x0": at + low,
            "y0": low + at,
            "x1": at + high,
            "y1": high + at,
        }

    def _cell(self, matrix: Matrix, cell: Cell) -> dict[str, Any]:
        bandwidth, counts = cell.bandwidth_bytes_per_s, cell.counts
        color, text_color = self._colors(bandwidth)
        lane = cell.lane
        return {
            "x": cell.column + 0.5,
            "y": cell.row + 0.5,
            "color": color,
            "text_color": text_color,
            "lane_text": lane[0].upper() if self._is_short else lane,
            "rate_text": amount(bandwidth, "B/s"),
            "receiver": matrix.titles[cell.row],
            "sender": matrix.titles[cell.column],
            "receiver_name": _named(matrix, cell.row),
            "sender_name": _named(matrix, cell.column),
            "lanes": ", ".join(sorted(cell.lanes)),
            "bandwidth": amount(bandwidth, "B/s"),
            "bytes": amount(counts.nbytes, "B"),
            "messages": f"{counts.messages:,}",
            "seconds": duration(counts.seconds),
            "lent": f"{counts.lent_bytes / max(1, counts.nbytes):.0%}",
            "recent": amount(cell.recent_bytes_per_s, "B/s"),
            "expected": cell.expected or "–",
        }

    def _colors(self, bandwidth: float) -> tuple[str, str]:
        """Choose the colour of a cell, and of the text on it."""
        if math.isnan(bandwidth):
            return UNTIMED_COLOR, "#555555"
        share = math.log(max(bandwidth, 1.0) / _SLOWEST) / math.log(_FASTEST / _SLOWEST)
        share = min(1.0, max(0.0, share))
        # The upper part of the palette is light.
        return self._palette[round(share * 255)], "#222222" if share > 0.62 else "#ffffff"


def _named(matrix: Matrix, number: int) -> str:
    """Write the name of who stands at an edge, and its address where that is another text."""
    label, title = matrix.labels[number], matrix.titles[number]
    return title if label in title else f"{label}, {title}"


def _shortened(label: str) -> str:
    return label if len(label) <= 24 else f"{label[:11]}…{label[-12:]}"
