"""Accelerations of Dask's worker: messages, execution of tasks, results and memory.

Entry points: patches call `event_stream.draining_handle_stream`, `task_start.direct_start`,
`local_queue.settling_handle_stimulus` and others; `memory.install` and `lazy_collections` are
called for a new worker by `compat.activation`.

Threads: the event loop runs the state machine. A thread of the pool may begin with tasks that
`early_reader` finds in the inbox (`early_execution`), take the next ready task from `local_queue`,
send the end of a task, and report it to a state in Rust (`thread_events`).

Locks: in this order, the inbox's (`comm.inbox`), the one of `local_queue`, which guards the state
of the worker, then the lock of the stream (`comm.threaded_stream`) or of the store of results. A
thread with the second one tries the first without waiting, and waits for the last two for 20 ms at
most (`state_lock`), because a finalizer may hold them. `early_reader` has two more, for the thread
that waits and for what that thread was handed; the lock of `metrics.Sums` is innermost.

Invariants: a task that the scheduler has assigned once runs once. A read of the state by a program
finds all that threads have done.
"""
