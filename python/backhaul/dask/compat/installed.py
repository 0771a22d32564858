"""Patches of the process that are in force.

`backhaul.dask.compat.activation` writes them; any feature reads them without importing the lists of
patches.
"""

from __future__ import annotations

from typing import Final

from backhaul.dask.compat.patching import Patch, Replacement

__all__ = ["INSTALLED", "is_installed"]

#: Each patch that is in force, with what puts Dask's own functions back
INSTALLED: Final[dict[Patch, tuple[Replacement, ...]]] = {}


def is_installed(replace: str) -> bool:
    """Return whether one of our functions, named as for `Patch`, is in the place of one of Dask."""
    return any(
        function.replace == replace for patch in list(INSTALLED) for function in patch.functions
    )
