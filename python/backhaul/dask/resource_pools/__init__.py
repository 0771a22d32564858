"""Resources with identity: which GPU, core or network card a task holds.

Entry points: `requests.resources` declares what a function asks for; `leases.get_resources` tells a
task what it holds; `worker_state.install` and `scheduler_slots.install` are called by
`compat.activation`; `machine_pools` says what a machine has.

Threads: the slots of a worker and those of a scheduler belong to their event loops. Tasks that ask
for less than a CPU run in the threads of `overflow_pool`. A task that rejoins waits in its own
thread until the event loop has lent it resources again (`rejoin`).

Locks: `RejoinLock` wraps the rejoin lock of a pool: a task waits for its resources before it takes
the lock. In `overflow_pool`, Dask's ``threads_lock`` comes before the lock of the threads that
leave.

Invariants: a share of a unit is lent to one task at a time. After a number of tasks have gone past
it, a request that waits is next (`Turns` in ``crates/placement``).
"""
