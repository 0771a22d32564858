"""Benchmarks a user can run, each with peers beside Backhaul in the same run.

``backhaul bench transpose-sum`` is a Dask job over two protocols, ``backhaul bench p2p`` is
latency and bandwidth between two processes. The package is a distribution, backhaul-bench; of
Backhaul only the command imports it. Importing it imports neither Dask nor the native module: the
peers run in interpreters without them.
"""
