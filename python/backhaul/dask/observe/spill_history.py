"""History of the spills of a cluster: totals of Dask's metrics of workers, by time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from backhaul.dask.observe.verdict import Spilled

__all__ = ["SpillHistory"]

#: Shortest time between two reads of the totals, in seconds, and most entries
_STEP_S: Final = 0.5
_ENTRIES_MAX: Final = 4096
#: Activities and units of `Scheduler.cumulative_worker_metrics`
_WRITTEN: Final = ("disk-write", "bytes")
_READ: Final = ("disk-read", "bytes")
_SECONDS: Final = frozenset({("disk-write", "seconds"), ("disk-read", "seconds")})


class SpillHistory:
    """Totals of a scheduler, with the times at which they changed."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, Spilled]] = deque(maxlen=_ENTRIES_MAX)
        self._noted_s = 0.0

    def note(self, metrics: Mapping[Any, float], now_s: float) -> None:
        """Append the totals if they have changed; does nothing shortly after the last call."""
        if now_s - self._noted_s < _STEP_S:
            return
        self._noted_s = now_s
        total = _total(metrics)
        if not self._entries or total != self._entries[-1][1]:
            self._entries.append((now_s, total))

    def between(self, start_s: float, metrics: Mapping[Any, float]) -> Spilled:
        """Return what the totals of now have more than those before a time."""
        entries = [total for at_s, total in self._entries if at_s <= start_s]
        before = entries[-1] if entries else Spilled(0.0, 0.0, 0.0)
        return Spilled(*(now - then for now, then in zip(_total(metrics), before, strict=True)))


def _total(metrics: Mapping[Any, float]) -> Spilled:
    written = read = seconds = 0.0
    for name, value in metrics.items():
        kind = name[-2:] if isinstance(name, tuple) else None
        if kind == _WRITTEN:
            written += value
        elif kind == _READ:
            read += value
        elif kind in _SECONDS:
            seconds += value
    return Spilled(written, read, seconds)
