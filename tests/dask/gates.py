"""Gates that tasks of a test wait for."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["Gates"]


class Gates:
    """An event for each name, made when it is first asked for; threads may ask at the same time.

    A `collections.defaultdict` of events is no such thing: two threads that ask for a new name at
    once get two events, and who waits for one of them is not woken by the other.
    """

    def __init__(self) -> None:
        self._events: dict[Any, threading.Event] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: Any) -> threading.Event:
        with self._lock:
            return self._events.setdefault(name, threading.Event())

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._events.clear()

    def open_all(self) -> None:
        """Release the tasks that wait for any of them."""
        with self._lock:
            for event in self._events.values():
                event.set()
