"""Accelerations of Dask's worker: messages, execution of tasks, results and memory.

Entry points: patches call `task_start.direct_start`, `local_queue.flushing_handle_stimulus` and
others; `event_stream`, `memory.install` and `lazy_collections` are called for a new worker by
`compat.activation`.

Threads: the event loop runs the state machine. A thread of the pool may begin with tasks that
`early_reader` finds in the inbox (`early_execution`), take the next ready task from `local_queue`,
send the end of a task, and report it to a state in Rust (`thread_events`).

Locks: first the inbox's (`comm.inbox`), then the one of `local_queue`, which guards the state of
the worker and its store of results (`spill_buffer`). A thread with the second one never waits for
the first, nor for the lock of the stream (`comm.threaded_stream`): the thread posts its messages to
the owner of that lock. So a finalizer may read the state in a thread that has any of these locks.
No wait for a lock has a time limit. `early_reader` has two more, for the thread that waits and for
the item that this thread was given; the lock of `metrics.Sums` is innermost.

States: `transitions.State` with its subclasses `early_messages.Access`, `idle_thread.Wait`,
`item_state.ItemState` and `local_queue.Phase`. `LocalQueue.validate` checks them.

Invariants: a task that the scheduler has assigned once runs once. A read of the state by a program
finds all that threads have done.
"""
