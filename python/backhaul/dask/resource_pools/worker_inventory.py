"""Resources of workers, as their scheduler knows them."""

from __future__ import annotations

import logging

from backhaul._native import ResourcePlaces
from backhaul.dask.compat.names import WorkerState
from backhaul.dask.compat.operations import RESOURCES
from backhaul.dask.resource_pools.declarations import Declared, checked, totals
from backhaul.dask.resource_pools.requests import BESIDE_TASKS, CPU, apart_from_threads

__all__ = ["described", "place_worker", "reported_by", "warn_of"]

logger = logging.getLogger(__name__)


def reported_by(ws: WorkerState) -> Declared:
    """Say what a worker has: amounts, as Dask knows them, and ids where it has told us of some.

    Units that are no threads have another name, if Dask knows them by the name of threads.
    """
    # An amount rather than so many units: a worker of Dask's own class lends it so.
    declared: Declared = {name: float(total) for name, total in ws.resources.items()}
    reported = checked(ws.extra.get(RESOURCES))
    counted = totals(reported)
    for name, value in reported.items():
        # It may have been given more since.
        if isinstance(value, list) and counted[name] == ws.resources.get(name):
            declared[name] = value
    return apart_from_threads(declared)


def described(ws: WorkerState) -> Declared | None:
    """Say what a worker has, as `ResourcePlaces.set_worker` takes it; None if nothing.

    An invalid declaration is logged, and counts as none.
    """
    try:
        declared = reported_by(ws)
        ResourcePlaces().set_worker(0, declared)
    except (ArithmeticError, TypeError, ValueError) as error:
        warn_of(ws, error)
        return {}
    return declared or None


def place_worker(places: ResourcePlaces, number: int, ws: WorkerState, beside_max: int) -> None:
    """Tell places what a worker has, threads and what takes none too; nonsense is as nothing."""
    threads = {CPU: float(ws.nthreads), BESIDE_TASKS: float(beside_max)}
    try:
        places.set_worker(number, {**threads, **reported_by(ws)})
    except (ArithmeticError, TypeError, ValueError) as error:
        warn_of(ws, error)
        places.set_worker(number, threads)


def warn_of(ws: WorkerState, error: Exception) -> None:
    """Say that what a worker has makes no sense."""
    logger.warning("What worker %s says that it has makes no sense: %s", ws.address, error)
