"""Plugins that watch what ends: they hear of what the core handled, some at a time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from backhaul.dask.scheduler.core.eligibility import WATCHERS, WATCHERS_OF_ENDS

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["Watchers"]

logger = logging.getLogger("distributed.scheduler")


#: What those know of what has ended, which somebody may read
_KNOWN_OF_RUNS = ("buffer", "index")
_KNOWN_OF_ENDS = ("keys", "all_keys", "status", "extra")


class Watchers:
    """The plugins of one scheduler that hear of ends while the core has its state.

    While they do, they are of classes made here: to read what one knows is to have it hear first.

    Parameters
    ----------
    live : LiveCore
        The core.
    """

    def __init__(self, live: LiveCore) -> None:
        self._live = live
        #: With the class that each had
        self._plugins: list[tuple[Any, type]] = []
        self._made: dict[type, type] = {}
        self._is_telling = False
        #: What Dask tells of runs that failed just now, by text of the key
        self._erred: dict[str, dict[str, Any]] = {}

    def watch(self) -> None:
        """See which there are now, and have the core note what they are to hear, if any."""
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
        """Give all of them their own classes back."""
        self._give_back(self._plugins)
        self._plugins = []

    def is_watching(self) -> bool:
        """Tell whether there are any."""
        return bool(self._plugins)

    def tell(self) -> None:
        """Tell them of what has ended since."""
        # One that hears may look at something: what has ended by then is told after that.
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
        """Make a class that has what is known of ends heard before it is read."""
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
            # Whoever is told just now, or asks for something before, reads what there is.
            if live.is_active and not self._is_telling:
                # What is read together is of one time
                live.look()
                live.forget_gone()
            try:
                return vars(plugin)[name]
            except KeyError:
                raise AttributeError(name, name=name, obj=plugin) from None

        def write(plugin: Any, value: Any) -> None:
            vars(plugin)[name] = value

        return live.home.attribute(name, read, write)
