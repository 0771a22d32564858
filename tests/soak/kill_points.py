"""Kills a worker in a chosen call of a function of the exchange; runs in the workers.

The first worker that reaches the call kills its own process: before the call, after the call, or
some microseconds after the call has begun, from another thread.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from backhaul.dask.exchange import arrays, block_files, tasks

__all__ = ["PHASES", "KillPoint", "arm", "open_files"]

#: By phase, the functions that are in it, and where each one is found
PHASES: Final[dict[str, tuple[tuple[Any, str], ...]]] = {
    "transfer": ((tasks, "transfer"),),
    "bundle": ((tasks, "bundle"),),
    "unpack": ((tasks, "unpack"), (tasks, "unpack_merge")),
    "spill": ((block_files.BlockFile, "append"),),
    "assemble": ((arrays, "assemble"),),
}
#: Share of a worker's memory that blocks may fill, as the product has it
_MEMORY_SHARE: Final = block_files.MEMORY_SHARE


@dataclass(frozen=True)
class KillPoint:
    """The call in which a worker dies.

    Parameters
    ----------
    phase : str
        Key of `PHASES`.
    call : int
        Number of the call in a process, from 1.
    delay_us : int or None
        Microseconds after its beginning; None for its end.
    marker : str
        A file that the first worker to die makes, so that there is one.
    spills : bool
        Whether all blocks go to files.
    """

    phase: str
    call: int
    delay_us: int | None
    marker: str
    spills: bool


class _Counter:
    """Counts the calls of a phase in this process, and dies in one of them."""

    def __init__(self, point: KillPoint) -> None:
        self._point = point
        self._lock = threading.Lock()
        self._calls = 0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._calls += 1
                is_last = self._calls == self._point.call
            if not is_last:
                return function(*args, **kwargs)
            delay_us = self._point.delay_us
            if delay_us == 0:
                self._die()
            elif delay_us is not None:
                threading.Timer(delay_us / 1e6, self._die).start()
            result = function(*args, **kwargs)
            if delay_us is None:
                self._die()
            return result

        return counted

    def _die(self) -> None:
        try:
            Path(self._point.marker).touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


#: Functions in the place of which others are, in this process
_replaced: list[tuple[Any, str, Any]] = []


def arm(point: KillPoint) -> None:
    """Prepare this worker to die at a point; an earlier one is forgotten."""
    while _replaced:
        owner, name, function = _replaced.pop()
        setattr(owner, name, function)
    vars(block_files)["MEMORY_SHARE"] = -1.0 if point.spills else _MEMORY_SHARE
    counter = _Counter(point)
    for owner, name in PHASES[point.phase]:
        function = getattr(owner, name)
        _replaced.append((owner, name, function))
        setattr(owner, name, counter.wrap(function))


def open_files() -> int:
    """Count the files of blocks that this process has open."""
    return len(block_files._files)
