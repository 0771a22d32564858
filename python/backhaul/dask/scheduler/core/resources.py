"""Resource requests of tasks while the core has the state.

Python reads the requests (`scheduler_slots`), because these are in functions and annotations. The
core decides which worker has room and which tasks wait (`crates/dask/src/scheduler/room.rs`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backhaul.dask.resource_pools.requests import ANNOTATION, CPU
from backhaul.dask.resource_pools.scheduler_slots import SchedulerSlots, slots_of
from backhaul.dask.resource_pools.worker_inventory import described
from backhaul.dask.scheduler.core.adopted_tasks import ThreadsOf
from backhaul.errors import EscapeError

if TYPE_CHECKING:
    from backhaul._native import SchedulerCore
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = [
    "ResourceAdmission",
    "begin_admission",
    "carried_threads",
]


def carried_threads(scheduler: Any) -> ThreadsOf | None:
    """Return a function that reads the requested threads of a task from its annotations.

    None if a scheduler ignores the requests of tasks. The function raises `EscapeError` for a
    request that a core cannot hold: to a core, ``CPU`` is threads and never a worker's resource.
    """
    slots = slots_of(scheduler)
    if slots is None:
        return None

    def threads_of(ts: Any) -> float | None:
        if slots.is_outdated(ts):
            raise EscapeError(f"{ts.key!r} asks for threads by the name of a worker's resource")
        if ts.resource_restrictions:
            # In any state: a result may be lost, and its task sent again.
            if CPU in ts.resource_restrictions:
                raise EscapeError(f"{ts.key!r} asks for a resource that is called as threads are")
            if not slots.is_active:
                raise EscapeError(f"{ts.key!r} asks for resources that only Dask heeds")
        carried = (ts.annotations or {}).get(ANNOTATION)
        return None if carried is None else carried[CPU]

    return threads_of


def begin_admission(
    core: SchedulerCore, scheduler: Any, key_text: Callable[[Any], str] = str
) -> None:
    """Pass units of workers, and which tasks hold or wait for some, to a new core.

    Raises
    ------
    EscapeError
        If a worker holds units for a task that it does not have; the core is unusable then.
    """
    slots = slots_of(scheduler)
    if slots is None:
        return
    for ws in scheduler.workers.values():
        if (declared := described(ws)) is not None:
            core.declare_worker(ws.address, declared)
    if slots.is_active:
        try:
            core.inherit_room(slots.state(key_text))
        except LookupError as error:
            raise EscapeError(str(error)) from error


class ResourceAdmission:
    """Exchange of resource requests and of units in use between the slots and the core."""

    def __init__(self, live: LiveCore) -> None:
        self._live = live
        self.slots: SchedulerSlots | None = slots_of(live.scheduler)

    def leave(self) -> None:
        """Clear the slots, whose state the core has."""
        if self.slots is not None:
            self.slots.clear()

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
        for unmet in live.core.take_unmet():
            asked = self.slots.asked.of(unmet.amounts, unmet.threads)
            self.slots.warn_unmet(live.texts.key(unmet.key), asked, unmet.reason)

    def release(self) -> None:
        """Return the core's use of resources to the slots, after the export of all tasks."""
        live = self._live
        state = None if self.slots is None else live.core.room()
        if state is not None and self.slots is not None:
            self.slots.resume(state, lambda text: live.scheduler.tasks[live.texts.key(text)])
