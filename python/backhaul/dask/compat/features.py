"""Features of single servers: which each gets, in which order, and which this Dask lacks names for.

A feature whose module cannot be imported, because this Dask lacks a name, is left out alone;
``backhaul doctor`` lists those by `missing_features`.
"""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from distributed import Client, Nanny, Scheduler, Worker

from backhaul.dask.compat.names import MissingName
from backhaul.dask.compat.patching import Refusal, log_refusal
from backhaul.dask.config.settings import switched_on

__all__ = ["DEVICE_ARRAYS", "FEATURES", "Feature", "missing_features"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Feature:
    """A part of Backhaul that is installed on one server, by a function of its module."""

    #: Module under `backhaul.dask`, imported when it is installed: a worker does without the
    #: scheduler's part
    module: str
    function: str = "install"
    #: Key of the configuration that switches it on; None: it has none, or several
    switch: str | None = None

    def install_for(self, server: Any) -> None:
        """Install it on a server, if it is switched on and Dask has what it needs."""
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
DEVICE_ARRAYS: Final = Feature("serialize.device_arrays")

#: Features of each kind of server, in the order in which they are installed
FEATURES: Final[dict[type, tuple[Feature, ...]]] = {
    Scheduler: (
        Feature("worker.event_stream", "install_for_server", switch="hot-path.batching"),
        # Before the others are among the handlers
        Feature("scheduler.core.handler_overrides", "watch", switch="hot-path.scheduler-core"),
        Feature("scheduler.run_record"),
        # Below the in-flight window, which calls it as Dask's own
        Feature("scheduler.inline_results", "install_for_scheduler"),
        Feature("scheduler.window"),
        Feature("scheduler.submissions", "install_for_scheduler"),
        Feature("scheduler.fire_and_forget", "install_for_scheduler"),
        Feature("observe.account"),
        Feature("resource_pools.scheduler_slots"),
        Feature("placement.link_placement", switch="placement.enabled"),
        Feature("exchange.cluster", "install_for_scheduler", switch="exchange"),
        Feature("scheduler.core.live_core", switch="hot-path.scheduler-core"),
    ),
    Worker: (
        Feature("worker.event_stream", "install_for_server", switch="hot-path.batching"),
        Feature("worker.memory"),
        Feature("worker.memory_guard", "install_for_worker", switch="memory-guard"),
        Feature("observe.heartbeat"),
        Feature("resource_pools.worker_state"),
        Feature("worker.spill_buffer", "install_for_worker", switch="hot-path.execution"),
        Feature("worker.eviction", "install_for_worker"),
        Feature("worker.spill_file", "install_for_worker", switch="spill-file"),
        Feature("worker.lazy_collections", "install_for_worker", switch="hot-path.worker-threads"),
        Feature("worker.inline_results", "install_for_worker"),
        Feature("exchange.cluster", "install_for_worker", switch="exchange"),
    ),
    Nanny: (Feature("worker.memory", "install_for_nanny"),),
    Client: (Feature("client.methods"),),
}


def missing_features() -> dict[str, str]:
    """Return the features that this Dask lacks a name for, by their module, with the reason."""
    features = [DEVICE_ARRAYS, *chain.from_iterable(FEATURES.values())]
    reasons = {each.module: each.refusal() for each in features if each.is_on()}
    return {module: str(reason) for module, reason in reasons.items() if reason is not None}
