"""A worker's state machine that keeps its state in Rust until somebody looks.

docs/design/worker-core.md says how, and what is left to Dask.
"""
