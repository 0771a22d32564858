"""Refuses a release of Dask that is older than the oldest one that Backhaul runs with."""

from __future__ import annotations

import re
from typing import Final

import distributed

__all__ = ["OLDEST", "check"]

#: The oldest release of ``distributed`` that is tested, by ``tests/dask/releases.py``
OLDEST: Final = "2025.1.0"


def check(version: str) -> None:
    """Refuse a version of ``distributed`` that is older than `OLDEST`, by `ImportError`.

    One that does not begin with three numbers is not refused.
    """
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is not None and [*map(int, found.groups())] < [*map(int, OLDEST.split("."))]:
        raise ImportError(
            f"backhaul.dask runs with distributed {OLDEST} or later, not with {version}: "
            f"pip install 'distributed>={OLDEST}'",
            name="distributed",
        )


check(distributed.__version__)
