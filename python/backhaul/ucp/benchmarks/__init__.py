"""Benchmarks by the names and options that UCX-Py's users know; `backhaul bench` has more."""
