"""History of the dashboard's page: what the workers received in the last ten minutes, by lane."""

from __future__ import annotations

from time import monotonic
from typing import Any

from backhaul.dask.observe.page_html import LANE_COLORS, STYLE, history_legend
from backhaul.dask.observe.transfer_history import INTERVAL_S, INTERVALS, TransferHistory

__all__ = ["HistoryView"]

_SPAN_S = INTERVALS * INTERVAL_S
#: Colour of a lane that the page does not know
_OTHER_COLOR = "#555555"
_LENT_ALPHA = 0.4


class HistoryView:
    """The history in one browser: a bar for each interval, stacked by lane."""

    def __init__(self, history: TransferHistory) -> None:
        from bokeh.layouts import column
        from bokeh.models import ColumnDataSource
        from bokeh.models.widgets import Div

        self._history = history
        self._shown: tuple[int, list[tuple[str, bool]]] = (-1, [])
        #: Middle of each interval, in seconds before now
        ago_s = [(at + 0.5) * INTERVAL_S - _SPAN_S for at in range(INTERVALS)]
        self.source = ColumnDataSource({"ago": ago_s}, name="backhaul-history")
        self._bars: dict[tuple[str, bool], Any] = {}
        self._title = Div(sizing_mode="stretch_width", stylesheets=[STYLE])
        self.figure = self._make_figure()
        self.root = column(
            self._title, self.figure, sizing_mode="stretch_width", styles={"max-width": "1240px"}
        )

    def update(self) -> None:
        """Show what is new: once for each interval."""
        number, rates = self._history.rates(monotonic())
        parts = list(rates)
        # Without bytes nothing moves on.
        if not parts and self._shown[1] == [] and self._shown[0] >= 0:
            return
        if (number, parts) == self._shown:
            return
        self._shown = (number, parts)
        data: dict[str, Any] = {"ago": self.source.data["ago"]}
        below = [0.0] * INTERVALS
        for lane, is_lent in [*rates, *(self._bars.keys() - rates.keys())]:
            own = rates.get((lane, is_lent), [0.0] * INTERVALS)
            above = [low + rate / 1e6 for low, rate in zip(below, own, strict=True)]
            name = _column(lane, is_lent)
            data[f"{name} from"], data[f"{name} to"] = below, above
            below = above
        self.source.data = data
        for lane, is_lent in rates:
            if (lane, is_lent) not in self._bars:
                self._bars[lane, is_lent] = self._add_bars(lane, is_lent)
        self._title.text = history_legend(rates, INTERVAL_S, _LENT_ALPHA)

    def _add_bars(self, lane: str, is_lent: bool) -> Any:
        name = _column(lane, is_lent)
        return self.figure.vbar(
            x="ago",
            width=INTERVAL_S,
            bottom=f"{name} from",
            top=f"{name} to",
            color=LANE_COLORS.get(lane, _OTHER_COLOR),
            fill_alpha=_LENT_ALPHA if is_lent else 1.0,
            line_color=None,
            source=self.source,
        )

    def _make_figure(self) -> Any:
        from bokeh.models import DataRange1d, FixedTicker, NumeralTickFormatter, Range1d
        from bokeh.plotting import figure

        plot = figure(
            x_range=Range1d(start=-_SPAN_S, end=0),
            y_range=DataRange1d(start=0, default_span=1),
            height=180,
            sizing_mode="stretch_width",
            tools="",
            toolbar_location=None,
            background_fill_color="#f1f1ee",
            border_fill_color=None,
            outline_line_color=None,
            name="backhaul-history-figure",
        )
        minutes = range(0, _SPAN_S // 60 + 1, 2)
        plot.xaxis.ticker = FixedTicker(ticks=[-60.0 * minute for minute in minutes])
        plot.xaxis.major_label_overrides = {
            -60.0 * minute: f"{minute} min ago" if minute else "now" for minute in minutes
        }
        plot.yaxis.formatter = NumeralTickFormatter(format="0,0.[000]")
        plot.grid.grid_line_color = "#ffffff"
        plot.axis.axis_line_color = None
        plot.axis.major_tick_line_color = None
        plot.axis.minor_tick_line_color = None
        return plot


def _column(lane: str, is_lent: bool) -> str:
    return f"{lane} lent" if is_lent else lane
