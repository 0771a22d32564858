"""Admission of a worker's tasks by the memory that they need.

Threads of a worker run as many tasks as there are threads, whatever memory the tasks take. Here a
worker learns how much memory a run takes beside its inputs, for each prefix of keys as Dask learns
durations, and a thread begins a task only if the worker has room for it beside the running ones.
One task always runs.

The numbers come from `backhaul.dask.worker.memory_guard`, which measures the process: what several
tasks have taken counts in equal shares, so a number is exact only if a task has run alone. Tasks
that have exceeded the limit together get numbers by which as many do not fit again. Each later run
lowers a number that is too high.

A task that waits here has a thread of the pool, and is ``executing`` for the state machine: it may
neither be stolen nor overtaken. The memory that is kept free for a running task is the measured one
after `_RESERVED_S`, because the task may wait for one that waits here.

Threads: those of the pool wait in `MemoryAdmission.enter`, in the order in which they came. The
lock is taken with no other lock held, and no other lock is taken with it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, Protocol

from backhaul.dask.compat.names import key_split

__all__ = ["MemoryAdmission", "Room", "Run"]

#: Share of the memory below which a need counts as none
_SMALL: Final = 1 / 32
#: Time between two looks of a waiting thread at the room
_LOOK_S: Final = 0.02
#: Longest wait of a task
_WAIT_MAX_S: Final = 60.0
#: Time for which a running task is expected to take what earlier ones have taken
_RESERVED_S: Final = 10.0
#: Factor of a need after tasks have exceeded the limit together
_EXCESS: Final = 9 / 8
#: The least that a need keeps after a run that took less
_KEPT: Final = 0.9


class Run(Protocol):
    """One run of a task."""

    @property
    def key(self) -> object:
        """The key of the task."""

    def has_seceded(self) -> bool:
        """Tell whether the task has left the thread pool."""

    def is_given_up(self) -> bool:
        """Tell whether nothing waits for the task any more, because the worker closes."""


class Room(Protocol):
    """The memory of a worker."""

    def running(self) -> Sequence[Run]:
        """List the runs that take memory."""

    def floor_bytes(self) -> int:
        """Return the memory without what the running tasks have taken, in bytes."""

    def taken_bytes(self, run: Run) -> int:
        """Return what was taken since a run began, by all of them, in bytes."""


class MemoryAdmission:
    """Lets a worker's tasks begin when there is memory for them.

    Parameters
    ----------
    room : Room
        The memory of the worker.
    most_bytes : int
        Memory that the worker may use.
    activate : callable
        Called once a task may have to wait: threads shall call `enter` and `leave` from then on.
    """

    def __init__(self, room: Room, most_bytes: int, activate: Callable[[], object]) -> None:
        self._room = room
        self._most_bytes = most_bytes
        self._small_bytes = int(most_bytes * _SMALL)
        self._activate = activate
        self._changed = threading.Condition()
        #: Need in bytes by prefix, at least `_small_bytes`
        self._needs: dict[str, int] = {}
        #: The largest share that was measured, by run
        self._peaks: weakref.WeakKeyDictionary[Run, int] = weakref.WeakKeyDictionary()
        #: When each run began, or was first seen here
        self._begun_s: weakref.WeakKeyDictionary[Run, float] = weakref.WeakKeyDictionary()
        self._waiting: deque[Run] = deque()

    def need_bytes(self, key: object) -> int:
        """Return the memory that a task is expected to take, in bytes; 0 if that is little."""
        return self._needs.get(key_split(key), 0)

    def enter(self, run: Run) -> None:
        """Wait until there is memory for a task; called by the thread that runs it then."""
        if not self.need_bytes(run.key):
            return
        deadline_s = monotonic() + _WAIT_MAX_S
        with self._changed:
            self._waiting.append(run)
            try:
                while not (
                    (self._waiting[0] is run and self._fits(run))
                    or run.is_given_up()
                    or monotonic() > deadline_s
                ):
                    self._changed.wait(_LOOK_S)
            finally:
                self._waiting.remove(run)
                self._begun_s[run] = monotonic()
                self._changed.notify_all()

    def leave(self, run: Run) -> None:
        """Note that a task has ended."""
        peak_bytes = self._peaks.pop(run, None)
        prefix = key_split(run.key)
        with self._changed:
            need_bytes = self._needs.get(prefix)
            if need_bytes is not None and peak_bytes is not None:
                self._set(prefix, max(peak_bytes, int(need_bytes * _KEPT)))
            if self._begun_s.pop(run, None) is not None or self._waiting:
                self._changed.notify_all()

    def learn(self, runs: Sequence[Run], taken_bytes: int) -> None:
        """Note what the running tasks have taken together.

        Parameters
        ----------
        runs : sequence of Run
            All that run.
        taken_bytes : int
            Memory that was taken since the first of them began.
        """
        share_bytes = taken_bytes // len(runs)
        with self._changed:
            for run in runs:
                self._peaks[run] = max(share_bytes, self._peaks.get(run, 0))
                self._raise(run, share_bytes)

    def exceeded(self, runs: Sequence[Run], taken_bytes: int) -> None:
        """Note that the running tasks have exceeded the limit together; as for `learn`."""
        share_bytes = int(taken_bytes / len(runs) * _EXCESS)
        with self._changed:
            for run in runs:
                self._raise(run, share_bytes)

    def _raise(self, run: Run, need_bytes: int) -> None:
        prefix = key_split(run.key)
        if need_bytes > self._needs.get(prefix, 0):
            self._set(prefix, need_bytes)

    def _set(self, prefix: str, need_bytes: int) -> None:
        if need_bytes >= self._small_bytes:
            self._needs[prefix] = need_bytes
            self._activate()
        else:
            self._needs.pop(prefix, None)

    def _fits(self, run: Run) -> bool:
        now_s = monotonic()
        for each in self._room.running():
            self._begun_s.setdefault(each, now_s)
        reserved_bytes = [
            self._reserved(each, now_s - begun_s)
            for each, begun_s in list(self._begun_s.items())
            if self.need_bytes(each.key) and not each.has_seceded()
        ]
        if not reserved_bytes:
            return True
        whole_bytes = self._room.floor_bytes() + sum(reserved_bytes) + self.need_bytes(run.key)
        return whole_bytes <= self._most_bytes

    def _reserved(self, run: Run, age_s: float) -> int:
        need_bytes = self.need_bytes(run.key)
        if age_s > _RESERVED_S:
            return min(need_bytes, self._room.taken_bytes(run))
        return need_bytes
