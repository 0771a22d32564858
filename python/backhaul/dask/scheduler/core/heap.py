"""The queue of root-ish tasks, as `distributed.collections.HeapSet` keeps it.

A task that was removed without being the first leaves its entry in the heap, and has that place
again when it is queued again; so entries are copied as they are, not made by adding tasks.
"""

from __future__ import annotations

import weakref
from typing import Any

__all__ = ["fill_queue"]


def fill_queue(queue: Any, said: dict[str, Any], by_text: dict[str, Any]) -> None:
    """Fill a heap with the entries of a core's queue.

    `said` has the core's ``queued`` (keys in the order of queueing), ``queue_entries`` (priority or
    None, number of the entry and key of each, first ones first) and ``queue_added`` (how many
    entries there were ever).
    """
    queue.clear()
    queue._data.update(by_text[text] for text in said["queued"])
    for priority, order, text in said["queue_entries"]:
        ts = by_text[text]
        # By the key that it was queued with: its own, unless it had none then
        key = None if priority is None else queue.key(ts)
        queue._heap.append((key, order, weakref.ref(ts)))
    queue._inc = said["queue_added"]
    # Sorted is in the form of a heap, too.
    queue._sorted = True
