"""Where the wheel of UCX has its libraries; nothing is loaded here."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path

__all__ = ["library_folders"]


@functools.cache
def library_folders() -> tuple[str, ...]:
    """Find the folders of the wheel ``libucx`` that hold its libraries.

    The wheels for CUDA 12 and 13 install the same package, so there is at most one.

    Returns
    -------
    tuple of str
        Paths; empty without the wheel.

    Notes
    -----
    The package is looked for and not imported, which would load UCX.
    """
    spec = find_spec("libucx")
    if spec is None or spec.submodule_search_locations is None:
        return ()
    folders = (Path(place) / "lib" for place in spec.submodule_search_locations)
    return tuple(str(folder) for folder in folders if folder.is_dir())
