"""Failure of tasks that no worker could run for too long, while the core has the state.

The code here replaces `Scheduler._check_no_workers`, which Dask calls four times a second: the core
makes the tasks fail, and this module writes Dask's log lines and event.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distributed import Scheduler

from backhaul.dask.compat.names import Status, monotonic, time

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["Timeouts"]

logger = logging.getLogger("distributed.scheduler")

#: How far the clock of `time` may move against that of `monotonic` before it was set, in seconds
_MOVES_S_MAX = 1.0


class Timeouts:
    """Makes tasks in a core fail that no worker could run for too long.

    `monotonic_offset_s` is the difference of `monotonic`, which Dask uses for such tasks, to the
    core's clock, `time`, in seconds.
    """

    def __init__(self, live: LiveCore, monotonic_offset_s: float) -> None:
        self._live = live
        self._offset_s = monotonic_offset_s

    def methods(self) -> dict[str, Callable[[Any], Any]]:
        """Return, by name, functions that make a replacement from the method of the class."""
        # A subclass's method runs unchanged; an access of it to tasks causes an escape.
        if type(self._live.scheduler)._check_no_workers is not Scheduler._check_no_workers:
            return {}
        return {"_check_no_workers": self._method}

    def timer(self, upstream: Callable[[], None]) -> Callable[[], None]:
        """Make the periodic callback that checks for such tasks."""
        if getattr(upstream, "__func__", None) is not Scheduler._check_no_workers:
            return upstream
        return functools.partial(self._check, upstream)

    def _method(self, upstream: Callable[[Any], None]) -> Callable[[Any], None]:
        def method(scheduler: Any) -> None:
            self._check(functools.partial(upstream, scheduler))

        return method

    def _check(self, upstream: Callable[[], None]) -> None:
        """Fail what has waited for too long; as Dask does if it has the state, or is to have it."""
        live = self._live
        scheduler = live.scheduler
        if not live.is_active or scheduler.no_workers_timeout is None:
            # Without a timeout, it looks at nothing.
            upstream()
            return
        if abs(monotonic() - time() - self._offset_s) > _MOVES_S_MAX:
            # Tasks have not waited for as long as that says.
            live.escape("the clock was set")
            upstream()
            return
        if scheduler.status in (Status.closing, Status.closed):
            return
        now_s = time()
        handle = live.core.handle_no_workers_check
        unsatisfied, without_workers = live.call(handle, f"check-no-workers-timeout-{now_s}", now_s)
        if not unsatisfied and not without_workers:
            return
        # Before `send`, which releases the keys of tasks that no client wants any more.
        affected = set(map(live.texts.key, [*unsatisfied, *without_workers]))
        for text in unsatisfied:
            logger.error(
                "Task %s marked as failed because it timed out waiting for its restrictions to "
                "become satisfied.",
                live.texts.key(text),
            )
        for text in without_workers:
            logger.error(
                "Task %s marked as failed because it timed out waiting without any running "
                "workers.",
                live.texts.key(text),
            )
        live.send()
        scheduler.log_event(
            "scheduler", {"action": "no-workers-timeout-exceeded", "keys": affected}
        )
