"""Tasks that ask for resources in streams of events: our slots on upstream's side, and the core.

Both have the rules of `backhaul.dask.resource_pools.scheduler_slots`; what is asked for is read by
that for both.
"""

from __future__ import annotations

from typing import Any

from backhaul._native import ResourcePlaces
from backhaul.dask.resource_pools import scheduler_slots
from backhaul.dask.resource_pools.request_index import RequestIndex
from backhaul.dask.resource_pools.requests import ANNOTATION

from .events import Event
from .upstream import Upstream

__all__ = ["AskingUpstream", "requirements_of"]

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
        self.joined: list[str] = []
        vars(slots)["_drain_soon"] = lambda: vars(slots).update(_drains=True)
        vars(slots)["_meet_workers"] = self._meet_workers

    def _meet_workers(self) -> None:
        # Of equal workers the first one that joined is taken, as the core does.
        for address in self.joined:
            ws = self.state.workers.get(address)
            if ws is not None and ws not in self.slots._numbers:
                self.slots._set_worker(ws)

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
        if event.name == "worker_added" and event.arguments["address"] not in self.state.workers:
            address = event.arguments["address"]
            self.joined = [*(one for one in self.joined if one != address), address]
        refused = super().apply(event, now_s)
        if refused and event.name != "cancel":
            return True
        try:
            if self.slots.is_active:
                self._meet_workers()
            while self.slots._drains:
                self.slots.drain()
        except (AssertionError, KeyError, RuntimeError, TypeError, ValueError) as error:
            self.refusal = error
        return self.refusal is not None


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
