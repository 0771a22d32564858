"""Dask's threaded scheduler with resources: ``x.compute(scheduler=backhaul.dask.threaded.get)``."""

from __future__ import annotations

from backhaul.dask.local.threaded import get

__all__ = ["get"]
