"""Ready tasks of a state machine, in the order in which it would start them."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

from backhaul.dask.compat.names import HeapSet

__all__ = ["are_in_memory", "first_tasks"]


def are_in_memory(data: Any, inputs: list[tuple[Any, Any]]) -> bool:
    """Tell whether all inputs are in memory, so that a read needs no disk."""
    if type(data) is dict:
        return all(key in data for key, _ in inputs)
    fast = getattr(data, "fast", None)
    return not inputs or (fast is not None and all(key in fast for key, _ in inputs))


def first_tasks(tasks: HeapSet[Any], count: int) -> Iterator[Any]:
    """Yield the first tasks of a heap in order, without sorting the heap."""
    heap, members = tasks._heap, tasks._data
    seen: set[Any] = set()
    candidates = [(heap[0], 0)] if heap else []
    while candidates and len(seen) < count:
        (_, _, reference), at = heappop(candidates)
        task = reference()
        if task in members and task not in seen:
            seen.add(task)
            yield task
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heappush(candidates, (heap[child], child))
