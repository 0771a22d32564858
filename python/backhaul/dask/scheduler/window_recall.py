"""Steals tasks back from workers that were sent too many.

Tasks are sent on a guess of what they take. When the guess turns out to be wrong, those that have
not begun go back into the queue. The worker is asked by the messages of work stealing: it gives a
task up only if it has not begun, and says so, so nothing runs twice.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable
from typing import Any

from distributed import Scheduler, SchedulerPlugin

from backhaul.dask.compat.instance_patches import WINDOW
from backhaul.dask.compat.names import TaskState, WorkerState
from backhaul.dask.compat.patching import Replacement

__all__ = ["StealBack"]

logger = logging.getLogger(__name__)

_STIMULUS = "in-flight-steal-back-"
#: States of a task in which a worker gives it up, as upstream's work stealing knows them
GIVEN_UP = frozenset({"ready", "constrained", "waiting"})


class _Losses(SchedulerPlugin):
    """Plugin that is notified of lost workers; installed only while requests are pending."""

    def __init__(self, forget: Callable[[str], None]) -> None:
        # Its own name, as one that was uninstalled may still wait for answers.
        self.name = f"backhaul-steal-back-{id(self)}"
        self._forget = forget

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
        self._forget(worker)


class StealBack:
    """The pending requests of one scheduler to steal tasks back from workers."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        #: Pending requests: the stimulus, the worker and the run of each task
        self.asked: dict[Any, tuple[str, WorkerState, int | None]] = {}
        self._count = itertools.count()
        #: The handler of answers that was replaced
        self._replaced: Replacement | None = None
        #: To be detached once nothing is asked for
        self._leaves = False
        self._losses = _Losses(self._forget_worker)

    def attach(self) -> None:
        """Listen to the answers, besides upstream's work stealing."""
        response = "stream_handlers[steal-response]"
        replaced = WINDOW.install(self.scheduler, {response: self.handle_response})
        self._replaced = replaced.get(response)

    def detach(self) -> None:
        """Leave them to upstream, after the last one that is under way."""
        self._leaves = True
        # Later otherwise: without a handler, the task in an answer would be lost.
        if not self.asked and self._replaced is not None:
            self._replaced.take_back()

    def ask(self, ws: WorkerState, prefix: str, tasks: int) -> int:
        """Ask a worker for tasks of one prefix, those that are to run last; return how many."""
        scheduler = self.scheduler
        stealing = scheduler.extensions.get("stealing")
        in_flight = () if stealing is None else stealing.in_flight
        candidates = [
            ts
            for ts in ws.processing
            if ts.prefix.name == prefix
            and ts not in ws.long_running
            and ts not in ws.executing
            and ts not in in_flight
            and ts.key not in self.asked
            and self._came_from_the_queue(ts)
        ]
        chosen = heapq.nlargest(tasks, candidates, key=lambda ts: ts.priority or ())
        stimulus_id = f"{_STIMULUS}{next(self._count)}"
        for ts in chosen:
            self.asked[ts.key] = (stimulus_id, ws, ts.run_id)
        requests = [
            {"op": "steal-request", "key": ts.key, "stimulus_id": stimulus_id} for ts in chosen
        ]
        if requests:
            scheduler.add_plugin(self._losses, idempotent=True)
            logger.debug("%s gives back up to %d tasks of %s", ws, len(requests), prefix)
            scheduler.send_all({}, {ws.address: requests})
        return len(requests)

    def handle_response(
        self, *, key: Any, state: str | None, stimulus_id: str, worker: str | None = None
    ) -> None:
        """Handle an answer; takes the place of the handler of upstream's work stealing."""
        asked = self.asked.get(key)
        if asked is None or asked[0] != stimulus_id:
            original = None if self._replaced is None else self._replaced.original
            if original is not None:
                original(key=key, state=state, stimulus_id=stimulus_id, worker=worker)
            return
        del self.asked[key]
        self._settle()
        _, ws, run_id = asked
        ts = self.scheduler.tasks.get(key)
        if ts is None or ts.processing_on is not ws or ts.run_id != run_id:
            # The task has been stolen, released or lost since it was asked for.
            return
        if state in GIVEN_UP:
            # The task goes back to waiting, and from there into the queue.
            self.scheduler.transitions({key: "released"}, stimulus_id)

    def _came_from_the_queue(self, ts: TaskState) -> bool:
        return bool(ts._queueable and not ts.actor and self.scheduler.is_rootish(ts))

    def _forget_worker(self, worker: str) -> None:
        """Expect no more answers of a worker: its tasks are somewhere else now."""
        for key, (_, ws, _) in list(self.asked.items()):
            if ws.address == worker:
                del self.asked[key]
        self._settle()

    def _settle(self) -> None:
        if not self.asked:
            # A plugin costs a call at each transition of each task.
            if self._losses.name in self.scheduler.plugins:
                self.scheduler.remove_plugin(self._losses.name)
            if self._leaves:
                self.detach()
