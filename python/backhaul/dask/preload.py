"""Preload of Dask that installs the patches in a process with any comms.

::

    distributed:
      scheduler: {preload: [backhaul.dask.preload]}
      worker: {preload: [backhaul.dask.preload]}
      client: {preload: [backhaul.dask.preload]}

A process that speaks ``backhaul://`` has done the same at its first comm and needs no preload.
Patches of comms apply to Backhaul's comms alone; a scheduler's order of tasks and the in-flight
windows of its workers do not depend on comms.
"""

from __future__ import annotations

from typing import Any

from backhaul.dask.compat.activation import install, install_for

__all__ = ["dask_setup"]


async def dask_setup(server: Any) -> None:
    """Install what is switched on; called by Dask with the scheduler, worker or client."""
    install()
    install_for(server)
