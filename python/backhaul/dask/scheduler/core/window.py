"""The in-flight window of each worker while the core has the state.

The policy is the one of `backhaul.dask.scheduler.window`, so that expectations are kept after an
escape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backhaul.dask.scheduler.window import InFlightWindow, compute_seconds

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["CoreWindow"]


class CoreWindow:
    """Fills the workers of a core; the `InFlightWindow` does while Dask has the state."""

    def __init__(self, live: LiveCore, window: InFlightWindow) -> None:
        self._live = live
        self._window = window

    @property
    def upstream(self) -> InFlightWindow:
        """The window that fills the workers while Dask has the state."""
        return self._window

    def finished(self, group: str, prefix: str, message: dict[str, Any]) -> bool:
        """Update the expectation from a task; tell whether the expectation was wrong."""
        seconds, nbytes = compute_seconds(message), message["nbytes"] or 0
        return self._window.policy.observe(group, prefix, seconds, nbytes, patiently=True)

    def refill(self, worker: str, stimulus_id: str, now_s: float) -> None:
        """Send tasks to a worker whose number of tasks has fallen to the refill limit."""
        self._note_memory(worker)
        self._window.policy.refill(self._live.core, worker, stimulus_id, now_s)

    def has_too_many(self, prefix: str) -> bool:
        """Tell whether a worker has so many tasks of a prefix that stealing some back is useful."""
        for worker in self._live.scheduler.workers:
            self._note_memory(worker)
        return self._window.policy.has_too_many(self._live.core, prefix)

    def give_back(self, prefix: str) -> None:
        """Steal tasks of a prefix back from workers that have too many; causes an escape."""
        self._window.give_back(prefix)

    def _note_memory(self, worker: str) -> None:
        metrics = self._live.scheduler.workers[worker].metrics
        self._window.policy.set_memory(worker, metrics.get("memory", 0))
