"""A line of tasks that wait for room at some worker, the first ones first.

Not a `HeapSet` of Dask's: that takes two tasks of one key for the same one, so a task that came
after another of its key was forgotten would stand in the place of that, and never be sent.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from backhaul.dask.compat.names import TaskState, WorkerState

__all__ = ["WaitingLine", "named_workers", "place_of"]


def place_of(ts: TaskState, signature: int) -> tuple[int, tuple[frozenset[str], ...], bool]:
    """Say in which line a task waits: what it asks for, where it may run, if also elsewhere."""
    restrictions = frozenset(ts.worker_restrictions or ()), frozenset(ts.host_restrictions or ())
    # Tasks that may run nowhere else must not block those that may.
    return signature, restrictions, any(restrictions) and bool(ts.loose_restrictions)


def named_workers(scheduler: Any, ts: TaskState) -> Iterator[WorkerState]:
    """Go through the workers that restrictions of a task name, by address or by host."""
    addresses = list(ts.worker_restrictions or ())
    for host in ts.host_restrictions or ():
        info = scheduler.host_info.get(scheduler.coerce_hostname(host), {})
        addresses += info.get("addresses", ())
    for address in addresses:
        ws = scheduler.workers.get(address)
        if ws is not None:
            yield ws


class WaitingLine:
    """Tasks by priority, those of the same one in the order of their coming."""

    def __init__(self) -> None:
        #: By identity, as tasks are equal that have the same key
        self._members: dict[int, TaskState] = {}
        self._heap: list[tuple[Any, int, TaskState]] = []
        self._added = 0

    def __bool__(self) -> bool:
        return bool(self._members)

    def __iter__(self) -> Iterator[TaskState]:
        return (ts for _, _, ts in sorted(self._heap) if id(ts) in self._members)

    def add(self, ts: TaskState) -> None:
        """Add a task; again changes nothing."""
        if id(ts) not in self._members:
            self._members[id(ts)] = ts
            heapq.heappush(self._heap, (ts.priority, self._added, ts))
            self._added += 1

    def discard(self, ts: TaskState) -> None:
        """Take a task out, if it is there."""
        self._members.pop(id(ts), None)

    def peek(self) -> TaskState:
        """Give the first task; `IndexError` if there is none."""
        while id(self._heap[0][2]) not in self._members:
            heapq.heappop(self._heap)
        return self._heap[0][2]
