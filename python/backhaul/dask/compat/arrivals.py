"""The order in which the workers of a scheduler joined."""

from __future__ import annotations

from typing import Any

from backhaul.dask.compat.names import WorkerState

__all__ = ["by_arrival"]


def by_arrival(scheduler: Any) -> list[WorkerState]:
    """Return the workers of a scheduler in the order in which they joined."""
    workers = scheduler.workers
    # `workers` is sorted by address, names are not sorted.
    joined = dict.fromkeys([*scheduler.aliases.values(), *workers])
    return [workers[address] for address in joined if address in workers]
