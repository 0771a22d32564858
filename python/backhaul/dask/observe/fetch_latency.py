"""Latency of a request for data, however little it asks for.

A worker that needs a result asks the one that has it, on its event loop, and unpacks what comes:
milliseconds, whatever the link does. Workers know what it took the last times and tell it with
their heartbeats; placement counts it for each task that would have to ask.
"""

from __future__ import annotations

import itertools
from statistics import median
from typing import Any, Final

from distributed import Worker

__all__ = ["FetchTimes", "request_s_of"]

#: Results up to this size took hardly longer for their bytes
NBYTES_MAX: Final = 64 << 10
#: How many of the last transfers are looked at, and how many small ones among them are enough
LOOKED_AT_MAX: Final = 64
REQUESTS_MAX: Final = 16
#: More than this is a worker that stood still, or nonsense
REQUEST_S_MAX: Final = 1.0


def request_s_of(worker: Worker) -> float | None:
    """Say what a request of a worker took lately, in seconds: the median of up to 16 small ones.

    None if it has made none lately.
    """
    newest = itertools.islice(reversed(worker.transfer_incoming_log), LOOKED_AT_MAX)
    seconds = (each["stop"] - each["start"] for each in newest if each["total"] <= NBYTES_MAX)
    found = list(itertools.islice(seconds, REQUESTS_MAX))
    return median(found) if found else None


class FetchTimes:
    """Latencies of requests, as the workers of a scheduler have reported them."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def tell(self, address: str, request_s: Any) -> None:
        """Take note of what a worker says; what is no number of seconds from 0 to 1 is left out."""
        if not isinstance(request_s, int | float) or isinstance(request_s, bool):
            return
        if 0.0 <= request_s <= REQUEST_S_MAX:
            self._told[address] = float(request_s)

    def forget(self, address: str) -> None:
        """Forget a worker that has left."""
        self._told.pop(address, None)

    @property
    def request_s(self) -> float | None:
        """The median over workers, in seconds; None if none has told."""
        return median(self._told.values()) if self._told else None
