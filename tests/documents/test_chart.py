"""Charts of README and of the benchmarks are drawings of the report that lies beside them."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from benches.python.jobs_chart import MEASURES, jobs_chart, main, median_of
from benches.python.whole_jobs import JOBS
from tests.documents.written import ROOT

REPORT = ROOT / "docs" / "benchmarks" / "whole-jobs.json"


#: Pictures of the report, by what they show
CHARTS = {
    "time": "whole-jobs.svg",
    "cpu": "whole-jobs-cpu.svg",
    "switches": "whole-jobs-switches.svg",
    "faults": "whole-jobs-faults.svg",
}


@pytest.mark.parametrize("measure", MEASURES)
def test_each_chart_shows_the_report(measure: str) -> None:
    report = json.loads(REPORT.read_text(encoding="utf-8"))
    drawn = jobs_chart(report, measure)
    chart = ROOT / "docs" / "images" / CHARTS[measure]
    assert chart.read_text(encoding="utf-8") == drawn
    assert [row["case"] for row in report["rows"][::2]] == [name for name, _, _ in JOBS]
    texts = [element.text or "" for element in ElementTree.fromstring(drawn).iter()]
    for name, _, _ in JOBS:
        assert name in texts
    for tcp, backhaul in zip(report["rows"][::2], report["rows"][1::2], strict=True):
        assert (tcp["configuration"], backhaul["configuration"]) == ("tcp", "backhaul")
        ratio = median_of(tcp, measure) / median_of(backhaul, measure)
        assert any(f"({max(ratio, 1 / ratio):.1f} × " in text for text in texts)


def test_the_ratio_of_times_is_that_of_the_report() -> None:
    report = json.loads(REPORT.read_text(encoding="utf-8"))
    for row in report["rows"]:
        assert median_of(row, "time") == row["seconds_median"]


def test_arguments_that_are_no_two_paths_are_refused() -> None:
    assert main(["one"]) == 2
    assert main(["one", "two", "weight"]) == 2
