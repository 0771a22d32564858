"""The trace of a submit: what is written, and that every stage of every process is in it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from click.testing import CliRunner

from backhaul.cli import main
from backhaul_bench.timeline_svg import timeline_svg
from backhaul_bench.trace import Recording, Span, chrome_trace


def test_a_real_trace_has_the_stages_of_every_process(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    arguments = ["bench", "tasks", "--trace", str(path), "--tasks", "5", "--workers", "1"]
    found = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    assert "without shortcuts: " in found.output
    events = json.loads(path.read_text())["traceEvents"]
    processes = {e["args"]["name"]: e["pid"] for e in events if e["ph"] == "M"}
    assert len(processes) == 6
    stages = {
        label: {
            role: {e["name"] for e in events if e["ph"] == "X" and e["pid"] == pid}
            for role, pid in (
                (name.partition(": ")[2], pid)
                for name, pid in processes.items()
                if name.startswith(label)
            )
        }
        for label in ("without", "with ")
    }
    for roles in stages.values():
        assert {"one submit", "submit", "result", "write", "key-in-memory"} <= roles["client"]
        assert {"create tasks", "task-finished"} <= roles["scheduler"]
        # Its state machine learns of most tasks later.
        assert {"the function", "write"} <= roles["worker 0"]
    # Stages that the shortcuts change
    assert {"update-graph", "gather"} <= stages["without"]["scheduler"]
    assert "backhaul-submit" in stages["with "]["scheduler"]
    assert "update-graph" not in stages["with "]["scheduler"]
    assert "gather" not in stages["with "]["scheduler"]
    assert "backhaul-result" in stages["with "]["client"]
    for event in events:
        assert event["ph"] == "M" or (event["dur"] >= 0 and event["name"])
    picture = ElementTree.parse(path.with_suffix(".svg")).getroot()
    assert picture.tag.endswith("svg")
    shown = "".join(picture.itertext())
    assert "with shortcuts" in shown
    assert "scheduler, thread" in shown


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["bench", "tasks", "--trace", str(tmp_path)])
    assert found.exit_code == 2
    assert "cannot write" in found.output


def test_the_median_submit_is_drawn_and_others_are_not() -> None:
    spans = [
        Span("client", 7, 1, "submit", 1_000, 3_000),
        Span("client", 7, 1, "pickle", 2_000, 2_500),
        Span("client", 7, 1, "later", 90_000, 91_000),
    ]
    recording = Recording("label", [(0, 4_000), (10_000, 11_000), (80_000, 100_000)], spans)
    assert recording.median == (0, 4_000)
    assert [span.name for span in recording.within(0, 4_000)] == ["submit", "pickle"]
    events = chrome_trace([recording])["traceEvents"]
    assert [e["ts"] for e in events if e["name"] == "pickle"] == [2.0]
    assert [e["dur"] for e in events if e["name"] == "one submit"] == [4.0, 1.0, 20.0]


def test_spans_within_others_are_drawn_below_them() -> None:
    bars = [("row", "outer <", 0, 100_000), ("row", "inner", 10_000, 50_000)]
    root = ElementTree.fromstring(timeline_svg([("one", 100_000, bars)], title="t"))
    drawn = [each for each in root.iter() if each.tag.endswith("}g")]
    tops = [int(each.find("{*}rect").get("y")) for each in drawn]  # type: ignore[union-attr, arg-type]
    assert tops[0] < tops[1]
    titles = [each.find("{*}title").text for each in drawn]  # type: ignore[union-attr]
    assert titles == ["outer <, 100 µs from 0", "inner, 40 µs from 10"]
