"""Plugins that watch what ends: they hear of what the core handled, some at a time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from backhaul.dask.scheduler_core.refusals import WATCHERS, WATCHERS_OF_ENDS

if TYPE_CHECKING:
    from backhaul.dask.scheduler_core.live import LiveCore

__all__ = ["Watchers"]

logger = logging.getLogger("distributed.scheduler")


class Watchers:
    """The plugins of one scheduler that hear of ends while the core has its state.

    Parameters
    ----------
    live : LiveCore
        The core.
    """

    def __init__(self, live: LiveCore) -> None:
        self._live = live
        self._plugins: list[Any] = []
        #: What Dask tells of runs that failed just now, by text of the key
        self._erred: dict[str, dict[str, Any]] = {}

    def watch(self) -> None:
        """See which there are now, and have the core note what they are to hear, if any."""
        live = self._live
        plugins = live.scheduler.plugins.values()
        self._plugins = [plugin for plugin in plugins if type(plugin) in WATCHERS]
        wants_ends = any(type(plugin) in WATCHERS_OF_ENDS for plugin in self._plugins)
        live.core.watch("ends" if wants_ends else "runs" if self._plugins else "nothing")

    def is_watching(self) -> bool:
        """Tell whether there are any."""
        return bool(self._plugins)

    def tell(self) -> None:
        """Tell them of what has ended since."""
        if not self._plugins:
            return
        key_of = self._live.texts.key
        for text, start, finish, told in self._live.core.take_noted():
            if finish == "erred":
                self._tell_erred(text, start, told)
            else:
                is_run = finish == "memory"
                self._transition(key_of(text), start, finish, told, is_run=is_run)

    def tell_erred(self, text: str, run: dict[str, Any]) -> None:
        """Tell them of a run that failed, after those before."""
        self._erred[text] = run
        self.tell()
        # Where nobody wants all ends, the core does not say so.
        if text in self._erred:
            self._tell_erred(text, "processing", {})

    def _tell_erred(self, text: str, start: str, told: dict[str, Any]) -> None:
        run = self._erred.pop(text, None)
        is_run = run is not None
        if run is None:
            # What it depends on failed, or the scheduler found something.
            task = self._live.tasks.task(text) if self._live.core.has_task(text) else None
            run = {**told, "exception": True if task is None else task.exception}
        self._transition(self._live.texts.key(text), start, "erred", run, is_run=is_run)

    def _transition(
        self, key: Any, start: str, finish: str, told: dict[str, Any], *, is_run: bool
    ) -> None:
        for plugin in self._plugins:
            if not is_run and type(plugin) not in WATCHERS_OF_ENDS:
                continue
            try:
                plugin.transition(key, start, finish, **told)
            except Exception:  # As Dask does
                logger.info("Plugin failed with exception", exc_info=True)
