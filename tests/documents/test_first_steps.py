"""Commands, programs, variables and hardware of the documents that a newcomer relies on first."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.documents.written import ROOT

#: Variables that the operator of dask-kubernetes sets (2026.3.0, operator/controller/controller.py)
OF_THE_OPERATOR = {"DASK_SCHEDULER_ADDRESS", "DASK_WORKER_NAME"}

GUARD = 'if __name__ == "__main__":'

#: Calls that start processes which import the program anew
STARTS_PROCESSES = re.compile(r"\b(?:Local|LocalCUDA|CUDA)Cluster\(|\bDGX\(|\bClient\(\)")


def documents() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_each_program_that_starts_a_cluster_has_a_main_guard() -> None:
    programs = [
        (page, block)
        for page, text in documents()
        for block in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        if STARTS_PROCESSES.search(block)
    ]
    assert len(programs) > 8
    for page, block in programs:
        _, guard, guarded = block.partition(GUARD)
        assert guard, (page, block)
        assert len(STARTS_PROCESSES.findall(guarded)) == len(STARTS_PROCESSES.findall(block)), page


def test_pages_name_only_variables_that_the_operator_sets() -> None:
    used = {name for _, text in documents() for name in re.findall(r"\$\((DASK_[A-Z_]+)\)", text)}
    assert used == OF_THE_OPERATOR


def test_each_page_that_has_pip_install_an_extra_names_the_wheel_of_a_checkout() -> None:
    pages = {page: text for page, text in documents() if "'backhaul[" in text}
    assert len(pages) > 6
    assert [
        page for page, text in pages.items() if "make wheel`" not in " ".join(text.split())
    ] == []


def test_make_wheel_builds_one_wheel_of_this_machine_into_dist() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "wheel"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.count("maturin build") == 1
    assert "--out dist" in done.stdout


def test_pages_agree_on_what_has_run_on_a_gpu() -> None:
    said = " ".join((ROOT / "docs" / "users" / "dask-cuda.md").read_text(encoding="utf-8").split())
    assert "H100" in said
    sources = [path.read_text(encoding="utf-8") for path in Path(ROOT / "python").rglob("*.py")]
    texts = [*(text for _, text in documents()), *sources]
    denied = re.compile(r"(?:nothing|none)\b[^.]{0,60}\brun on (?:a GPU|one) yet", re.IGNORECASE)
    assert [text for text in texts if denied.search(" ".join(text.split()))] == []
