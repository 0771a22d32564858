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
    bare = [
        (lines[number], caption)
        for number, caption in zip(heads, captions, strict=True)
        if not re.fullmatch(r"\*[^*]+, (written down on )?\d{4}-\d\d-\d\d\.\*", caption)
    ]
    assert not bare
