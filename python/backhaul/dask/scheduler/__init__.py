"""Accelerations of Dask's scheduler, whether Dask's own code or the core has its state.

Entry points: `compat.activation` calls ``install`` of each feature for a new scheduler:
`submissions` (compact messages of clients), `inline_results` (small results go on to clients),
`window` (tasks sent ahead to workers, by the policy in `saturation`; its `window_recall` takes
tasks back), `fairness` and `fire_and_forget`. `order` stands for `dask.order.order`, in any
process.

Threads: all handlers run on the scheduler's event loop. `order` may run in any thread.

Locks: none.

Invariants: a handler that is installed later calls the one before it, and the first one calls
Dask's. A message that has no acceleration is handled by Dask's own handler. The core in Rust is in
`core`.
"""
