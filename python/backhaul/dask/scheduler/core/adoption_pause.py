"""Pauses between the escape of a scheduler's state from the core and the next adoption."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from distributed import Scheduler

from backhaul.dask.compat.names import Status, monotonic

__all__ = ["AdoptionPause"]

#: Length of the pause after an escape, relative to the time of the escape and of the adoption
#: before: conversions take at most a twentieth of the time, however often a program reads state
PAUSE_PER_CHANGE = 19.0

#: Shortest pause before an adoption without a new graph, in seconds
COME_BACK_S = 0.5

#: Length of the pause after an adoption that failed half way, in seconds
PAUSE_AFTER_FAILURE_S = 60.0


class AdoptionPause:
    """The time during which Dask keeps the state, and the adoption that follows without a graph.

    Attributes
    ----------
    until_s : float
        End of the pause, on the clock of `time.monotonic`.
    """

    def __init__(self, scheduler: Scheduler, adopt: Callable[[], bool]) -> None:
        self._scheduler: Any = scheduler
        self._adopt = adopt
        self.until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def after(self, change_s: float) -> None:
        """Pause adoptions so long that conversions take a small share of the time."""
        self.until_s = monotonic() + PAUSE_PER_CHANGE * change_s

    def after_failure(self) -> None:
        """Pause adoptions for long."""
        self.until_s = monotonic() + PAUSE_AFTER_FAILURE_S

    def adopt_later(self) -> None:
        """Schedule an adoption after the pause."""
        # Without a running event loop there are no events for a core.
        with contextlib.suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            pause_s = max(COME_BACK_S, self.until_s - monotonic())
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(pause_s, self.adopt_if_busy)

    def adopt_if_busy(self) -> None:
        """Adopt the state if tasks are under way; the next graph does that in an idle scheduler."""
        scheduler = self._scheduler
        if scheduler.status is not Status.running:
            return
        is_busy = scheduler.queued or any(ws.processing for ws in scheduler.workers.values())
        if is_busy and not self._adopt():
            self.adopt_later()
