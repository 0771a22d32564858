"""Pictures of reports, by Matplotlib: bandwidth over size, time by case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from backhaul_bench.report import Report

__all__ = ["PlotTargetType", "draw_p2p", "draw_tasks", "draw_transpose_sum"]

_SUFFIXES = (".svg", ".png")
#: Inches
_SIZE = (8.0, 4.5)


class PlotTargetType(click.ParamType[Path]):
    """A file to be drawn once all is measured: what cannot be is refused before."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Check the name, the folder, and that Matplotlib is there."""
        import importlib.util
        import os

        path = Path(str(value))
        if path.suffix not in _SUFFIXES:
            self.fail(f"{str(value)!r} ends in neither .svg nor .png", param, ctx)
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            self.fail(f"cannot write {str(value)!r}", param, ctx)
        if importlib.util.find_spec("matplotlib") is None:
            raise click.ClickException(
                "matplotlib is missing; install it with: pip install 'backhaul[bench]'"
            )
        return path


def draw_p2p(report: Report[Any, Any], target: Path) -> None:
    """Draw bandwidth over size of each contender.

    Parameters
    ----------
    report : Report
        Of ``bench p2p``.
    target : Path
        Where the picture goes; its suffix says of what kind.
    """

    def draw(axes: Any) -> None:
        curves: dict[str, list[tuple[int, float]]] = {}
        for row in report.rows:
            variant = "" if row.peer == "backhaul" else f" {row.variant}"
            name = f"{row.peer}{variant}, {row.lane}, {row.api}"
            point = (row.size_bytes, row.stream_bytes_per_s / 1e9)
            curves.setdefault(name, []).append(point)
        for name, points in curves.items():
            sizes, rates = zip(*sorted(points), strict=True)
            axes.plot(sizes, rates, marker="o", label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("message, bytes")
        axes.set_ylabel("streaming, GB/s")
        axes.set_title("Between two processes")

    _draw(draw, target)


def draw_tasks(report: Report[Any, Any], target: Path) -> None:
    """Draw the time of a task by case, a bar for each configuration.

    Parameters
    ----------
    report : Report
        Of ``bench tasks``.
    target : Path
        Where the picture goes.
    """
    cases = list(report.options.cases)
    found = {(row.case, row.configuration): row for row in report.rows}
    configurations = list(dict.fromkeys(row.configuration for row in report.rows))

    def draw(axes: Any) -> None:
        width = 0.8 / len(configurations)
        for number, name in enumerate(configurations):
            rows = [found[case, name] for case in cases]
            heights = [row.us_median for row in rows]
            axes.bar(
                [place + (number + 0.5) * width - 0.4 for place in range(len(cases))],
                heights,
                width,
                yerr=[
                    [row.us_median - row.us_min for row in rows],
                    [row.us_max - row.us_median for row in rows],
                ],
                label=name,
            )
        axes.set_xticks(range(len(cases)), cases)
        axes.set_ylabel("a task, µs")
        axes.set_title("Median, least and most")

    _draw(draw, target)


def draw_transpose_sum(report: Report[Any, Any], target: Path) -> None:
    """Draw the time of each configuration.

    Parameters
    ----------
    report : Report
        Of ``bench transpose-sum``.
    target : Path
        Where the picture goes.
    """

    def draw(axes: Any) -> None:
        for row in report.rows:
            below, above = (
                row.seconds_median - row.seconds_min,
                row.seconds_max - row.seconds_median,
            )
            axes.bar(
                row.configuration,
                row.seconds_median,
                yerr=[[below], [above]],
                label=row.configuration,
            )
        axes.set_ylabel("s")
        size = report.options.size
        axes.set_title(f"(x + x.T).sum(), x of {size} × {size}: median, least and most")

    _draw(draw, target)


def _draw(draw: Callable[[Any], None], target: Path) -> None:
    # The object-oriented way, which needs no display and leaves nothing behind.
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    draw(axes)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(target)
