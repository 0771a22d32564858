"""Clusters and commands that start workers with their own CPUs, memory, GPUs and network cards.

Entry points: `cluster.LocalCluster`, `cuda.CUDACluster` and `cuda.DGX`; `command.main` is ``dask
backhaul``; ``python -m backhaul.dask.launch.worker`` starts the workers of a batch job;
``backhaul.dask.launch.announce`` is a preload.

Threads: nannies run on the event loop of the program. `pinning` tries in a thread of its own
whether CPUs may be used.

Locks: none.

Invariants: a worker process has its CPUs and its memory policy from its first instruction. From a
plan to the arguments of nannies is a pure function (`worker_specs`).
"""
