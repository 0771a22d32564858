"""Messages that guides quote are in the source, and every error type is described."""

from __future__ import annotations

import re
from functools import cache

import pytest

from backhaul import errors
from tests.documents.written import ROOT

GUIDES = ROOT / "docs" / "guides"

#: Written by NumPy
OF_OTHERS = {"… is read-only"}

#: Parts of a message shorter than this say nothing
FRAGMENT_MIN = 4


@cache
def sources() -> str:
    """Give all texts of the sources as they are printed: literals joined, spaces made one."""
    parts = []
    for pattern in ("crates/*/src/**/*.rs", "python/backhaul/**/*.py", "python/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            text = path.read_text(encoding="utf-8")
            # A literal that goes on in the next line, of Rust and of Python
            text = re.sub(r"\\\n\s*", "", text)
            text = re.sub(r'"\s*\n\s*[fr]{0,2}"', "", text)
            parts.append(text)
    return " ".join("\n".join(parts).split())


def messages(name: str, column: int) -> list[str]:
    text = (GUIDES / name).read_text(encoding="utf-8")
    found: list[str] = []
    for row in re.findall(r"^\| (.*) \|$", text, re.MULTILINE):
        cell = row.split(" | ")[column]
        quoted = [part for part in re.findall(r"`([^`]+)`", cell) if " " in part]
        found.extend(quoted)
    return found


@pytest.mark.parametrize("name", ["troubleshooting.md", "which-lane.md"])
def test_each_message_that_a_guide_quotes_is_in_the_source(name: str) -> None:
    quoted = messages(name, 0)
    assert len(quoted) >= 6
    missing: list[tuple[str, str]] = []
    for message in quoted:
        if message in OF_OTHERS:
            continue
        fragments = [each.strip() for each in message.split("…")]
        telling = [each for each in fragments if len(each) >= FRAGMENT_MIN]
        assert telling, f"{message!r} says too little"
        missing.extend((message, each) for each in telling if each not in sources())
    assert not missing


def test_the_guide_tells_of_every_error_that_programs_meet() -> None:
    text = (GUIDES / "troubleshooting.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(\w+)`: ", text))
    # Types that only group others
    groups = {"BackhaulError", "ConnectionFailed"}
    assert not set(errors.__all__) - told - groups
