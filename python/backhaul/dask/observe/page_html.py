"""Words and tables of the dashboard's page: HTML, without Bokeh."""

from __future__ import annotations

import html
import math

from backhaul.dask.observe.matrix import Matrix, amount, duration, size_rows

__all__ = ["EXPECTED_BYTES", "TOOLTIP", "expectation", "head", "sums"]

#: Size of the message of which the page says what to expect, in bytes.
EXPECTED_BYTES = 16 << 20

#: Colours of the lanes.
_LANE_COLORS = {
    "inproc": "#7b4ea3",
    "shm": "#1b7f79",
    "ucx": "#2f5fb3",
    "tcp": "#c4622d",
    "tls": "#a8385d",
}

#: What Bokeh shows at the mouse, of the columns of a cell.
TOOLTIP = """
<div style="font-family:sans-serif;font-size:13px;padding:2px 4px;line-height:1.5">
  <div><b>@sender_name</b> → <b>@receiver_name</b></div>
  <table style="border-spacing:10px 0;margin-left:-10px">
    <tr><td style="color:#777">lane</td><td>@lanes</td></tr>
    <tr><td style="color:#777">bandwidth</td><td>@bandwidth while busy</td></tr>
    <tr><td style="color:#777">next 16 MiB</td><td>@expected</td></tr>
    <tr><td style="color:#777">now</td><td>@recent</td></tr>
    <tr><td style="color:#777">bytes</td><td>@bytes, @lent lent</td></tr>
    <tr><td style="color:#777">messages</td><td>@messages</td></tr>
    <tr><td style="color:#777">busy</td><td>@seconds</td></tr>
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
    """Write what stands above the matrix."""
    lanes = matrix.lanes()
    counts = [counts for sizes in lanes.values() for counts in sizes.values()]
    nbytes = sum(count.nbytes for count in counts)
    lent_bytes = sum(count.lent_bytes for count in counts)
    recent = sum(cell.recent_bytes_per_s for cell in matrix.cells)
    kind = "hosts" if matrix.by_host else "workers"
    facts = [
        (f"{len(matrix.labels)}", kind),
        (amount(nbytes, "B"), f"received from other {kind}"),
        (amount(recent, "B/s"), "now"),
        (f"{lent_bytes / nbytes:.0%}" if nbytes else "–", "lent, not moved"),
    ]
    cards = "".join(
        f'<div style="margin-right:44px"><div style="font-size:26px;color:#222">{value}</div>'
        f'<div style="font-size:13px;color:#777">{text}</div></div>'
        for value, text in facts
    )
    note = ""
    if matrix.left_out:
        note = f"{matrix.left_out} hosts with fewer bytes are left out."
    elif not matrix.cells:
        note = "Nothing has been received over Backhaul yet."
    return (
        f'<div style="display:flex;padding:10px 4px 6px;font-family:sans-serif">{cards}</div>'
        f'<div style="color:#777;padding-left:4px">{note}</div>'
    )


def sums(matrix: Matrix, *, with_letters: bool) -> str:
    """Write the table beside the matrix, and what it means.

    Parameters
    ----------
    matrix : Matrix
        The matrix.
    with_letters : bool
        Lanes are letters there, which are explained.
    """
    cell = 'style="padding:5px 10px;text-align:right;border-bottom:1px solid #e6e6e2"'
    first = cell.replace("right", "left")
    heads = ("lane", "messages of", "count", "bytes", "lent", "busy", "bandwidth")
    lines = []
    last_lane = ""
    for lane, size_class, counts, bandwidth in size_rows(matrix):
        badge = (
            f'<span style="background:{_LANE_COLORS.get(lane, "#555")};color:#fff;'
            f'border-radius:3px;padding:1px 7px">{html.escape(lane)}</span>'
        )
        values = (
            html.escape(size_class).replace("&gt;=", "≥ ").replace("-", "–"),
            f"{counts.messages:,}",
            amount(counts.nbytes, "B"),
            f"{counts.lent_bytes / max(1, counts.nbytes):.0%}",
            "–" if math.isnan(bandwidth) else duration(counts.seconds),
            amount(bandwidth, "B/s"),
        )
        lines.append(
            f"<tr><td {first}>{badge if lane != last_lane else ''}</td><td {first}>{values[0]}</td>"
            + "".join(f"<td {cell}>{value}</td>" for value in values[1:])
            + "</tr>"
        )
        last_lane = lane
    titles = "".join(
        f'<th style="padding:5px 10px;text-align:{"left" if number < 2 else "right"};'
        f'font-weight:normal;color:#777">{text}</th>'
        for number, text in enumerate(heads)
    )
    short = (
        "In small cells <b>S</b> is shm, <b>T</b> tcp, <b>I</b> inproc. " if with_letters else ""
    )
    return (
        '<div style="font-family:sans-serif;font-size:13px">'
        '<table style="border-collapse:collapse;white-space:nowrap">'
        f"<thead><tr>{titles}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
        '<p style="color:#777;line-height:1.5;max-width:440px;margin-top:16px">'
        "Counted by the receivers since they started. Bandwidth is bytes over the time in which "
        "any were on their way, overlaps counted once; messages below 64 KiB are not timed. What "
        "is lent is mapped, not moved. "
        f"Dark cells are slow, light ones fast. {short}</p></div>"
    )
