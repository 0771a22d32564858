"""Installs what `backhaul.dask.compat.process_patches` lists; nothing else changes Dask.

Importing Backhaul changes nothing. Functions that a process shares are replaced

- when it asks for its first connector or listener of ``backhaul://``, which is when Dask first
  means to use Backhaul there (`backhaul.dask.comm.backend.before_comms`); and
- by the preload `backhaul.dask.preload`, for a process that speaks ``tcp://`` only.

Patches of one scheduler, worker or nanny are installed on that object, at its first listener or by
the same preload; those of a client when it connects. Each replacement has a switch in the
configuration, read at that moment.
"""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import distributed
from distributed import Client, Nanny, Scheduler, Worker
from distributed.core import ConnectionPool

from backhaul._locks import RLock
from backhaul.dask.compat.installed import INSTALLED
from backhaul.dask.compat.names import MissingName
from backhaul.dask.compat.patching import READ_RELEASES, Patch, Refusal, log_refusal
from backhaul.dask.compat.process_patches import PATCHES
from backhaul.dask.config.settings import switched_on

__all__ = [
    "SUPPORTED",
    "install",
    "install_for",
    "install_for_connecting_clients",
    "installed",
    "missing_features",
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
    if only is None and (device_arrays := _DEVICE_ARRAYS.load()) is not None:
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
    for kind, features in _FEATURES.items():
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


@dataclass(frozen=True)
class _Feature:
    """A part of Backhaul that is installed on one server, by a function of its module."""

    #: Module under `backhaul.dask`, imported when it is installed: a worker does without the
    #: scheduler's part
    module: str
    function: str = "install"
    #: Key of the configuration that switches it on; None: it has none, or several
    switch: str | None = None

    def install_for(self, server: Any) -> None:
        if not self.is_on():
            return
        module = self.load()
        if module is not None:
            getattr(module, self.function)(server)

    def load(self) -> Any:
        """Import its module; None if this Dask lacks a name that it needs, which the log says."""
        refusal = self.refusal()
        if refusal is None:
            return importlib.import_module(f"backhaul.dask.{self.module}")
        if refusal.is_new():
            log_refusal(logger, "Backhaul does without %s: %s", self.module, refusal)
        return None

    def is_on(self) -> bool:
        """Tell whether the configuration switches it on."""
        return self.switch is None or switched_on(self.switch)

    def refusal(self) -> Refusal | None:
        """Say which name of Dask its module lacks; None if it can be imported."""
        try:
            importlib.import_module(f"backhaul.dask.{self.module}")
        except MissingName as error:
            return Refusal(str(error), (error.path,))
        except AttributeError as error:
            # An attribute of Dask that is read when the module is imported
            return Refusal(str(error), (self.module,))
        return None


#: Serializers for arrays on devices, of the whole process
_DEVICE_ARRAYS: Final = _Feature("serialize.device_arrays")

#: Features of each kind of server, in the order in which they are installed
_FEATURES: Final[dict[type, tuple[_Feature, ...]]] = {
    Scheduler: (
        _Feature("worker.event_stream", "install_for_server", switch="hot-path.batching"),
        # Before the others are among the handlers
        _Feature("scheduler.core.handler_overrides", "watch", switch="hot-path.scheduler-core"),
        _Feature("scheduler.run_record"),
        # Below the in-flight window, which calls it as Dask's own
        _Feature("scheduler.inline_results", "install_for_scheduler"),
        _Feature("scheduler.window"),
        _Feature("scheduler.submissions", "install_for_scheduler"),
        _Feature("scheduler.fire_and_forget", "install_for_scheduler"),
        _Feature("observe.account"),
        _Feature("resource_pools.scheduler_slots"),
        _Feature("placement.link_placement", switch="placement.enabled"),
        _Feature("exchange.cluster", "install_for_scheduler", switch="exchange"),
        _Feature("scheduler.core.live_core", switch="hot-path.scheduler-core"),
    ),
    Worker: (
        _Feature("worker.event_stream", "install_for_server", switch="hot-path.batching"),
        _Feature("worker.memory"),
        _Feature("worker.memory_guard", "install_for_worker", switch="memory-guard"),
        _Feature("observe.heartbeat"),
        _Feature("resource_pools.worker_state"),
        _Feature("worker.spill_buffer", "install_for_worker", switch="hot-path.execution"),
        _Feature("worker.eviction", "install_for_worker"),
        _Feature("worker.spill_file", "install_for_worker", switch="spill-file"),
        _Feature("worker.lazy_collections", "install_for_worker", switch="hot-path.worker-threads"),
        _Feature("worker.inline_results", "install_for_worker"),
        _Feature("exchange.cluster", "install_for_worker", switch="exchange"),
    ),
    Nanny: (_Feature("worker.memory", "install_for_nanny"),),
    Client: (_Feature("client.methods"),),
}


def missing_features() -> dict[str, str]:
    """Return the features that this Dask lacks a name for, by their module, with the reason."""
    features = [_DEVICE_ARRAYS, *chain.from_iterable(_FEATURES.values())]
    reasons = {each.module: each.refusal() for each in features if each.is_on()}
    return {module: str(reason) for module, reason in reasons.items() if reason is not None}


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
