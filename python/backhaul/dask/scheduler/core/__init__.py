"""The scheduler's state in Rust: its way there, its way back, and how Dask sees it meanwhile.

Entry points: `live_core.install` on a scheduler; `adopt` makes a core that goes on from a
scheduler; `write_into` writes all that a core holds into Dask's objects; `guarded_classes` and
the views answer programs that read the state. The design is in ``docs/design/scheduler-core.md``.

Threads: Python's part runs on the scheduler's event loop. `loop_thread` has that thread read for
another thread, which waits for it. The engine thread of the native module handles frequent messages
of streams without Python (``crates/dask-streams``).

Locks: none in Python. In Rust the core has a mutex, taken before the one of the streams' ends; a
thread that stops the streams must not hold it.

Invariants: either Rust or Dask has the state, never both. Every event gives the same messages and
the same state as Dask's scheduler. An operation that the core does not implement exports the
state first (`live_core.LiveCore.escape`) and then runs Dask's code; `eligibility` says when a
core may have the state, and the core takes it over again after a pause. Messages to one peer keep
their order across an export.
"""

from __future__ import annotations

from backhaul.dask.scheduler.core.export_state import Payloads, offer_to_thieves, write_into
from backhaul.dask.scheduler.core.import_state import adopt, name_text, obstacle

__all__ = [
    "Payloads",
    "adopt",
    "name_text",
    "obstacle",
    "offer_to_thieves",
    "write_into",
]
