"""Modules and digests that forked worker processes share, imported by the process that forks them.

Each worker would import `backhaul.dask` and digest some 200 sources of Dask for itself, which take
half as long as the import of Dask. A worker still decides for itself which patches it installs.
"""

from __future__ import annotations

import contextlib
import importlib
import sys

from distributed.versions import optional_packages, required_packages

from backhaul.dask.compat.digests import DIGESTS
from backhaul.dask.compat.function_origin import source_of
from backhaul.dask.compat.names import NAMES, MissingName
from backhaul.dask.compat.normalized_source import source_digest


def _digest_sources() -> None:
    """Digest the sources whose modules are imported anyway."""
    for name in DIGESTS:
        module = NAMES.get(name.partition(".")[0], name).partition(":")[0]
        if module in sys.modules or module.rpartition(".")[0] in sys.modules:
            with contextlib.suppress(MissingName):
                source_digest(source_of(name))


# As Dask does where it forks workers
for package in (*required_packages, *optional_packages):
    with contextlib.suppress(ImportError):
        importlib.import_module(package)
_digest_sources()
