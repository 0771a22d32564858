"""Installs what `process_patches` and `features` list; nothing else changes Dask.

Importing Backhaul changes nothing. Functions that a process shares are replaced

- when it asks for its first connector or listener of ``backhaul://``, which is when Dask first
  means to use Backhaul there (`backhaul.dask.comm.backend.before_comms`); and
- by the preload `backhaul.dask.preload`, for a process that speaks ``tcp://`` only.

Patches of one scheduler, worker or nanny are installed on that object, at its first listener or by
the same preload; those of a client when it connects. Each replacement has a switch in the
configuration, read at that moment.
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import Any, Final

import distributed
from distributed import Client
from distributed.core import ConnectionPool

from backhaul._locks import RLock
from backhaul.dask.compat.features import DEVICE_ARRAYS, FEATURES
from backhaul.dask.compat.installed import INSTALLED
from backhaul.dask.compat.names import MissingName
from backhaul.dask.compat.patching import READ_RELEASES, Patch, Refusal
from backhaul.dask.compat.process_patches import PATCHES
from backhaul.dask.config.settings import switched_on

__all__ = [
    "SUPPORTED",
    "install",
    "install_for",
    "install_for_connecting_clients",
    "installed",
    "uninstall",
]

logger = logging.getLogger(__name__)

#: Releases of distributed whose sources were read, so that all accelerations fit them
SUPPORTED = " to ".join(READ_RELEASES)

#: Most patches that the log names where another release refuses many
_NAMED: Final = 3

_lock = RLock()
_refused: set[Patch] = set()


def install(*, only: str | None = None) -> None:
    """Install every patch, or those of one switch, that is on and fits; again costs little."""
    if only is None and (device_arrays := DEVICE_ARRAYS.load()) is not None:
        device_arrays.register()
    refused: list[tuple[Patch, Refusal]] = []
    with _lock:
        for patch in PATCHES:
            if patch in INSTALLED or patch in _refused or not switched_on(patch.switch):
                continue
            if only is not None and patch.switch != only:
                continue
            refusal = patch.refusal()
            if refusal is None:
                try:
                    INSTALLED[patch] = patch.install()
                except MissingName as error:
                    refusal = Refusal(str(error), (error.path,))
            if refusal is not None:
                refusal.is_new()
                _refused.add(patch)
                refused.append((patch, refusal))
    if refused:
        if distributed.__version__ not in READ_RELEASES:
            names = [str(patch) for patch, _ in refused]
            rest = f" and {len(names) - _NAMED}" if len(names) > _NAMED else ""
            logger.warning(
                "Backhaul runs with distributed %s without %d of its %d accelerations, %s%s: %s. "
                "See backhaul doctor dask",
                distributed.__version__,
                len(refused),
                len(PATCHES),
                ", ".join(names[:_NAMED]),
                rest,
                refused[0][1],
            )
            return
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
    """Replace what concerns one scheduler, worker, nanny or client; again costs nothing.

    Other objects, to which a preload or a listener may belong, are left alone. A worker's patches
    are those of the context that starts it.
    """
    for kind, features in FEATURES.items():
        if isinstance(server, kind):
            for feature in features:
                feature.install_for(server)


def install_for_connecting_clients() -> None:
    """Replace what concerns the clients of this process that connect to a scheduler now."""
    while True:
        try:
            pools = list(ConnectionPool._instances)
        except RuntimeError:
            # Another thread has made a pool meanwhile.
            continue
        break
    for pool in pools:
        # A client is the server of its pool; Dask lists clients only once they are connected.
        client = None if pool.server is None else pool.server()
        if isinstance(client, Client) and client._connecting_to_scheduler:
            install_for(client)


def uninstall() -> None:
    """Put Dask's own functions back, where no other package has replaced the patches; for tests.

    Patches of single objects stay there, as long as these live.
    """
    with _lock:
        for replacement in chain.from_iterable(INSTALLED.values()):
            replacement.take_back()
        INSTALLED.clear()
        _refused.clear()


def installed() -> list[Patch]:
    """List the patches of the process that are in force, in the order of `PATCHES`."""
    return [patch for patch in PATCHES if patch in INSTALLED]
