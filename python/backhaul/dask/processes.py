"""Dask's multiprocessing scheduler with resources, as `backhaul.dask.processes.get`."""

from __future__ import annotations

from backhaul.dask.local.processes import get

__all__ = ["get"]
