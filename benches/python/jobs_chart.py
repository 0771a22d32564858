"""Draws the report of ``whole-jobs``.

::

    python -m benches.python.jobs_chart REPORT.json CHART.svg [time | cpu | switches | faults]
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["MEASURES", "jobs_chart", "main", "median_of"]

#: So narrow that a phone shows it whole, with words that can be read
_WIDTH, _LEFT, _BAR_MAX = 480, 16, 280
_TOP, _ROW, _BAR, _BOTTOM = 66, 76, 17, 38
#: Grey for what is compared with; a blue of Okabe and Ito that reads on white
_COLOURS: Final = {"tcp": "#9aa0a6", "backhaul": "#0072b2"}


class _Measure(NamedTuple):
    """A figure that the report has of each repetition."""

    title: str
    key: str
    unit: str
    #: Word for a figure below that over ``tcp``, and above it
    below: str
    above: str


MEASURES: Final = {
    "time": _Measure("Time of whole Dask jobs", "seconds", "s", "as fast", "as slow"),
    "cpu": _Measure("CPU time of all processes", "cpu_seconds", "s", "less", "more"),
    "switches": _Measure(
        "Context switches of all processes", "context_switches", "", "fewer", "more"
    ),
    "faults": _Measure("Page faults of all processes", "page_faults", "", "fewer", "more"),
}


def median_of(row: Mapping[str, Any], measure: str) -> float:
    """Return the median over repetitions of a figure that is summed over all processes."""
    values = row[MEASURES[measure].key]
    if isinstance(values, Mapping):
        values = [sum(each) for each in zip(*values.values(), strict=True)]
    return float(statistics.median(values))


def jobs_chart(report: Mapping[str, Any], measure: str = "time") -> str:
    """Draw two bars for each job, each as long as its figure in relation to the larger one.

    Parameters
    ----------
    report : mapping
        JSON of ``whole-jobs``.
    measure : str
        A key of `MEASURES`.

    Returns
    -------
    str
        SVG; the same for the same report.
    """
    jobs: dict[str, dict[str, Any]] = {}
    for row in report["rows"]:
        jobs.setdefault(row["case"], {})[row["configuration"]] = row
    height = _TOP + _ROW * len(jobs) + _BOTTOM
    title = MEASURES[measure].title
    parts = [_text(_LEFT, 26, title, "h"), *_legend()]
    for number, (name, rows) in enumerate(jobs.items()):
        medians = {label: median_of(row, measure) for label, row in rows.items()}
        parts += _job(name, medians, MEASURES[measure], _TOP + number * _ROW)
    for place, line in enumerate(reversed(_subtitle(report))):
        parts.append(_text(_LEFT, height - 12 - 15 * place, line, "s"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="13" '
        f'role="img" aria-label="{title} over tcp and over backhaul">'
        "<style>.h{font-size:17px;font-weight:bold}.s{font-size:11px;fill:#555}"
        ".b{font-weight:bold}</style>"
        f'<rect width="{_WIDTH}" height="{height}" rx="6" fill="#fff"/>'
        + "".join(f"\n{part}" for part in parts)
        + "\n</svg>\n"
    )


def _job(name: str, medians: Mapping[str, float], measure: _Measure, top: int) -> list[str]:
    largest = max(medians.values())
    parts = [_text(_LEFT, top + 16, name)]
    for place, (label, colour) in enumerate(_COLOURS.items()):
        median, y = medians[label], top + 24 + place * (_BAR + 2)
        width = _BAR_MAX * median / largest
        parts.append(
            f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>'
        )
        said = _figure(median, measure.unit)
        if place:
            said += f"  ({_ratio(medians['tcp'] / median, measure)})"
        parts.append(_text(_LEFT + width + 6, y + 13, said, "b" if place else ""))
    return parts


def _ratio(ratio: float, measure: _Measure) -> str:
    if ratio >= 1:
        return f"{ratio:.1f} × {measure.below}"
    return f"{1 / ratio:.1f} × {measure.above}"


def _legend() -> list[str]:
    parts = []
    for place, (label, colour) in enumerate(_COLOURS.items()):
        x = _LEFT + place * 110
        parts.append(f'<rect x="{x}" y="40" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(x + 18, 51, f"{label}://"))
    return parts


def _subtitle(report: Mapping[str, Any]) -> tuple[str, str]:
    machine, versions = report["machine"], report["versions"]
    return (
        f"{report['options']['workers']} workers of one thread, {machine['cores_usable']} cores, "
        f"{report['date']}, distributed {versions['distributed']};",
        f"medians of {report['options']['repetitions']} runs in turn; shorter is better",
    )


def _figure(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:,.0f}"
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    of_class = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y}"{of_class}>{escape(text)}</text>'


def main(arguments: Sequence[str]) -> int:
    """Draw a report; ends with 2 if the arguments are no two paths and a measure."""
    source, chart, measure = [*arguments, *["", "", "time"][len(arguments) :]][:3]
    if len(arguments) not in (2, 3) or measure not in MEASURES:
        sys.stderr.write(__doc__ or "")
        return 2
    report = json.loads(Path(source).read_text())
    Path(chart).write_text(jobs_chart(report, measure))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
