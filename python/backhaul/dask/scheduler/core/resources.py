"""Resource requests of tasks while the core has the state.

Python reads the requests (`scheduler_slots`), because these are in functions and annotations. The
core decides which worker has room and which tasks wait, by the same rules
(`crates/dask/src/scheduler/room.rs`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from backhaul.dask.compat.names import TaskState
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
    "export_requests",
    "import_requests",
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
            core.inherit_room(export_requests(slots, key_text))
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
        for text, amounts, threads, reason in live.core.take_unmet():
            asked = self.slots.asked.of(amounts, threads)
            self.slots.warn_unmet(live.texts.key(text), asked, reason)

    def release(self) -> None:
        """Return the core's use of resources to the slots, after the export of all tasks."""
        said = None if self.slots is None else self._live.core.room()
        if said is not None and self.slots is not None:
            live = self._live
            import_requests(
                self.slots, said, lambda text: live.scheduler.tasks[live.texts.key(text)]
            )


def export_requests(slots: SchedulerSlots, key_text: Callable[[Any], str]) -> dict[str, Any]:
    """Return the requests of tasks in the form of `SchedulerCore.room`."""
    tasks = slots.scheduler.tasks
    lines = {
        place: [ts for ts in line if ts.state == "no-worker" and tasks.get(ts.key) is ts]
        for place, line in slots.waiting.items()
    }
    unbound = {place[0] for place, line in lines.items() if line and not any(place[1])}
    passed = [one for one in slots.places.waiting() if one[0] in unbound]
    booked = [ts for ts in slots.booked if tasks.get(ts.key) is ts]
    (kept, _), kept_worker = slots.places.kept, slots.kept_worker
    return {
        "booked": [key_text(ts.key) for ts in sorted(booked, key=lambda ts: ts.run_id)],
        "waiting": [key_text(ts.key) for line in lines.values() for ts in line],
        "passed": [
            (*slots.places.asked(signature), stands, passes) for signature, stands, passes in passed
        ],
        "kept": next((n for n, one in enumerate(passed) if one[0] == kept), None),
        "kept_worker": None if kept_worker is None else kept_worker.address,
        "served": [slots.by_number[number].address for number in slots.places.served()],
        "drains": slots.drains,
    }


def import_requests(
    slots: SchedulerSlots, said: Mapping[str, Any], task_of: Callable[[str], TaskState]
) -> None:
    """Continue from what `SchedulerCore.room` of a core returned, which decides no more.

    The slots have no requests yet; their scheduler has the tasks of the core.
    """
    slots.activate(books=False)
    slots.meet_workers()
    for text in said["booked"]:
        ts = task_of(text)
        if ts.processing_on is not None:
            slots.book(ts, ts.processing_on, counts=True)
    for text in said["waiting"]:
        ts = task_of(text)
        asked = slots.asked.by(ts)
        if asked is not None:
            slots.line_of(ts, asked).add(ts)
    for number, (amounts, threads, place, passes) in enumerate(said["passed"]):
        signature = slots.asked.of(amounts, threads).signature
        slots.places.waits(signature, place, passes, is_kept=number == said["kept"])
    slots.resume(said["kept_worker"], said["served"], drains=said["drains"])
