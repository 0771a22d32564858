"""A line of tasks that wait for room at some worker, the first ones first.

Not a `HeapSet` of Dask's: that takes two tasks of one key for the same one, so a task that came
after another of its key was forgotten would stand in the place of that, and never be sent.
"""

from __future__ import annotations

import heapq
from typing import Any

from backhaul.dask.private import TaskState

__all__ = ["WaitingLine"]


class WaitingLine:
    """Tasks by priority, those of the same one in the order of their coming."""

    def __init__(self) -> None:
        #: By identity, as tasks are equal that have the same key
        self._members: dict[int, TaskState] = {}
        self._heap: list[tuple[Any, int, TaskState]] = []
        self._added = 0

    def __bool__(self) -> bool:
        return bool(self._members)

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
        """Give the first task.

        Raises
        ------
        IndexError
            If there is none.
        """
        while id(self._heap[0][2]) not in self._members:
            heapq.heappop(self._heap)
        return self._heap[0][2]
