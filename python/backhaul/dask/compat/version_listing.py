"""``client.get_versions()`` lists Backhaul, too.

It is asked for by name, rather than added to the packages that every process of Dask's names of
itself: those are compared when a client connects, and one without Backhaul, over ``tcp://``, would
be warned of a mismatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backhaul.dask.compat.names import Client

__all__ = ["listing_get_versions"]

_PACKAGE = "backhaul"


def listing_get_versions(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Client.get_versions` that asks for Backhaul's, too."""

    def get_versions(
        self: Client, check: bool = False, packages: Sequence[str] | None = None
    ) -> Any:
        asked = list(packages or ())
        return original(self, check, asked if _PACKAGE in asked else [*asked, _PACKAGE])

    return get_versions
