"""The answer first: one sentence, a table of 80 columns, lines of progress, a picture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from backhaul.cli import main
from backhaul_bench.answers import (
    memory_answer,
    p2p_answer,
    placement_answer,
    tasks_answer,
    transpose_sum_answer,
)
from backhaul_bench.output import show_progress
from backhaul_bench.report import Missing
from backhaul_bench.summary import Spread

WIDTH = 80


def row(configuration: str, *times: float, **more: Any) -> SimpleNamespace:
    least, median, most = times
    return SimpleNamespace(
        configuration=configuration,
        seconds_median=median,
        seconds_min=least,
        seconds_max=most,
        us_median=median,
        us_min=least,
        us_max=most,
        ratio=1.25 / median,
        cpu_us={"client": Spread(300, 200, 400)},
        moved_bytes_median=123456789,
        sums=[1.0],
        **more,
    )


def report(*rows: Any, **options: Any) -> Any:
    return SimpleNamespace(
        rows=rows,
        options=SimpleNamespace(
            size=8000, chunks=1000, workers=2, threads=1, repetitions=5, rounds=3, **options
        ),
        findings={"equal": True},
        missing=[],
    )


def printed(table: Any) -> list[str]:
    console = Console(width=WIDTH, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(table)
    return console.export_text().splitlines()


def test_the_sentence_says_how_many_times_as_fast() -> None:
    answer = transpose_sum_answer(
        report(row("tcp", 1.2, 1.25, 1.3), row("backhaul", 0.42, 0.43, 0.5))
    )
    assert answer.sentence == "backhaul 2.9 × as fast as tcp: 0.43 s against 1.25 s"
    text = "\n".join(printed(answer.table))
    assert "0.420 – 0.500" in text
    assert "117.74 MiB" in text
    assert "…" not in text


def test_a_difference_within_the_ranges_is_called_none() -> None:
    answer = transpose_sum_answer(
        report(row("tcp", 1.0, 1.25, 1.5), row("backhaul", 0.9, 1.3, 1.6))
    )
    assert answer.sentence.startswith("backhaul 0.96 × as fast as tcp".replace("0.96", "1.0"))
    assert answer.sentence.endswith("their ranges overlap: repeat it more often")


def test_one_configuration_is_not_compared() -> None:
    assert transpose_sum_answer(report(row("tcp", 1, 2, 3))).sentence == "tcp: 2.00 s"


def test_results_that_differ_come_first_among_the_notes() -> None:
    found = report(row("tcp", 1, 2, 3), row("backhaul", 1, 2, 3))
    found.findings["equal"] = False
    assert transpose_sum_answer(found).notes[0].startswith("Results DIFFER: tcp: [1.0]")


def test_tables_with_long_names_fit_and_lose_nothing() -> None:
    names = ["tcp", "tcp, saturation 20", "backhaul", "backhaul, saturation 20"]
    rows = [
        row(name, 640.0, 1234.0, 56789.0, case=case)
        for case in ("map", "all-to-all")
        for name in names
    ]
    answer = tasks_answer(report(*rows, cases=("map", "all-to-all")))
    lines = printed(answer.table)
    assert max(map(len, lines)) <= WIDTH
    assert not any("…" in line for line in lines)
    assert "(map)" in answer.sentence
    assert "all-to-all 1.0 ×" in answer.sentence


def test_messages_are_told_beside_the_best_peer() -> None:
    def of(peer: str, size: int, us: float, rate: float) -> SimpleNamespace:
        return SimpleNamespace(
            peer=peer, variant="default, error handling off", api="blocking", lane="shm",
            size_bytes=size, latency_p50_us=us, stream_bytes_per_s=rate,
        )  # fmt: skip

    found = report(
        *(of("backhaul", 8, 2.3, 1e6), of("backhaul", 1 << 24, 900.0, 12.1e9)),
        *(of("ucxx", 8, 4.4, 1e6), of("ucxx", 1 << 24, 1000.0, 9e9)),
        sizes=[8, 1 << 24],
    )
    found.missing.append(Missing("mpi4py", "not installed", "pip install mpi4py"))
    answer = p2p_answer(found)
    assert answer.sentence == (
        "backhaul over shm: 2.30 µs one way for 8 B, 12.1 GB/s in messages of 16 MiB; "
        "the best of the others, ucxx: 4.40 µs one way for 8 B, 9 GB/s in messages of 16 MiB"
    )
    lines = printed(answer.table)
    assert max(map(len, lines)) <= WIDTH
    assert answer.notes[-1] == (
        "Not measured: mpi4py: not installed. To get it: pip install mpi4py."
    )


def test_memory_is_told_as_a_share() -> None:
    def of(name: str, peak: int, ratio: float) -> SimpleNamespace:
        return SimpleNamespace(
            job="climatology", configuration=name, peak_pss=Spread(peak, peak, peak), ratio=ratio,
            peak_workers_pss=Spread(peak, peak, peak), workers_ratio=ratio, seconds_median=1.0,
            seconds_ratio=1.0, rest=[SimpleNamespace(pss=peak)],
            facts=[{"pauses": 2}, {"pauses": 0}],
        )  # fmt: skip

    rows = [of("tcp", 3 << 30, 1.0), of("backhaul", 2 << 30, 0.67)]
    found = report(*rows)
    found.findings = {"means": {"backhaul": {"workers": 0.67, "all": 0.7, "seconds": 0.5}}}
    answer = memory_answer(found)
    assert answer.sentence == (
        "workers of backhaul hold 0.67 × the memory of those of tcp at their peak, "
        "all processes 0.70 ×, in 0.50 × the time"
    )
    lines = printed(answer.table)
    assert max(map(len, lines)) <= WIDTH
    assert not any("…" in line for line in lines)
    assert any("3072.0" in line for line in lines)
    assert answer.notes[-1] == "climatology, backhaul: pauses [2, 0]"


def placed(**means: float) -> Any:
    rows = [
        SimpleNamespace(machine=machine, workload="tree", over_bound=2.0, ratio=ratio)
        for machine, ratio in means.items()
    ]
    found = report(*rows, machines=list(means), workloads=["tree"], seeds=3, plot=None)
    found.findings["means"] = [
        {"machine": machine, "over_bound": 2.0, "ratio": ratio} for machine, ratio in means.items()
    ]
    return found


def test_placement_is_told_by_machine() -> None:
    found = placed(flat=1.12, racks=2.0)
    found.options.policies = ("upstream", "backhaul")
    assert placement_answer(found).sentence == (
        "backhaul 1.1 × as fast as upstream on flat; racks 2.0 ×"
    )
    found.options.policies = ("upstream",)
    assert placement_answer(found).sentence == (
        "upstream takes 2.00 × the least possible time on flat; racks 2.00 ×"
    )


def test_progress_is_lines_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with show_progress() as on_step:
        on_step("starting tcp", 4)
        on_step("at once after it", 3)
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "     0 s  0/4  starting tcp\n"


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_benchmark_answers_first_and_draws(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    picture = tmp_path / f"picture.{suffix}"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "backhaul", "bench", "p2p", "--sizes", "8,64KiB"),
            *("--api", "blocking", "--rounds", "1", "--budget", "0.01", "--plot", str(picture)),
        ],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first.startswith("backhaul over shm: ")
    assert all(len(line) <= WIDTH for line in lines)
    head = picture.read_bytes()[:200]
    assert b"<svg" in picture.read_bytes() if suffix == "svg" else head.startswith(b"\x89PNG")


def test_a_picture_of_another_kind_is_refused_before_anything_runs(tmp_path: Path) -> None:
    for name in ("picture.gif", "no/such/picture.svg"):
        done = CliRunner().invoke(main, ["bench", "tasks", "--plot", str(tmp_path / name)])
        assert done.exit_code == 2, done.output
        assert name in done.output
