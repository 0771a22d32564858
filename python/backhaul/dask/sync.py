"""Dask's synchronous scheduler with resources: ``x.compute(scheduler=backhaul.dask.sync.get)``."""

from __future__ import annotations

from backhaul.dask.local.sync import get

__all__ = ["get"]
