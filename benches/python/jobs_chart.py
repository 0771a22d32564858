"""Draws the report of ``whole-jobs``.

::

    python -m benches.python.jobs_chart REPORT.json CHART.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

__all__ = ["jobs_chart", "main"]

_WIDTH, _LEFT, _BAR_MAX = 820, 225, 400
_TOP, _ROW, _BAR, _BOTTOM = 64, 58, 17, 30
#: Grey for what is compared with; a blue of Okabe and Ito that reads on white
_COLOURS: Final = {"tcp": "#9aa0a6", "backhaul": "#0072b2"}


def jobs_chart(report: Mapping[str, Any]) -> str:
    """Draw two bars for each job, each as long as its time in relation to that over ``tcp``.

    Parameters
    ----------
    report : mapping
        JSON of ``whole-jobs``.

    Returns
    -------
    str
        SVG; the same for the same report.
    """
    jobs: dict[str, dict[str, Any]] = {}
    for row in report["rows"]:
        jobs.setdefault(row["case"], {})[row["configuration"]] = row
    height = _TOP + _ROW * len(jobs) + _BOTTOM
    parts = [_text(16, 26, "Time of whole Dask jobs", "h"), *_legend()]
    for number, (name, rows) in enumerate(jobs.items()):
        parts += _job(name, rows, _TOP + number * _ROW)
    parts.append(_text(16, height - 12, _subtitle(report), "s"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="13" '
        'role="img" aria-label="Time of whole Dask jobs over tcp and over backhaul">'
        "<style>.h{font-size:17px;font-weight:bold}.s{font-size:11px;fill:#555}"
        ".b{font-weight:bold}</style>"
        f'<rect width="{_WIDTH}" height="{height}" rx="6" fill="#fff"/>'
        + "".join(f"\n{part}" for part in parts)
        + "\n</svg>\n"
    )


def _job(name: str, rows: Mapping[str, Any], top: int) -> list[str]:
    slowest = max(row["seconds_median"] for row in rows.values())
    parts = [_text(16, top + _BAR + 4, name)]
    for place, (label, colour) in enumerate(_COLOURS.items()):
        row, y = rows[label], top + place * (_BAR + 2)
        width = _BAR_MAX * row["seconds_median"] / slowest
        parts.append(
            f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>'
        )
        said = _seconds(row["seconds_median"])
        if place:
            said += f"  ({row['ratio']:.1f} × as fast)"
        parts.append(_text(_LEFT + width + 6, y + 13, said, "b" if place else ""))
    return parts


def _legend() -> list[str]:
    parts = []
    for place, (label, colour) in enumerate(_COLOURS.items()):
        x = _LEFT + place * 110
        parts.append(f'<rect x="{x}" y="40" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(x + 18, 51, f"{label}://"))
    return parts


def _subtitle(report: Mapping[str, Any]) -> str:
    machine, versions = report["machine"], report["versions"]
    return (
        f"{report['options']['workers']} workers of one thread, {machine['cores_usable']} cores, "
        f"{report['date']}, distributed {versions['distributed']}; medians of "
        f"{report['options']['repetitions']} runs in turn; shorter is better"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    of_class = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y}"{of_class}>{escape(text)}</text>'


def main(arguments: Sequence[str]) -> int:
    """Draw a report; ends with 2 if the arguments are no two paths."""
    if len(arguments) != 2:
        sys.stderr.write(__doc__ or "")
        return 2
    report = json.loads(Path(arguments[0]).read_text())
    Path(arguments[1]).write_text(jobs_chart(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
