"""Requests about tasks, workers and results that the core answers in the place of Dask."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from backhaul.dask.compat.names import key_split

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["Answers"]


class Answers:
    """Handlers of requests, which replace Dask's."""

    def __init__(self, live: LiveCore) -> None:
        self._live = live

    def get_who_has(self, keys: Iterable[Any] | None = None) -> Any:
        """Answer ``who_has``."""
        live = self._live
        return live.who_has(live.scheduler.tasks.keys() if keys is None else keys)

    def get_has_what(self, workers: Iterable[str] | None = None) -> Any:
        """Answer ``has_what``."""
        found = self._live.scheduler.workers
        addresses = list(found) if workers is None else self._addresses(workers)
        there = self._keys_in("has_what", [one for one in addresses if one in found])
        return {address: there.get(address, []) for address in addresses}

    def get_processing(self, workers: Iterable[str] | None = None) -> Any:
        """Answer ``processing``."""
        found = self._live.scheduler.workers
        addresses = list(found) if workers is None else self._addresses(workers)
        return self._keys_in("processing", addresses)

    def get_nbytes(self, keys: Iterable[Any] | None = None, summary: bool = True) -> Any:
        """Answer ``nbytes``."""
        live = self._live
        live.look()
        sizes = {}
        for key in live.scheduler.tasks.keys() if keys is None else keys:
            text = live.texts.known(key)
            if text is None:
                raise KeyError(key)
            sizes[key] = live.core.task_value(text, "nbytes")
        if keys is None:
            sizes = {key: nbytes for key, nbytes in sizes.items() if nbytes >= 0}
        if not summary:
            return sizes
        added: dict[str, int] = {}
        for key, nbytes in sizes.items():
            added[key_split(key)] = added.get(key_split(key), 0) + nbytes
        return added

    def _addresses(self, workers: Iterable[str]) -> list[str]:
        coerced = map(self._live.scheduler.coerce_address, workers)
        return list(dict.fromkeys(coerced))

    def _keys_in(self, name: str, addresses: Iterable[str]) -> dict[str, list[Any]]:
        live = self._live
        live.look()
        key = live.texts.key
        return {
            address: [key(text) for text in live.core.keys_in(name, address)]
            for address in addresses
        }

    def get_task_stream(self, upstream: Callable[..., Any]) -> Callable[..., Any]:
        """Make the handler of ``get_task_stream``, which returns ended runs."""

        @functools.wraps(upstream)
        def handle(*args: Any, **kwargs: Any) -> Any:
            self._live.forget_gone()
            return upstream(*args, **kwargs)

        return handle
