"""A picture of a simulated run: what each worker ran and how full each edge was, over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, TypeAlias

from backhaul_bench.placement.machines import Machine

__all__ = ["gantt_svg", "write_gantt"]

#: As `simulation_job.Run` has them, in JSON
Trace: TypeAlias = Mapping[str, Sequence[Sequence[Any]]]

_LEFT, _WIDTH, _RIGHT, _TOP = 150, 900, 20, 34
_LANE, _EDGE_LANE, _GAP = 9, 14, 6
#: Edges that are drawn, the most used first
_EDGES_MAX: Final = 14
#: Time steps of the drawing of an edge
_STEPS: Final = 300

#: Okabe and Ito's colours, which colour-blind people can tell apart (https://jfly.uni-koeln.de/color/)
_COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#666666",
)  # fmt: skip


def write_gantt(path: Path, machine: Machine, traces: Mapping[str, Trace], *, title: str) -> None:
    """Draw runs into a file.

    Parameters
    ----------
    path : Path
        Of the SVG.
    machine : Machine
        Where they ran.
    traces : mapping of str to trace
        The runs by policy.
    title : str
        For people.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    path.write_text(gantt_svg(machine, traces, title=title), encoding="utf-8")


def gantt_svg(machine: Machine, traces: Mapping[str, Trace], *, title: str) -> str:
    """Draw runs, one under another on one scale of time.

    Parameters
    ----------
    machine : Machine
        Where they ran.
    traces : mapping of str to trace
        The runs by policy.
    title : str
        For people.

    Returns
    -------
    str
        SVG.
    """
    whole_s = max((_end_s(trace) for trace in traces.values()), default=0.0) or 1.0
    kinds = dict.fromkeys(kind for trace in traces.values() for _, kind, _, _ in trace["tasks"])
    colours = {kind: _COLOURS[number % len(_COLOURS)] for number, kind in enumerate(kinds)}
    parts: list[str] = []
    y = _TOP
    x = float(_LEFT)
    for kind, colour in list(colours.items())[:24]:
        parts.append(f'<rect x="{x:.0f}" y="20" width="8" height="8" fill="{colour}"/>')
        parts.append(f'<text x="{x + 11:.0f}" y="28">{escape(kind)}</text>')
        x += 22 + 6.2 * len(kind)
    for policy, trace in traces.items():
        y += 20
        parts.append(
            f'<text x="4" y="{y}" class="head">{escape(policy)}: {_end_s(trace):.3g} s</text>'
        )
        y = _workers(parts, machine, trace, y + 6, whole_s, colours)
        y = _edges(parts, machine, trace, y + 8, whole_s)
    width, height = _LEFT + _WIDTH + _RIGHT, y + 10
    style = "text{font:10px sans-serif;fill:#222}.head{font-weight:bold;font-size:12px}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}"><style>{style}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="4" y="14" class="head">{escape(title)}</text>' + "".join(parts) + "</svg>\n"
    )


def _end_s(trace: Trace) -> float:
    return max((float(end) for *_, end in trace["tasks"]), default=0.0) - _began_s(trace)


def _began_s(trace: Trace) -> float:
    return min((float(began) for *_, began, _ in trace["tasks"]), default=0.0)


def _workers(
    parts: list[str],
    machine: Machine,
    trace: Trace,
    y: int,
    whole_s: float,
    colours: Mapping[str, str],
) -> int:
    """Draw a lane for each thread; return where the next thing goes."""
    began_s = _began_s(trace)
    by_worker: dict[int, list[Sequence[Any]]] = defaultdict(list)
    for task in trace["tasks"]:
        by_worker[task[0]].append(task)
    for number, worker in enumerate(machine.workers):
        parts.append(f'<text x="4" y="{y + 8}">{escape(f"{worker.host}, worker {number}")}</text>')
        free_s = [0.0] * worker.threads
        for _, kind, start, stop in sorted(by_worker[number], key=lambda task: task[2]):
            thread = min(range(worker.threads), key=lambda lane: free_s[lane])
            free_s[thread] = stop
            x = _LEFT + (start - began_s) / whole_s * _WIDTH
            wide = max(0.4, (stop - start) / whole_s * _WIDTH)
            parts.append(
                f'<rect x="{x:.1f}" y="{y + thread * _LANE}" width="{wide:.1f}" '
                f'height="{_LANE - 1}" fill="{colours[kind]}"/>'
            )
        y += worker.threads * _LANE + 2
    return y


def _edges(parts: list[str], machine: Machine, trace: Trace, y: int, whole_s: float) -> int:
    """Draw how full the most used edges were; return where the next thing goes."""
    began_s = _began_s(trace)
    step_s = whole_s / _STEPS
    used: dict[int, list[float]] = defaultdict(lambda: [0.0] * _STEPS)
    for sender, receiver, nbytes, start, stop in trace["transfers"]:
        # Evenly over its time: the trace has no rates.
        rate = nbytes / max(stop - start, 1e-9)
        first = max(0, int((start - began_s) / step_s))
        last = min(_STEPS - 1, int((stop - began_s) / step_s))
        for edge in machine.routes[sender, receiver].edges:
            for step in range(first, last + 1):
                overlap_s = min(stop - began_s, (step + 1) * step_s) - max(
                    start - began_s, step * step_s
                )
                used[edge][step] += rate * max(0.0, overlap_s) / step_s

    def busy(edge: int) -> float:
        return sum(used[edge]) / machine.capacities_bytes_per_s[edge]

    shown = sorted(used, key=busy, reverse=True)[:_EDGES_MAX]
    for edge in sorted(shown):
        capacity = machine.capacities_bytes_per_s[edge]
        name = f"{machine.edges[edge]} ({capacity / 1e9:.3g} GB/s)"
        parts.append(f'<text x="4" y="{y + 10}">{escape(name)}</text>')
        base = y + _EDGE_LANE - 1
        points = [f"{_LEFT},{base}"]
        for step, rate in enumerate(used[edge]):
            x = _LEFT + step / _STEPS * _WIDTH
            top = base - min(1.0, rate / capacity) * (_EDGE_LANE - 2)
            points += [f"{x:.1f},{top:.1f}", f"{x + _WIDTH / _STEPS:.1f},{top:.1f}"]
        points.append(f"{_LEFT + _WIDTH},{base}")
        parts.append(
            f'<rect x="{_LEFT}" y="{y + 1}" width="{_WIDTH}" height="{_EDGE_LANE - 2}" '
            f'fill="#f2f2f2"/><polygon points="{" ".join(points)}" fill="#8a8a8a"/>'
        )
        y += _EDGE_LANE + 1
    return y + _GAP
