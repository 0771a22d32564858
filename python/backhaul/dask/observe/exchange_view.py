"""Exchanges on the dashboard's page: bytes, blocks, spilled blocks and skew of the last ones."""

from __future__ import annotations

import html
from collections.abc import Mapping

from backhaul.dask.observe.exchange_counters import ExchangeAccount, ExchangeCounts
from backhaul.dask.observe.matrix import amount
from backhaul.dask.observe.page_html import SCROLLED, STYLE

__all__ = ["ExchangeView", "exchange_table"]

#: Letters of the name of an exchange that the table shows
_NAME_MAX = 16
_HEADS = (
    *("exchange", "blocks", "bytes", "in files", "from other hosts"),
    *("outputs", "rows", "largest ÷ mean"),
)


class ExchangeView:
    """The table in one browser; empty until there is an exchange."""

    def __init__(self, account: ExchangeAccount) -> None:
        from bokeh.models.widgets import Div

        self._account = account
        self._shown: dict[str, ExchangeCounts] = {}
        self.root = Div(name="backhaul-exchanges", styles=SCROLLED, stylesheets=[STYLE])

    def update(self) -> None:
        """Show what is new."""
        found = self._account.by_name()
        if found != self._shown:
            self._shown = found
            self.root.text = exchange_table(found)


def exchange_table(exchanges: Mapping[str, ExchangeCounts]) -> str:
    """Write the table of counts by name, in the order of the rows."""
    heads = "".join(f"<th{_class(at)}>{head}</th>" for at, head in enumerate(_HEADS))
    lines = "".join(
        "<tr>"
        + "".join(f"<td{_class(at)}>{cell}</td>" for at, cell in enumerate(_cells(name, counts)))
        + "</tr>"
        for name, counts in exchanges.items()
    )
    return (
        f"<table><tr>{heads}</tr>{lines}</table><p>The last merges and shuffles. "
        "The last column is the skew: rows of the largest output partition over those of the mean "
        "one.</p>"
    )


def _cells(name: str, counts: ExchangeCounts) -> tuple[str, ...]:
    in_files = f"{amount(counts.file_bytes, 'B')} in {counts.file_blocks:,}"
    return (
        html.escape(name[:_NAME_MAX]),
        f"{counts.blocks + counts.file_blocks:,}",
        amount(counts.block_bytes + counts.file_bytes, "B"),
        in_files if counts.file_blocks else "–",
        amount(counts.received_bytes, "B") if counts.received else "–",
        f"{counts.outputs:,}",
        f"{counts.output_rows:,}",
        f"{counts.skew:.1f}" if counts.output_rows else "–",
    )


def _class(column: int) -> str:
    return "" if column else ' class="text"'
