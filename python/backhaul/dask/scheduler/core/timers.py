"""Periodic callbacks of a scheduler while the core has its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backhaul.dask.compat.names import ActiveMemoryManagerExtension
from backhaul.dask.scheduler.core.replicas import may_look, only_reduces

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["Timers"]


class Timers:
    """Makes callbacks of timers, which replace Dask's."""

    def __init__(self, live: LiveCore) -> None:
        self._live = live

    def of(self, name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]] | None:
        """Return the function that makes a timer's callback; None if Dask's callback stays."""
        if name.startswith("amm-"):
            return self.manage_memory
        return {
            "idle-timeout": self.check_idle,
            "no-workers-timeout": self._live.timeouts.timer,
            "stealing": self.balance,
        }.get(name)

    def balance(self, upstream: Callable[[], None]) -> Callable[[], None]:
        """Make the callback that balances tasks among workers."""

        def balance() -> None:
            live = self._live
            if live.stealing.extension is not None:
                live.stealing.balance()
            elif live.core.may_balance():
                live.escape("tasks may be stolen")
                upstream()

        return balance

    def manage_memory(self, upstream: Callable[[], None]) -> Callable[[], None]:
        """Make the callback of the active memory manager."""
        manager = getattr(upstream, "__self__", None)

        def run_once() -> None:
            live = self._live
            if not live.core.has_any("replicated_tasks"):
                # Other attributes that its policies read are answered or cause an escape.
                upstream()
            elif isinstance(manager, ActiveMemoryManagerExtension) and only_reduces(manager):
                with live.alone(), live.replicas_shown():
                    upstream()
            elif isinstance(manager, ActiveMemoryManagerExtension) and may_look(manager):
                with live.alone():
                    upstream()
            else:
                live.escape("copies of results")
                upstream()

        return run_once

    def check_idle(self, upstream: Callable[[], Any]) -> Callable[[], Any]:
        """Make the callback that checks the scheduler's idle time-out."""

        def check_idle() -> Any:
            if self._live.core.is_idle():
                return upstream()
            self._live.scheduler.idle_since = None
            return None

        return check_idle
