"""Words and tables of the dashboard's page: HTML, without Bokeh."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence

from backhaul.dask.observe.counters import Counts
from backhaul.dask.observe.matrix import Matrix, amount, duration, host_rows, size_rows

__all__ = [
    "EXPECTED_BYTES",
    "LANE_COLORS",
    "SCROLLED",
    "STYLE",
    "TOOLTIP",
    "expectation",
    "head",
    "history_legend",
    "sums",
]

#: Size of the message of which the page says what to expect, in bytes.
EXPECTED_BYTES = 16 << 20

#: Colours of the lanes.
LANE_COLORS = {
    "inproc": "#7b4ea3",
    "shm": "#1b7f79",
    "ucx": "#2f5fb3",
    "tcp": "#c4622d",
    "tls": "#a8385d",
}

#: Most hosts in the table of hosts
_HOST_ROWS_MAX = 16

#: Styles of parts that are wider than a phone: they scroll, and the page does not
SCROLLED: dict[str, str | None] = {"max-width": "100%", "overflow-x": "auto"}

#: Style sheet of the HTML
STYLE = """
:host { font-family: sans-serif; font-size: 13px; color: #222; }
.facts { display: flex; flex-wrap: wrap; gap: 6px 44px; padding: 10px 4px 6px; }
.facts b { display: block; font-size: 26px; font-weight: normal; }
.facts, .note, p, th { color: #666; }
.facts b { color: #222; }
.note { padding-left: 4px; }
table { border-collapse: collapse; white-space: nowrap; margin-bottom: 14px; }
th, td { padding: 5px 8px; text-align: right; }
th { font-weight: normal; }
td { border-bottom: 1px solid #e6e6e2; }
th.text, td.text { text-align: left; }
p { line-height: 1.5; max-width: min(460px, 100vw - 40px); white-space: normal; }
.lane { color: #fff; border-radius: 3px; padding: 1px 7px; }
.whole { white-space: nowrap; }
.key { display: inline-block; width: 11px; height: 11px; margin: 0 5px 0 14px; }
"""

#: What Bokeh shows at the mouse, of the columns of a cell.
TOOLTIP = """
<div style="font-family:sans-serif;font-size:13px;padding:2px 4px;line-height:1.5">
  <div><b>@sender_name</b> → <b>@receiver_name</b></div>
  <table style="border-spacing:10px 0;margin-left:-10px">
    <tr><td style="color:#666">lane</td><td>@lanes</td></tr>
    <tr><td style="color:#666">while busy</td><td>@bandwidth</td></tr>
    <tr><td style="color:#666">next 16 MiB</td><td>@expected</td></tr>
    <tr><td style="color:#666">now</td><td>@recent</td></tr>
    <tr><td style="color:#666">moved</td><td>@moved</td></tr>
    <tr><td style="color:#666">lent</td><td>@lent</td></tr>
    <tr><td style="color:#666">messages</td><td>@messages</td></tr>
    <tr><td style="color:#666">busy</td><td>@seconds</td></tr>
  </table>
</div>
"""


def expectation(
    seconds: float, bandwidth_bytes_per_s: float, _latency_s: float, samples: int, origin: str
) -> str:
    """Write what to expect of a message, and why; takes what `Links.answer` gives.

    Examples
    --------
    >>> expectation(0.14, 1.2e8, 1e-5, 6, "process pair")
    '140 ms at 120 MB/s, from 6 messages of this pair'
    >>> expectation(3e-5, float("inf"), 3e-5, 9, "host pair")
    '30.0 µs, lent, from 9 messages of these hosts'
    >>> expectation(0.16, 1e8, 1e-5, 0, "prior")
    '160 ms at 100 MB/s, not measured'
    """
    whose = {
        "process pair": "of this pair",
        "host pair": "of these hosts",
        "class": "over such links",
    }
    lent = math.isinf(bandwidth_bytes_per_s)
    how = ", lent" if lent else f" at {amount(bandwidth_bytes_per_s, 'B/s')}"
    told = (
        f"from {samples:,} message{'s' * (samples != 1)} {whose[origin]}"
        if origin in whose
        else "not measured"
    )
    return f"{duration(seconds)}{how}, {told}"


def head(matrix: Matrix) -> str:
    """Write the sums above the matrix."""
    lanes = matrix.lanes()
    counts = [counts for sizes in lanes.values() for counts in sizes.values()]
    lent_bytes = sum(min(count.lent_bytes, count.nbytes) for count in counts)
    moved_bytes = sum(count.nbytes for count in counts) - lent_bytes
    recent = sum(cell.recent_bytes_per_s for cell in matrix.cells)
    kind = "hosts" if matrix.by_host else "workers"
    facts = [
        (f"{len(matrix.labels)}", kind),
        (amount(moved_bytes, "B"), "moved between workers"),
        (amount(lent_bytes, "B"), "lent, not moved"),
        (amount(recent, "B/s"), "moved or lent now"),
    ]
    cards = "".join(f"<div><b>{value}</b>{text}</div>" for value, text in facts)
    note = ""
    if matrix.left_out:
        note = f"{matrix.left_out} hosts with fewer bytes are left out."
    elif not matrix.cells:
        note = "Nothing has been received over Backhaul yet."
    return f'<div class="facts">{cards}</div><div class="note">{note}</div>'


def sums(matrix: Matrix, *, with_letters: bool) -> str:
    """Write the tables beside the matrix, and what they mean, also the letters of lanes there."""
    short = (
        "In small cells <b>S</b> is shm, <b>T</b> tcp or tls, <b>U</b> ucx, <b>I</b> inproc. "
        if with_letters
        else ""
    )
    return (
        f"{_lane_table(matrix)}{_host_table(matrix)}"
        "<p>Counted by the receivers since they started. The rate is that of the bytes that moved, "
        "over the time in which any message was on its way, overlaps counted once; messages below "
        "64 KiB are not timed. Lent bytes are mapped and read in place: nothing moves, so they "
        "have no rate, and their cells are pale blue. Dark cells are slow, light ones fast. "
        f"{short}</p>"
    )


def history_legend(
    rates: Mapping[tuple[str, bool], Sequence[float]], interval_s: float, lent_alpha: float
) -> str:
    """Write the title of the history, with its colours and sums, of `TransferHistory.rates`."""
    keys = "".join(
        f'<span class="whole"><span class="key" style="background:{LANE_COLORS.get(lane, "#555")};'
        f'opacity:{lent_alpha if is_lent else 1}"></span>{html.escape(lane)}'
        f"{', lent' if is_lent else ''}: {amount(sum(each) * interval_s, 'B')}</span> "
        for (lane, is_lent), each in rates.items()
    )
    title = "Received by workers from all processes in the last 10 minutes, in MB/s:"
    return f'<div class="note">{title}{keys or " nothing"}</div>'


def _lane_table(matrix: Matrix) -> str:
    heads = ("lane", "messages of", "count", "moved", "lent", "busy", "rate")
    lines = []
    last_lane = ""
    for lane, size_class, counts, rate in size_rows(matrix):
        badge = (
            f'<span class="lane" style="background:{LANE_COLORS.get(lane, "#555")}">'
            f"{html.escape(lane)}</span>"
        )
        lines.append(
            (
                badge if lane != last_lane else "",
                html.escape(size_class).replace("&gt;=", "≥ ").replace("-", "–"),
                f"{counts.messages:,}",
                *_moved_and_lent(counts),
                "–" if math.isnan(rate) else duration(counts.seconds),
                amount(rate, "B/s"),
            )
        )
        last_lane = lane
    return _table(heads, lines, words=2)


def _host_table(matrix: Matrix) -> str:
    """Write the sums by host, if there are several."""
    rows = host_rows(matrix)
    if len(rows) < 2:
        return ""
    heads = ("host", "workers", "received", "sent", "moved within", "lent within", "now")
    lines = [
        (
            html.escape(row.host),
            f"{row.workers}",
            amount(row.received.nbytes, "B"),
            amount(row.sent.nbytes, "B"),
            *_moved_and_lent(row.within),
            amount(row.recent_bytes_per_s, "B/s"),
        )
        for row in rows[:_HOST_ROWS_MAX]
    ]
    more = len(rows) - len(lines)
    return _table(heads, lines, words=1) + (f"<p>{more} more hosts</p>" if more else "")


def _moved_and_lent(counts: Counts) -> tuple[str, str]:
    lent = min(counts.lent_bytes, counts.nbytes)
    return amount(counts.nbytes - lent, "B"), amount(lent, "B")


def _table(heads: Iterable[str], lines: Iterable[Iterable[str]], *, words: int) -> str:
    """Write a table whose first columns are words, and the others numbers."""

    def row(kind: str, texts: Iterable[str]) -> str:
        cells = (
            f"<{kind}{' class=text' if at < words else ''}>{text}</{kind}>"
            for at, text in enumerate(texts)
        )
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(row("td", line) for line in lines)
    return f"<table><thead>{row('th', heads)}</thead><tbody>{body}</tbody></table>"
