"""Resource requests of tasks while the core has the state.

Python reads the requests (`scheduler_slots`), because these are in functions and annotations. The
core decides which worker has room and which tasks wait, by the same rules
(`crates/dask/src/scheduler/room.rs`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backhaul.dask.resource_pools.requests import ANNOTATION, CPU
from backhaul.dask.resource_pools.scheduler_slots import SchedulerSlots, slots_of
from backhaul.dask.resource_pools.worker_inventory import described

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["ResourceAdmission", "carried_threads"]


def carried_threads(scheduler: Any) -> Callable[[dict[str, Any]], float | None] | None:
    """Return a function that reads the requested threads of a task from its annotations.

    None if a scheduler ignores the requests of tasks.
    """
    return None if slots_of(scheduler) is None else _threads


def _threads(annotations: dict[str, Any]) -> float | None:
    carried = annotations.get(ANNOTATION)
    return None if carried is None else carried[CPU]


class ResourceAdmission:
    """Exchange of resource requests and of units in use between the slots and the core.

    Parameters
    ----------
    live : LiveCore
        The owner of the core.
    """

    def __init__(self, live: LiveCore) -> None:
        self._live = live
        self.slots: SchedulerSlots | None = slots_of(live.scheduler)
        if self.slots is not None:
            self.slots.leave()
            for ws in live.scheduler.workers.values():
                self.describe(ws)

    def describe(self, ws: Any) -> None:
        """Pass the resources of a worker to the core, before the worker joins."""
        declared = None if self.slots is None else described(ws)
        if declared is not None:
            self._live.core.declare_worker(ws.address, declared)

    def is_first_with_cpu(self, ws: Any) -> bool:
        """Tell whether a worker is the first with a resource that is named as threads are."""
        if self.slots is None or CPU not in ws.resources:
            return False
        others = self._live.scheduler.resources[CPU].keys() - {ws.address}
        return not others and self._live.core.room() is not None

    def tell_unmet(self) -> None:
        """Warn of requests that no worker can ever meet."""
        if self.slots is None:
            return
        live = self._live
        for text, amounts, threads, reason in live.core.take_unmet():
            asked = self.slots.asked.of(amounts, threads)
            self.slots.warn_unmet(live.texts.key(text), asked, reason)

    def release(self) -> None:
        """Return the core's use of resources to the slots, after the export of all tasks."""
        said = None if self.slots is None else self._live.core.room()
        if said is not None and self.slots is not None:
            live = self._live
            self.slots.take_over(said, lambda text: live.scheduler.tasks[live.texts.key(text)])
