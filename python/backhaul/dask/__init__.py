"""Dask over Backhaul: the comm backend of ``backhaul://``.

Dask finds it by itself once Backhaul is installed: ``LocalCluster(protocol="backhaul")``,
``dask scheduler --protocol tcp,backhaul``, ``dask worker backhaul://host:port``. The keys of its
configuration are in ``backhaul-dask.yaml``; its design is in ``docs/design/dask.md``.
"""

from __future__ import annotations

from backhaul.dask.backend import BackhaulBackend, BackhaulConnector, BackhaulListener
from backhaul.dask.comm import BackhaulComm
from backhaul.dask.config import Settings
from backhaul.dask.lanes import lanes
from backhaul.dask.transfers import transfers

__all__ = [
    "BackhaulBackend",
    "BackhaulComm",
    "BackhaulConnector",
    "BackhaulListener",
    "Settings",
    "backend",
    "lanes",
    "transfers",
]

#: What the entry point names: Dask calls it to get the backend.
backend = BackhaulBackend
