"""``client.get_versions()`` lists Backhaul, too.

It is asked for by name, rather than added to the packages that every process of Dask's names of
itself: those are compared when a client connects, and one without Backhaul, over ``tcp://``, would
be warned of a mismatch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from distributed import Client

__all__ = ["install", "uninstall"]

_PACKAGE = "backhaul"


def install() -> None:
    """Have clients of this process ask for it; again is without effect."""
    upstream: Any = Client.get_versions
    if hasattr(upstream, "__wrapped__"):
        return

    @functools.wraps(upstream)
    def get_versions(
        self: Client, check: bool = False, packages: Sequence[str] | None = None
    ) -> Any:
        asked = list(packages or ())
        return upstream(self, check, asked if _PACKAGE in asked else [*asked, _PACKAGE])

    Client.get_versions = get_versions  # type: ignore[method-assign]


def uninstall() -> None:
    """Put Dask's own function back; for tests."""
    ours: Any = Client.get_versions
    Client.get_versions = getattr(ours, "__wrapped__", ours)  # type: ignore[method-assign]
