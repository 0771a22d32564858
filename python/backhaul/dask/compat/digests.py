"""Digests of the sources of Dask that were read, by their name in the lists of patches.

``make dask-release VERSION=… WRITE=1`` writes ``digests.json``, and adds the digests of another
release. A source has several where releases that were read differ.
`backhaul.dask.compat.normalized_source` says what a digest leaves out; ``zict`` and the standard
library have digests of the releases that are installed.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Final

__all__ = ["DIGESTS"]

_TABLE: Final = files(__package__).joinpath("digests.json").read_text("utf-8")

DIGESTS: Final[dict[str, tuple[str, ...]]] = {
    name: tuple(known) for name, known in json.loads(_TABLE).items()
}
