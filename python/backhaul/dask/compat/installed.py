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
    """Return whether a function of Backhaul is in the place of one of Dask.

    Parameters
    ----------
    replace : str
        Module and function that makes it, as for `Patch`.
    """
    return any(
        function.replace == replace for patch in list(INSTALLED) for function in patch.functions
    )
