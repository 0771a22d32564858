"""Between the scheduler core in Rust and upstream's own machine: one escapes into the other.

`write_into` makes upstream's objects of all that a core holds, so that upstream's code goes on
where the core was; `adopt` makes a core of a scheduler that has no tasks. Between the two the state
of a running scheduler is in the core (`live`), for as long as nobody looks at it;
see ``docs/design/scheduler-core.md``.
"""

from __future__ import annotations

from backhaul.dask.scheduler_core.adopt import adopt, holds_no_tasks, name_text
from backhaul.dask.scheduler_core.escape import Payloads, offer_to_thieves, write_into

__all__ = [
    "Payloads",
    "adopt",
    "holds_no_tasks",
    "name_text",
    "offer_to_thieves",
    "write_into",
]
