"""History of the bytes that the workers of a cluster received in the last minutes, by lane.

The scheduler adds what each heartbeat reports to the current interval, so that a page that is
opened later has the minutes before. The number of intervals is fixed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from backhaul.dask.observe.counters import Counts

__all__ = ["INTERVALS", "INTERVAL_S", "TransferHistory"]

#: Length of an interval, in seconds, and the number of intervals: ten minutes
INTERVAL_S: Final = 5
INTERVALS: Final = 120


class _Interval(NamedTuple):
    number: int
    #: Bytes that moved, and bytes that were lent, by lane
    moved: dict[str, int]
    lent: dict[str, int]


class TransferHistory:
    """Bytes by interval; each interval ends at a multiple of `INTERVAL_S` of the clock."""

    def __init__(self) -> None:
        self._intervals: deque[_Interval] = deque(maxlen=INTERVALS + 1)

    def note(self, gained: Mapping[str, Counts], now_s: float) -> None:
        """Add messages by lane that a worker has received since its last report.

        The time is that of a clock that never goes back.
        """
        number = int(now_s // INTERVAL_S)
        for lane, counts in gained.items():
            if not counts.nbytes:
                continue
            if not self._intervals or self._intervals[-1].number < number:
                self._intervals.append(_Interval(number, {}, {}))
            interval = self._intervals[-1]
            lent = min(counts.lent_bytes, counts.nbytes)
            for kind, nbytes in ((interval.moved, counts.nbytes - lent), (interval.lent, lent)):
                if nbytes:
                    kind[lane] = kind.get(lane, 0) + nbytes

    def rates(self, now_s: float) -> tuple[int, dict[tuple[str, bool], list[float]]]:
        """Return the rates of the last intervals, the current one left out, and its number.

        The number changes when the rates do. Rates are bytes per second by lane and whether they
        were lent, for each of `INTERVALS` intervals, the oldest first. Only lanes with bytes are in
        it.
        """
        number = int(now_s // INTERVAL_S)
        found: dict[tuple[str, bool], list[float]] = {}
        for interval in self._intervals:
            at = INTERVALS - (number - interval.number)
            if not 0 <= at < INTERVALS:
                continue
            for is_lent, kind in ((False, interval.moved), (True, interval.lent)):
                for lane, nbytes in kind.items():
                    rates = found.setdefault((lane, is_lent), [0.0] * INTERVALS)
                    rates[at] = nbytes / INTERVAL_S
        return number, dict(sorted(found.items()))
