"""Plugins that watch which runs end: they hear of those that the core handled, some at a time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from backhaul.dask.scheduler_core.refusals import WATCHERS

if TYPE_CHECKING:
    from backhaul.dask.scheduler_core.live import LiveCore

__all__ = ["Watchers"]

logger = logging.getLogger("distributed.scheduler")


class Watchers:
    """The plugins of one scheduler that hear of ended runs while the core has its state.

    Parameters
    ----------
    live : LiveCore
        The core.
    """

    def __init__(self, live: LiveCore) -> None:
        self._live = live
        self._plugins: list[Any] = []

    def watch(self) -> None:
        """See which there are now, and have the core note what they are to hear, if any."""
        live = self._live
        plugins = live.scheduler.plugins.values()
        self._plugins = [plugin for plugin in plugins if type(plugin) in WATCHERS]
        live.core.note_ended_runs(bool(self._plugins))

    def is_watching(self) -> bool:
        """Tell whether there are any."""
        return bool(self._plugins)

    def tell(self) -> None:
        """Tell them what has ended well since."""
        if not self._plugins:
            return
        key = self._live.texts.recalled
        for text, run in self._live.core.take_ended_runs():
            self._transition(key(text), "memory", run)

    def tell_erred(self, key: Any, run: dict[str, Any]) -> None:
        """Tell them of a run that failed, after those before."""
        self.tell()
        self._transition(key, "erred", run)

    def _transition(self, key: Any, finish: str, run: dict[str, Any]) -> None:
        for plugin in self._plugins:
            try:
                plugin.transition(key, "processing", finish, **run)
            except Exception:  # As Dask does
                logger.info("Plugin failed with exception", exc_info=True)
