"""Placement of tasks by what links cost, and the order in which workers fetch.

Entry points: `link_placement.install` on a scheduler, if ``placement.enabled`` is set; `root_plan`
plans which worker runs which root of a graph; `link_messages` tells workers how fast links are;
`fetch_order.install` on a worker uses that.

Threads: the event loop of the scheduler or of the worker.

Locks: none.

Invariants: estimates of links come from `observe`, and the decision from Rust
(``crates/placement``). A scheduler that is not asked to place by links keeps Dask's own decision.
"""
