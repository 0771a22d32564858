"""HTML of objects in notebooks: plain tables, without scripts or styles of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from backhaul._units import format_bytes

__all__ = ["endpoint_html", "picture_html", "table_html"]


def table_html(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Write names and what they stand for.

    Parameters
    ----------
    title : str
        Title of the table.
    rows : iterable of (str, str)
        Text, which is escaped.

    Returns
    -------
    str
        HTML.
    """
    lines = "".join(
        f'<tr><td style="text-align:left"><b>{escape(name)}</b></td>'
        f'<td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in rows
    )
    return f"<div><b>{escape(title)}</b><table>{lines}</table></div>"


def endpoint_html(info: Mapping[str, Any], statistics: Mapping[str, Any]) -> str:
    """Write what is known of a connection.

    Parameters
    ----------
    info, statistics : mapping
        As `Endpoint.info` and `Endpoint.statistics` give them.

    Returns
    -------
    str
        HTML.
    """
    rows = [
        ("from", str(info["local_address"])),
        ("to", f"{info['peer_address']}, process {info['peer_pid']}"),
        ("lane", f"{info['lane']}: {info['reason']}"),
        ("carriers", ", ".join(info["carriers"]) or "none"),
        ("trust", str(info["trust"])),
        *((name, _amount(statistics, name)) for name in ("sent", "received")),
    ]
    if info["closed"]:
        rows.append(("closed", str(info["closed"])))
    return table_html("backhaul.Endpoint", rows)


def _amount(statistics: Mapping[str, Any], way: str) -> str:
    """Write how many messages went one way, and their bytes."""
    messages = statistics[f"{way}_messages"]
    counted = f"{messages:,} message{'s' * (messages != 1)}"
    return f"{counted}, {format_bytes(statistics[f'{way}_bytes'])}"


def picture_html(svg: str) -> str:
    """Put a picture into a notebook, no wider than the cell.

    Parameters
    ----------
    svg : str
        As `backhaul.topology.Machine.svg` draws it; its texts are escaped there.

    Returns
    -------
    str
        HTML.
    """
    return f'<div style="max-width:100%;overflow-x:auto">{svg}</div>'
