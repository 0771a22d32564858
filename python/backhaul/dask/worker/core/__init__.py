"""The state of a worker's state machine in Rust, until a program reads other parts of it.

Entry points: `ownership.StateOwner` moves the state between Rust and Dask's objects
(`state_transfer`); `events` gives Dask's events to Rust; `dask_instructions` makes Dask's
instructions of its answers; `guarded_state` and `task_view` answer programs that read. The design
is in ``docs/design/worker-core.md``.

Threads: any thread, with the lock.

Locks: that of the worker's `local_queue` guards the state and the store of results. A read waits
for that lock, also in a thread that has the lock of a stream.

Invariants: either Rust or Dask has the state, never both. Rust takes it only while no task is under
way. After a transfer every attribute is equal to that of Dask's state machine after the same
events.
"""
