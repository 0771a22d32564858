"""Tasks that ask for resources in streams of events: our slots on upstream's side, and the core.

Both ask the `Admission` of `backhaul_placement`, whose rules have their own tests; here is compared
what each of them tells it. `backhaul.dask.resource_pools.scheduler_slots` reads the requests for
both.
"""

from __future__ import annotations

from typing import Any

from backhaul._native import ResourcePlaces, RoomState, SchedulerCore
from backhaul.dask.resource_pools import scheduler_slots
from backhaul.dask.resource_pools.request_index import RequestIndex
from backhaul.dask.resource_pools.requests import ANNOTATION
from backhaul.dask.scheduler.core.resources import begin_admission

from .events import Event
from .upstream import Upstream

__all__ = ["AskingUpstream", "asked_of", "requirements_of"]

_ASKED = RequestIndex(ResourcePlaces())


class AskingUpstream(Upstream):
    """Upstream's scheduler with our slots, which send what waits at the end of each event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not scheduler_slots.install(self.state):
            raise RuntimeError("the slots do not fit this release")
        slots = scheduler_slots.slots_of(self.state)
        assert slots is not None
        self.slots: Any = slots
        vars(slots)["drain_soon"] = lambda: vars(slots).update(drains=True)

    def adopt(self, settings: dict[str, Any]) -> SchedulerCore:
        core = super().adopt(settings)
        begin_admission(core, self.state)
        return core

    def forget_gone(self) -> None:
        """Forget what a conversion does not keep.

        These are lines whose tasks do not wait any more, or may run on other workers than when they
        began to wait; and that some ranking has yet to learn which of two equal workers was served
        longer ago.
        """
        if self.slots.is_active:
            state = self.slots.state(str)
            self.slots.clear()
            self.slots.resume(state, self.state.tasks.__getitem__)

    def go_on(self, core: SchedulerCore) -> None:
        """Take over the requests of a core, whose tasks it has."""
        state = core.room()
        if state is not None:
            self.slots.resume(state, self.state.tasks.__getitem__)

    def _long_running(
        self, stimulus: str, key: str, worker: str, run_id: int, compute_s: float | None
    ) -> None:
        self.state.stream_handlers["long-running"](
            key=key,
            worker=worker,
            run_id=run_id,
            compute_duration=compute_s,
            stimulus_id=stimulus,
        )

    def apply(self, event: Event, now_s: float) -> bool:
        refused = super().apply(event, now_s)
        if refused and event.name != "cancel":
            return True
        try:
            if self.slots.is_active:
                self.slots.meet_workers()
            while self.slots.drains:
                self.slots.drain()
        except (AssertionError, KeyError, RuntimeError, TypeError, ValueError) as error:
            self.refusal = error
        return self.refusal is not None


def asked_of(side: Upstream) -> RoomState | None:
    """Return the requests for resources as `SchedulerCore.room` does."""
    if not isinstance(side, AskingUpstream) or not side.slots.is_active:
        return None
    state: RoomState = side.slots.state(str)
    return state


def requirements_of(annotations: dict[str, Any]) -> dict[str, Any]:
    """Return the requests of a core for resources; puts their payload among the annotations."""
    amounts = annotations.get("resources") or {}
    if not amounts:
        return {}
    wanted = _ASKED.wanted(annotations, amounts, None, declares_cpu=False)
    assert wanted is not None
    if wanted.carried is not None:
        annotations[ANNOTATION] = wanted.carried
    threads = None if wanted.carried is None else wanted.carried["CPU"]
    return {"resources": wanted.restrictions or None, "threads": threads}
