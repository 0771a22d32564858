"""The scheduler's state in Rust: import, export, and the answers to reads meanwhile.

Entry points: `live_core.install` on a scheduler; `adopt` imports the state of a scheduler into a
new core; `write_into` exports the state of a core to Dask's objects; `guarded_classes` and the
views answer programs that read the state. The design is in ``docs/design/scheduler-core.md``.

Threads: Python's part runs on the scheduler's event loop. Another thread that reads the state waits
until the event loop has read it (`loop_thread`). The engine thread of the native module handles
frequent messages of streams without Python (``crates/dask-streams``).

Locks: none in Python. In Rust the core has a mutex, taken before the one of the streams' ends; a
thread that stops the streams must not hold it.

Invariants: either Rust or Dask has the state, never both. Every event gives the same messages and
the same state as Dask's scheduler. An operation that the core does not implement exports the
state first (`live_core.LiveCore.escape`) and then runs Dask's code; `eligibility` says when a
core may have the state, and the core imports the state again after a pause. Messages to one peer
keep their order across an export.
"""

from __future__ import annotations

from backhaul.dask.scheduler.core.export_state import Payloads, register_stealable, write_into
from backhaul.dask.scheduler.core.import_state import adopt, name_text, obstacle

__all__ = [
    "Payloads",
    "adopt",
    "name_text",
    "obstacle",
    "register_stealable",
    "write_into",
]
