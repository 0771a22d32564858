"""Batched notification of Dask's plugins that need only the ends of runs and of tasks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from backhaul.dask.scheduler.core.eligibility import WATCHERS, WATCHERS_OF_ENDS

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["Watchers"]

logger = logging.getLogger("distributed.scheduler")


#: Attributes of these plugins that depend on past transitions, and that a program may read
_KNOWN_OF_RUNS = ("buffer", "index")
_KNOWN_OF_ENDS = ("keys", "all_keys", "status", "extra")


class Watchers:
    """The plugins of one scheduler that are notified of ends while the core has its state.

    Meanwhile each plugin has a class made here, with properties that notify the plugin before they
    return the attribute.
    """

    def __init__(self, live: LiveCore) -> None:
        self._live = live
        #: The plugins, each with its own class
        self._plugins: list[tuple[Any, type]] = []
        self._made: dict[type, type] = {}
        self._is_telling = False
        #: Arguments of Dask's transition of runs that failed just now, by text of the key
        self._erred: dict[str, dict[str, Any]] = {}

    def watch(self) -> None:
        """Update the list of plugins, and let the core note the transitions that they need."""
        live = self._live
        there = list(live.scheduler.plugins.values())
        stay = [one for one in self._plugins if any(one[0] is plugin for plugin in there)]
        self._give_back([one for one in self._plugins if one not in stay])
        come = [(plugin, type(plugin)) for plugin in there if type(plugin) in WATCHERS]
        for plugin, own in come:
            plugin.__class__ = self._class(own)
        self._plugins = [*stay, *come]
        wants_ends = any(own in WATCHERS_OF_ENDS for _, own in self._plugins)
        live.core.watch("ends" if wants_ends else "runs" if self._plugins else "nothing")

    def release(self) -> None:
        """Restore the classes of all plugins."""
        self._give_back(self._plugins)
        self._plugins = []

    def is_watching(self) -> bool:
        """Tell whether there are such plugins."""
        return bool(self._plugins)

    def tell(self) -> None:
        """Notify the plugins of the transitions since the last call."""
        # A plugin may read state, which calls this method again: the loop below continues then.
        if not self._plugins or self._is_telling:
            return
        key_of = self._live.texts.key
        self._is_telling = True
        try:
            while noted := self._live.core.take_noted():
                for text, start, finish, told in noted:
                    if finish == "erred":
                        self._tell_erred(text, start, told)
                    else:
                        is_run = finish == "memory"
                        self._transition(key_of(text), start, finish, told, is_run=is_run)
        finally:
            self._is_telling = False

    def tell_erred(self, text: str, run: dict[str, Any]) -> None:
        """Notify the plugins of a failed run, after all earlier transitions."""
        self._erred[text] = run
        self.tell()
        # If no plugin needs all ends, the core notes no failed runs.
        if text in self._erred:
            self._tell_erred(text, "processing", {})

    def _tell_erred(self, text: str, start: str, told: dict[str, Any]) -> None:
        run = self._erred.pop(text, None)
        is_run = run is not None
        if run is None:
            # A dependency failed, or the scheduler itself made the task fail.
            task = self._live.tasks.task(text) if self._live.core.has_task(text) else None
            run = {**told, "exception": True if task is None else task.exception}
        self._transition(self._live.texts.key(text), start, "erred", run, is_run=is_run)

    def _transition(
        self, key: Any, start: str, finish: str, told: dict[str, Any], *, is_run: bool
    ) -> None:
        for plugin, own in self._plugins:
            if not is_run and own not in WATCHERS_OF_ENDS:
                continue
            try:
                plugin.transition(key, start, finish, **told)
            except Exception:  # As Dask does
                logger.info("Plugin failed with exception", exc_info=True)

    @staticmethod
    def _give_back(plugins: list[tuple[Any, type]]) -> None:
        for plugin, own in plugins:
            plugin.__class__ = own

    def _class(self, own: type) -> type:
        """Make a subclass whose attributes notify the plugin before they are read."""
        if own not in self._made:
            known = _KNOWN_OF_ENDS if own in WATCHERS_OF_ENDS else _KNOWN_OF_RUNS
            members: dict[str, Any] = {name: self._heard(name) for name in known}
            made = type(own)(own.__name__, (own,), {"__doc__": own.__doc__, **members})
            made.__module__ = own.__module__
            made.__qualname__ = own.__qualname__
            self._made[own] = made
        return self._made[own]

    def _heard(self, name: str) -> property:
        live = self._live

        def read(plugin: Any) -> Any:
            # A plugin that reads its attribute during its notification gets the current value.
            if live.is_active and not self._is_telling:
                # Pauses the engine, so that several reads see one state
                live.look()
                live.forget_gone()
            try:
                return vars(plugin)[name]
            except KeyError:
                raise AttributeError(name, name=name, obj=plugin) from None

        def write(plugin: Any, value: Any) -> None:
            vars(plugin)[name] = value

        return live.loop_thread.attribute(name, read, write)
