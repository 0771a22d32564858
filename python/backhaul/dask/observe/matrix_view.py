"""Matrix of the dashboard's page: senders, receivers, rates and lanes, with sums beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from backhaul.dask.observe.matrix import Cell, Matrix, amount, duration
from backhaul.dask.observe.page_html import SCROLLED, STYLE, TOOLTIP, head, sums

__all__ = ["LENT_COLOR", "UNTIMED_COLOR", "MatrixView"]

#: Side of the matrix that cells share, and the sides that one may have, in pixels.
_SIDE_PX, _CELL_MIN_PX, _CELL_MAX_PX = 760, 11, 120
_BORDER_PX = 8
#: Ends of the scale of colours, in bytes per second: the same on every page, whatever is in it.
_SLOWEST, _FASTEST = 1e7, 1e11
#: Powers of ten from the one to the other, short enough for a matrix of two workers
_TICKS = ("10 MB/s", "100 MB/s", "1 GB/s", "10 GB/s", "100 GB/s")
#: Colour of a cell of which no bandwidth is known.
UNTIMED_COLOR = "#d5d5d0"
#: Colour of a cell whose messages are lent, which is no colour of the scale.
LENT_COLOR = "#bcdcf5"

_COLUMNS = (
    *("x", "y", "color", "text_color", "lane_text", "rate_text"),
    *("receiver", "sender", "lanes", "bandwidth", "moved", "messages", "seconds", "lent", "recent"),
    *("expected", "receiver_name", "sender_name"),
)


class MatrixView:
    """The matrix in one browser.

    `look` returns the matrix as it is now: of hosts if its argument is true, and else of workers.
    """

    def __init__(self, look: Callable[[bool], Matrix]) -> None:
        from bokeh.layouts import column, row
        from bokeh.models import ColumnDataSource, FixedTicker, Range1d
        from bokeh.models.widgets import Div, RadioButtonGroup
        from bokeh.palettes import Viridis256

        self._look = look
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
        self._head = Div(name="backhaul-head", sizing_mode="stretch_width", stylesheets=[STYLE])
        self._sums = Div(name="backhaul-sums", styles=SCROLLED, stylesheets=[STYLE])
        self.group = RadioButtonGroup(
            labels=["workers", "hosts"], active=0, visible=False, name="backhaul-group"
        )
        self.figure = self._make_figure()
        matrix = column(self.group, self.figure, styles=SCROLLED)
        self.root = column(
            self._head,
            row(matrix, self._sums, spacing=32, styles={"flex-wrap": "wrap"}),
            sizing_mode="stretch_width",
        )

    def update(self) -> None:
        """Show what is new."""
        matrix = self._look(self.group.active == 1)
        # More workers than the matrix has room for are shown by host anyway.
        self.group.visible = len(set(matrix.hosts)) > 1 and (
            not matrix.by_host or self.group.active == 1
        )
        self._head.text = head(matrix)
        edges = (matrix.titles, matrix.labels)
        cells = [(cell.row, cell.column, cell.counts) for cell in matrix.cells]
        if (edges, cells) == (self._edges, self._cells):
            return
        if edges != self._edges:
            self._fit(matrix)
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
            min_border=_BORDER_PX,
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
        plot.axis.axis_label_text_color = "#666666"
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
            major_label_overrides=dict(zip(ticks, _TICKS, strict=True)),
            title="moved while busy",
            title_standoff=6,
            height=12,
            padding=2,
            margin=10,
            bar_line_color=None,
            title_text_font_style="normal",
            title_text_color="#666666",
            background_fill_color=None,
        )
        plot.add_layout(bar, "below")
        return plot

    def _fit(self, matrix: Matrix) -> None:
        """Fit the figure to the number of workers."""
        number = max(1, len(matrix.labels))
        cell_px = min(_CELL_MAX_PX, max(_CELL_MIN_PX, _SIDE_PX // number))
        plot = self.figure
        plot.frame_width = plot.frame_height = max(240, cell_px * number)
        # In a narrower window its box scrolls.
        plot.min_width = plot.frame_width + 2 * _BORDER_PX
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
        lent = min(counts.lent_bytes, counts.nbytes)
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
            "moved": amount(counts.nbytes - lent, "B"),
            "messages": f"{counts.messages:,}",
            "seconds": duration(counts.seconds),
            "lent": amount(lent, "B"),
            "recent": amount(cell.recent_bytes_per_s, "B/s"),
            "expected": cell.expected or "–",
        }

    def _colors(self, bandwidth: float) -> tuple[str, str]:
        """Choose the colour of a cell, and of the text on it."""
        if math.isnan(bandwidth):
            return UNTIMED_COLOR, "#555555"
        if math.isinf(bandwidth):
            return LENT_COLOR, "#222222"
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
