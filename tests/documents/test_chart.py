"""The chart of README is the drawing of the report that lies beside the benchmarks."""

from __future__ import annotations

import json
from xml.etree import ElementTree

from benches.python.jobs_chart import jobs_chart, main
from benches.python.whole_jobs import JOBS
from tests.documents.written import ROOT

REPORT = ROOT / "docs" / "benchmarks" / "whole-jobs.json"


def test_the_chart_shows_the_report() -> None:
    report = json.loads(REPORT.read_text(encoding="utf-8"))
    drawn = jobs_chart(report)
    assert (ROOT / "docs" / "images" / "whole-jobs.svg").read_text(encoding="utf-8") == drawn
    assert [row["case"] for row in report["rows"][::2]] == [name for name, _, _ in JOBS]
    texts = [element.text or "" for element in ElementTree.fromstring(drawn).iter()]
    for name, _, _ in JOBS:
        assert name in texts
    for row in report["rows"]:
        if row["configuration"] == "backhaul":
            assert any(f"({row['ratio']:.1f} × as fast)" in text for text in texts)


def test_arguments_that_are_no_two_paths_are_refused() -> None:
    assert main(["one"]) == 2
