"""A picture of spans: a row for each thread, nested ones below, panels on one scale of time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, TypeAlias

__all__ = ["Bar", "Panel", "timeline_svg"]

#: Row, name, beginning and end, in nanoseconds from the beginning of the panel
Bar: TypeAlias = tuple[str, str, int, int]
#: Label, duration in nanoseconds, bars
Panel: TypeAlias = tuple[str, int, Sequence[Bar]]

_LEFT, _WIDTH, _RIGHT, _TOP = 170, 1000, 20, 40
_LANE, _GAP, _PANEL_GAP = 15, 6, 30
_CHARACTER: Final = 5.6
_TICKS_MAX: Final = 10

#: Okabe and Ito's colours, which colour-blind people can tell apart (https://jfly.uni-koeln.de/color/)
_COLOURS: Final = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#d55e00")


def timeline_svg(panels: Sequence[Panel], *, title: str) -> str:
    """Draw panels of spans, one under another.

    Parameters
    ----------
    panels : sequence of panel
        Panels to draw.
    title : str
        For people.

    Returns
    -------
    str
        SVG.
    """
    whole_ns = max((duration for _, duration, _ in panels), default=1) or 1
    names = dict.fromkeys(name for _, _, bars in panels for _, name, _, _ in bars)
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}
    parts: list[str] = []
    y = _TOP
    for label, duration, bars in panels:
        parts.append(
            f'<text x="8" y="{y}" class="h">{escape(label)}: {duration / 1e3:.0f} µs</text>'
        )
        y += 8
        top = y
        for row in dict.fromkeys(row for row, _, _, _ in bars):
            y += _GAP
            own = [bar for bar in bars if bar[0] == row]
            depths = _depths(own)
            parts.append(f'<text x="8" y="{y + 11}">{escape(row)}</text>')
            for (_, name, begin, end), depth in zip(own, depths, strict=True):
                parts.append(_bar(name, begin, end, y + depth * _LANE, whole_ns, colours[name]))
            y += _LANE * (max(depths) + 1)
        parts += _axis(whole_ns, top, y + 4)
        y += _PANEL_GAP
    height, width = y + 10, _LEFT + _WIDTH + _RIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="10">'
        "<style>.h{font-size:13px;font-weight:bold}</style>"
        f'<rect width="{width}" height="{height}" fill="#fff"/>'
        f'<text x="8" y="16" class="h">{escape(title)}</text>' + "".join(parts) + "</svg>\n"
    )


def _depths(bars: Sequence[Bar]) -> list[int]:
    """Give each bar of a row a lane in which none that came before is still open."""
    ends: list[int] = []
    depths = []
    for _, _, begin, end in bars:
        while ends and ends[-1] <= begin:
            ends.pop()
        depths.append(len(ends))
        ends.append(end)
    return depths


def _bar(name: str, begin: int, end: int, y: int, whole_ns: int, colour: str) -> str:
    left = _LEFT + _WIDTH * max(0, begin) / whole_ns
    right = _LEFT + _WIDTH * min(whole_ns, end) / whole_ns
    width = max(0.8, right - left)
    said = f"{name}, {(end - begin) / 1e3:.0f} µs from {begin / 1e3:.0f}"
    shown = name if _CHARACTER * len(name) < width - 4 else ""
    return (
        f'<g><title>{escape(said)}</title><rect x="{left:.1f}" y="{y}" width="{width:.1f}" '
        f'height="{_LANE - 2}" fill="{colour}" stroke="#fff" stroke-width="0.5"/>'
        f'<text x="{left + 3:.1f}" y="{y + 10}">{escape(shown)}</text></g>'
    )


def _axis(whole_ns: int, top: int, bottom: int) -> list[str]:
    step_us = 50
    while whole_ns / 1e3 / step_us > _TICKS_MAX:
        step_us *= 2
    parts = []
    for tick_us in range(0, int(whole_ns / 1e3) + 1, step_us):
        x = _LEFT + _WIDTH * tick_us * 1e3 / whole_ns
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" stroke="#ccc" '
            f'stroke-width="0.5"/><text x="{x:.1f}" y="{bottom + 10}" text-anchor="middle">'
            f"{tick_us} µs</text>"
        )
    return parts
