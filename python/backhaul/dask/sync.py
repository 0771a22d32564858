"""Dask's synchronous scheduler with resources: ``x.compute(scheduler=backhaul.dask.sync.get)``."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

import dask.local

from backhaul.dask.gate import Gate, asked_in, declared_for
from backhaul.dask.requests import CPU

__all__ = ["get"]


def get(
    dsk: Any,
    keys: Any,
    *,
    resources: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Compute a graph in this thread, one task after another, and show each what it holds.

    Parameters
    ----------
    dsk, keys, **kwargs
        As for `dask.local.get_sync`, which computes graphs that ask for nothing.
    resources : mapping, optional
        What there is, as for `backhaul.dask.threaded.get`. A task may ask for any number of CPUs:
        it runs alone.

    Returns
    -------
    object
        The results, in the shape of `keys`.

    Raises
    ------
    ConfigError
        If a task asks for what can never be met. Names it, and what there is.
    """
    asked = asked_in(dsk)
    if asked is None:
        return dask.local.get_sync(dsk, keys, **kwargs)
    most = max(1.0, *(needs.cpu for needs in asked.needs.values()))
    declared = declared_for(resources, cpus=1)
    declared[CPU] = most
    gate = Gate(declared, asked.needs, _InThisThread())
    kwargs.pop("num_workers", None)
    # One at a time, so that the order is that of the scheduler without resources.
    return dask.local.get_async(gate.submit, 1, asked.graph, keys, **{**kwargs, "chunksize": 1})


class _InThisThread(Executor):
    """Runs what it is given at once."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        # The gate says itself how it ended.
        fn(*args, **kwargs)
