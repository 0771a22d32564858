"""``backhaul bench tasks --trace``: the stages of a submit, with the shortcuts and without.

Written as a trace that Chrome (``chrome://tracing``) and Perfetto show, of all submits, and as a
picture of one of them, the median. Stamps take time: what is shown is longer than what is measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from backhaul_bench.contenders import Configuration
from backhaul_bench.interleaved import Steps, measure, open_all
from backhaul_bench.timeline_svg import timeline_svg

__all__ = [
    "CORE",
    "SHORTCUTS",
    "SUBMITS",
    "Recording",
    "Span",
    "chrome_trace",
    "record",
    "shortcuts",
    "write_trace",
]

_ROOT: Final = "distributed.comm.backhaul"
_JOB: Final = "backhaul_bench.stamps_job:TracedSubmits"

#: Switches of the shortcuts of small tasks, in the order in which they came
SHORTCUTS: Final = (
    "small-results.enabled",
    "hot-path.result",
    "hot-path.submit",
    "hot-path.client-threads",
    "hot-path.worker-threads",
)

#: Work of a scheduler without Python, where no stage of it can be seen
CORE: Final = ("hot-path.scheduler-core", "hot-path.scheduler-engine")

#: How many, unless something else is asked for
SUBMITS: Final = 50


@dataclass(frozen=True)
class Span:
    """One stage, in one thread of one process."""

    process: str
    pid: int
    thread: int
    name: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class Recording:
    """Submits on one cluster."""

    label: str
    #: Beginning and end of each submit
    rounds: Sequence[tuple[int, int]]
    spans: Sequence[Span]

    @property
    def median(self) -> tuple[int, int]:
        """Beginning and end of the submit of median duration."""
        ordered = sorted(self.rounds, key=lambda each: each[1] - each[0])
        return ordered[len(ordered) // 2]

    def within(self, begin_ns: int, end_ns: int) -> list[Span]:
        """List the spans that touch an interval, by beginning."""
        found = [span for span in self.spans if span.end_ns > begin_ns and span.begin_ns < end_ns]
        return sorted(found, key=lambda span: (span.begin_ns, -span.end_ns))


def shortcuts(switches: Sequence[str], name: str) -> Configuration:
    """Describe a cluster with some of the shortcuts.

    Parameters
    ----------
    switches : sequence of str
        Those of `SHORTCUTS` and `CORE` that are on.
    name : str
        How reports name it.

    Returns
    -------
    Configuration
        Over ``backhaul://``.
    """
    settings = tuple(
        (f"{_ROOT}.{switch}", str(switch in switches)) for switch in (*SHORTCUTS, *CORE)
    )
    return Configuration("backhaul", settings=settings, settings_name=name)


def record(
    *, submits: int, workers: int, threads: int, on_step: Callable[[str, int], None]
) -> list[Recording]:
    """Run submits on a cluster without the shortcuts and on one with all of them.

    Parameters
    ----------
    submits : int
        How many on each.
    workers, threads : int
        Worker processes of each cluster, and threads of each worker.
    on_step : callable
        Called before each step with what comes, and how many steps are left.

    Returns
    -------
    list of Recording
        Without, and with.

    Raises
    ------
    BenchmarkFailed
        If a cluster does not start or does not answer, or a result is wrong.
    """
    configurations = [shortcuts((), "without shortcuts"), shortcuts(SHORTCUTS, "with shortcuts")]
    steps = Steps(on_step, total=4)
    found = []
    with open_all(configurations, workers=workers, threads=threads, steps=steps) as clusters:
        for cluster in clusters:
            steps.next(f"trace, {cluster.configuration.label}")
            # To warm up
            measure(cluster, _JOB, {"tasks": submits, "seed": 0})
            measured = measure(cluster, _JOB, {"tasks": submits, "seed": 1})
            found.append(_recording(cluster.configuration.settings_name, measured.facts))
    steps.done()
    return found


def _recording(label: str, facts: Mapping[str, Any]) -> Recording:
    spans = [
        Span(process["role"], process["pid"], thread, name, begin_ns, end_ns)
        for process in facts["processes"]
        for name, begin_ns, end_ns, thread in process["spans"]
    ]
    return Recording(label, [(begin, end) for begin, end in facts["rounds"]], spans)


def chrome_trace(recordings: Sequence[Recording]) -> dict[str, Any]:
    """Lay recordings out as a trace, each from its own beginning on.

    Parameters
    ----------
    recordings : sequence of Recording
        At least one round each.

    Returns
    -------
    dict
        For JSON. The format is Chrome's "Trace Event Format": complete events, in microseconds.
    """
    events: list[dict[str, Any]] = []
    for recording in recordings:
        start_ns = recording.rounds[0][0]
        for process, pid in dict.fromkeys((span.process, span.pid) for span in recording.spans):
            name = f"{recording.label}: {process}"
            events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        client = next(span for span in recording.spans if span.process == "client")
        rounds = [
            Span("client", client.pid, 0, "one submit", begin_ns, end_ns)
            for begin_ns, end_ns in recording.rounds
        ]
        for span in (*rounds, *recording.within(start_ns, recording.rounds[-1][1])):
            events.append(
                {
                    "ph": "X",
                    "name": span.name,
                    "cat": span.process,
                    "pid": span.pid,
                    "tid": span.thread,
                    "ts": (span.begin_ns - start_ns) / 1e3,
                    "dur": (span.end_ns - span.begin_ns) / 1e3,
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_trace(path: Path, recordings: Sequence[Recording]) -> Path:
    """Write a trace, and a picture beside it.

    Parameters
    ----------
    path : Path
        Of the trace, in JSON.
    recordings : sequence of Recording
        At least one round each.

    Returns
    -------
    Path
        Of the picture: the same with the suffix ``.svg``.

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    path.write_text(json.dumps(chrome_trace(recordings)), encoding="utf-8")
    picture = path.with_suffix(".svg")
    panels = []
    for recording in recordings:
        begin_ns, end_ns = recording.median
        bars = [
            (f"{s.process}, thread {s.thread}", s.name, s.begin_ns - begin_ns, s.end_ns - begin_ns)
            for s in sorted(
                recording.within(begin_ns, end_ns), key=lambda span: (span.process, span.thread)
            )
        ]
        panels.append((recording.label, end_ns - begin_ns, bars))
    picture.write_text(timeline_svg(panels, title="one submit, the median"), encoding="utf-8")
    return picture
