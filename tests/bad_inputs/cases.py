"""Cases of bad input, and the text of each outcome."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Case", "Place", "outcome"]

#: How long to wait for what must come
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Place:
    """Where a case may leave files."""

    folder: Path


@dataclass(frozen=True)
class Case:
    """One bad input.

    Parameters
    ----------
    what : str
        Name of the input in the document; Markdown.
    give : callable
        Gives it. An exception that it raises is the outcome; else its result is: a message of a log
        or a listener.
    """

    what: str
    give: Callable[[Place], object]


def outcome(case: Case, place: Place) -> str:
    """Give the input, and tell what it got as the document does.

    Returns
    -------
    str
        The class of the exception and its message, or what `Case.give` returned.

    Raises
    ------
    AssertionError
        If it got nothing.
    """
    try:
        got = case.give(place)
    except Exception as error:
        return _settled(f"`{type(error).__name__}`: {error}", place)
    assert isinstance(got, str), f"{case.what} got {got!r}"
    return _settled(got, place)


def _settled(text: str, place: Place) -> str:
    """Replace what differs from run to run."""
    text = text.replace(str(place.folder), "DIR")
    # Ports that the system picks; a port that a case has written itself stays.
    text = re.sub(r"127\.0\.0\.1:[1-6]\d{4}\b(?<!70000|99999)", "127.0.0.1:PORT", text)
    text = re.sub(r"after \d+(\.\d+)?(ms|s|µs)", "after TIME", text)
    text = re.sub(r"0x[0-9a-f]{6,}", "ADDRESS", text)
    return " ".join(text.replace("|", "\\|").split())
