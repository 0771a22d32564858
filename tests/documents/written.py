"""Documents that are made of the source: written on demand, compared otherwise."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ROOT", "assert_said"]

ROOT = Path(__file__).resolve().parents[2]


def assert_said(document: str, text: str) -> None:
    """Compare a document with what it should be, or write it where ``BACKHAUL_WRITE_DOCS`` is set.

    Parameters
    ----------
    document : str
        Its path, from the root of the checkout.
    text : str
        Expected text.
    """
    path = ROOT / document
    if os.environ.get("BACKHAUL_WRITE_DOCS"):
        path.write_text(text, encoding="utf-8")
    said = path.read_text(encoding="utf-8")
    assert text.splitlines() == said.splitlines(), f"write {document} anew: BACKHAUL_WRITE_DOCS=1"
