"""Each table of figures says on which machine it was measured, and when."""

from __future__ import annotations

import re

from tests.documents.written import ROOT

#: Of tables that explain, and have no figures
EXPLAINS = "| case | what runs |"


def test_each_table_of_figures_has_one_machine_and_one_date() -> None:
    lines = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8").splitlines()
    heads = [
        number
        for number, line in enumerate(lines)
        if line.startswith("|")
        and not lines[number - 1].startswith("|")
        and not line.startswith(EXPLAINS)
    ]
    assert len(heads) >= 15
    captions = [lines[number - 2] for number in heads]
    named = set(re.findall(r"\*(machine [A-Z])\*", " ".join(lines[: heads[0]]), re.IGNORECASE))
    machines = {name.title() for name in named}
    bare = []
    for number, caption in zip(heads, captions, strict=True):
        said = re.fullmatch(r"\*(Machine [A-Z]), (written down on )?\d{4}-\d\d-\d\d\.\*", caption)
        if said is None or said[1] not in machines:
            bare.append((lines[number], caption))
    assert not bare


def test_each_table_of_figures_has_a_command_before_it() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        before = section.partition("\n*Machine ")[0]
        if before != section:
            assert re.search(r"(backhaul|cargo) bench |python -m benches\.python |make run", before)
