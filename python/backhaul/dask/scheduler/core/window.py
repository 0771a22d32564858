"""The in-flight window of each worker while the core has the state.

The window uses the expected durations and sizes of `backhaul.dask.scheduler.window`, and updates
them, so that they are kept after an escape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backhaul.dask.scheduler.saturation import InFlight, excess_tasks, floor_tasks, room_tasks
from backhaul.dask.scheduler.window import InFlightWindow

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["CoreWindow", "compute_seconds"]


#: Work of a thread, in seconds, above which tasks that were sent on a wrong guess are taken back
_WORTH_TAKING_BACK_S = 0.2


#: So many long tasks in a row are no chance
_LONG_IN_ROW = 4

#: A task that takes so long, in seconds, has not merely waited for a CPU
_SURELY_LONG_S = 1.0


class CoreWindow:
    """Fills the workers of a core.

    Parameters
    ----------
    live : LiveCore
        The core.
    window : InFlightWindow
        Fills the workers while Dask has the state.
    """

    def __init__(self, live: LiveCore, window: InFlightWindow) -> None:
        self._live = live
        self._window = window
        #: By prefix, of which a task took longer than this, in seconds: how many in a row did
        self._suspected: dict[str, tuple[float, int]] = {}

    @property
    def upstream(self) -> InFlightWindow:
        """The window that fills the workers while Dask has the state."""
        return self._window

    def limits(self, saturation: float) -> tuple[float, float, float, float, float]:
        """Return the limits of a window, in the order of `SchedulerStreams`."""
        limits = self._window.limits
        return (
            float(limits.seconds),
            float(limits.tasks_per_thread),
            float(limits.memory_share),
            float(limits.memory_budget_bytes),
            float(saturation),
        )

    def finished(self, group: str, prefix: str, message: dict[str, Any]) -> bool:
        """Update the expectation from a task; tell whether the expectation was wrong."""
        window = self._window
        expectation = window.expectations.get(prefix)
        alarm_s = 0.0 if expectation is None else expectation.seconds_alarm
        is_surprised = window.observe(group, prefix, message)
        if expectation is None:
            return False
        seconds = compute_seconds(message)
        suspected = self._suspected.pop(prefix, None)
        if expectation.is_heavier or seconds >= _SURELY_LONG_S:
            return is_surprised
        # A few tasks may have waited for a CPU, and stealing tasks back causes an escape.
        if suspected is None and not is_surprised:
            return False
        limit_s, in_row = suspected or (alarm_s, 0)
        if seconds <= limit_s:
            return False
        if in_row + 1 < _LONG_IN_ROW:
            self._suspected[prefix] = limit_s, in_row + 1
            return False
        return True

    def refill(self, worker: str, stimulus_id: str, now_s: float) -> None:
        """Send tasks to a worker whose number of tasks has fallen to the refill limit."""
        core, window = self._live.core, self._window
        tasks = core.in_flight(worker)
        if tasks > window.low_tasks.get(worker, tasks):
            return
        ws = self._live.scheduler.workers[worker]
        floor = floor_tasks(ws.nthreads, self._live.scheduler.WORKER_SATURATION)
        while (front := core.front(worker)) is not None:
            room = self._room(ws, front, floor)
            if not room:
                break
            sent = core.fill(stimulus_id, now_s, worker, room)
            tasks += sent
            if not sent or sent == room:
                break
        window.note_filled(worker, max(tasks // 2, floor))

    def has_too_many(self, prefix: str) -> bool:
        """Tell whether a worker has so many tasks of a prefix that stealing some back is useful."""
        window = self._window
        expectation = window.expectations[prefix]
        expectation.act()
        for ws in self._live.scheduler.workers.values():
            floor = floor_tasks(ws.nthreads, self._live.scheduler.WORKER_SATURATION)
            if self._live.core.in_flight(ws.address) <= floor:
                continue
            in_flight = self._in_flight(ws)
            if in_flight is None:
                continue
            excess = excess_tasks(window.limits, in_flight, expectation, floor_tasks=floor)
            # The gain must be worth an escape.
            if (
                excess * expectation.seconds / in_flight.threads > _WORTH_TAKING_BACK_S
                or excess * expectation.nbytes > in_flight.budget_bytes
            ):
                return True
        return False

    def give_back(self, prefix: str) -> None:
        """Steal tasks of a prefix back from workers that have too many; causes an escape."""
        self._window.give_back(prefix)

    def _room(self, ws: Any, front: tuple[str, str, float, int], floor: int) -> int:
        group, prefix, duration_s, queued = front
        window = self._window
        confirmed = window.confirmed.get(group, 0)
        expectation = window.expectations.get(prefix)
        if expectation is None or not confirmed or duration_s < 0:
            return 0
        in_flight = self._in_flight(ws)
        if in_flight is None:
            return 0
        expectation.act()
        return room_tasks(
            window.limits,
            in_flight,
            expectation,
            floor_tasks=floor,
            confirmed=confirmed,
            queued=queued,
            threads_all=self._live.scheduler.total_nthreads,
        )

    def _in_flight(self, ws: Any) -> InFlight | None:
        in_flight = self._window.nothing_in_flight(ws)
        for prefix, tasks in self._live.core.in_flight_by_prefix(ws.address):
            expectation = self._window.expectations.get(prefix)
            if expectation is None:
                return None
            in_flight.add(tasks, expectation)
        return in_flight


def compute_seconds(message: dict[str, Any]) -> float:
    """Return how long a task ran by its worker's report, in seconds."""
    return sum(
        (one["stop"] - one["start"] for one in message["startstops"] if one["action"] == "compute"),
        0.0,
    )
