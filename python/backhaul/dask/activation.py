"""When Dask is changed: the one place that installs what `backhaul.dask.patches` lists.

Importing Backhaul changes nothing. What a process shares is replaced

- when it asks for its first connector or listener of ``backhaul://``, which is when Dask first
  means to use Backhaul there (`backhaul.dask.backend`); and
- by the preload `backhaul.dask.preload`, for a process that speaks ``tcp://`` only.

What concerns one scheduler, worker or nanny is replaced on that object, at its first listener or by
the same preload. Each replacement has a switch in the configuration, read at that moment.
"""

from __future__ import annotations

import logging
from typing import Any

import distributed
from distributed import Nanny, Scheduler, Worker

from backhaul._locks import RLock
from backhaul.dask import device_arrays
from backhaul.dask.config import switched_on
from backhaul.dask.patches import PATCHES
from backhaul.dask.patching import Patch, Replacement

__all__ = ["SUPPORTED", "install", "install_for", "installed", "uninstall"]

logger = logging.getLogger(__name__)

#: Releases of distributed that this one was made for, as ``pyproject.toml`` has them
SUPPORTED = "2026.7.1 to 2026.8.0"

_lock = RLock()
_installed: dict[Patch, Replacement] = {}
_refused: set[Patch] = set()


def install(*, only: str | None = None) -> None:
    """Install every patch that is switched on and fits; calling it again costs little.

    Parameters
    ----------
    only : str, optional
        The switch of the patches to install; all of them if not given.
    """
    if only is None:
        device_arrays.register()
    refused: list[tuple[Patch, str]] = []
    with _lock:
        for patch in PATCHES:
            if patch in _installed or patch in _refused or not switched_on(patch.switch):
                continue
            if only is not None and patch.switch != only:
                continue
            refusal = patch.refusal()
            if refusal is None:
                _installed[patch] = patch.install()
            else:
                _refused.add(patch)
                refused.append((patch, refusal))
    if refused:
        # One line, however much of Dask is another than the one that was read.
        logger.warning(
            "Backhaul leaves %s as it is, %s, with distributed %s (made for %s): %s",
            ", ".join(str(patch) for patch, _ in refused),
            refused[0][0].without,
            distributed.__version__,
            SUPPORTED,
            refused[0][1],
        )


def install_for(server: Any) -> None:
    """Replace what concerns one server; again costs nothing.

    Parameters
    ----------
    server : object
        Anything that a preload or a listener may belong to. Schedulers, workers and nannies have
        such matters; a worker's are those of the context that starts it.
    """
    # Each imports what it needs: a worker does without the scheduler's part.
    if isinstance(server, Scheduler):
        from backhaul.dask import (
            account,
            fire_and_forget,
            in_flight,
            scheduler_slots,
            small_results,
            submissions,
        )

        keeps_core = switched_on("hot-path.scheduler-core")
        if keeps_core:
            from backhaul.dask.scheduler_core import programs

            # Before the others are among the handlers.
            programs.watch(server)
        # Below the in-flight window, which calls it as Dask's own.
        small_results.install_for_scheduler(server)
        in_flight.install(server)
        submissions.install_for_scheduler(server)
        fire_and_forget.install_for_scheduler(server)
        account.install(server)
        scheduler_slots.install(server)
        if switched_on("placement.enabled"):
            from backhaul.dask import placement

            placement.install(server)
        if keeps_core:
            from backhaul.dask.scheduler_core import live

            live.install(server)
    elif isinstance(server, Worker):
        from backhaul.dask import memory, reports, slotted_worker, small_results, sources

        memory.install(server)
        if switched_on("placement.nearest-first"):
            sources.install(server)
        reports.install(server)
        slotted_worker.install(server)
        if switched_on("hot-path.worker-threads"):
            from backhaul.dask import kept_tasks

            kept_tasks.install(server.state)
        small_results.install_for_worker(server)
    elif isinstance(server, Nanny):
        from backhaul.dask import memory

        memory.install_for_nanny(server)


def uninstall() -> None:
    """Put Dask's own functions back, where nobody has replaced ours; for tests.

    What was replaced on single objects stays there, as long as these live.
    """
    with _lock:
        for replacement in _installed.values():
            replacement.take_back()
        _installed.clear()
        _refused.clear()


def installed() -> list[Patch]:
    """List the patches of the process that are in force, in the order of `PATCHES`."""
    return [patch for patch in PATCHES if patch in _installed]
