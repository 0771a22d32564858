"""Dask's local schedulers with resources: threads, processes, and one task after another.

Entry points: `threaded.get`, `processes.get` and `sync.get`, also as `backhaul.dask.threaded` and
so on. `resource_gate.Gate` is the executor that lends resources before a task starts.

Threads: the thread of the program hands tasks to a gate; threads of its pool report their ends.

Locks: each gate has an `RLock`, held while units are lent or given back. No function of the user
and no callback of a future runs with it.

Invariants: a task starts only when all that it asks for is lent to it. A graph that asks for
nothing goes to Dask's own scheduler unchanged.
"""
