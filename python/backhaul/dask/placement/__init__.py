"""Placement of tasks by the costs of links.

Entry points: `link_placement.install` on a scheduler, if ``placement.enabled`` is set.

Threads: the event loop of the scheduler.

Locks: none.

Invariants: estimates of links come from `observe`, and the decision from Rust
(``crates/placement``). A scheduler that is not asked to place by links keeps Dask's own decision.
"""
