"""Invariants of a worker's slots, checked by counting again from the tasks alone."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from backhaul._native import ResourcePools
from backhaul.dask.resource_pools.requests import Needs
from backhaul.dask.resource_pools.worker_state import slots_of

__all__ = ["PASSES_MAX", "check_slots"]

#: Leases that may go past a request that waits
PASSES_MAX = ResourcePools({}).passes_max

_ROUNDING = 1e-6


def check_slots(state: Any) -> None:
    """Check that nothing is held twice, nothing is lost, and nothing that may start waits.

    Parameters
    ----------
    state : SlottedWorkerState
        Between two events.
    """
    slots = slots_of(state)
    assert slots is not None
    executing = {ts.key: ts for ts in state.executing}
    assert slots.held.keys() - slots._returned <= executing.keys()
    assert slots._returned <= slots.held.keys() - executing.keys()
    assert all(ts.key in slots.held or slots.needs_of(ts) is None for ts in executing.values())

    # Never two holders of one unit, and all units without a holder are free.
    units: dict[tuple[str, int], float] = defaultdict(float)
    sums: dict[str, float] = defaultdict(float)
    for lease in slots.held.values():
        assert not lease.is_over
        for name, asked in lease.needs.resources.items():
            held = lease.held[name]
            sums[name] += held if isinstance(held, float) else asked
            if isinstance(held, tuple):
                assert len(held) == len(set(held)) == max(1, round(asked))
                for unit in held:
                    units[name, unit] += min(asked, 1)
    assert all(share <= 1 + _ROUNDING for share in units.values()), units
    for name, (total, free) in slots.pools.amounts().items():
        assert abs(total - sums[name] - free) < _ROUNDING * max(1, total), name

    beside = [lease for lease in slots.held.values() if lease.needs.cpu < 1]
    assert slots.beside == len(beside) <= slots.beside_max
    threads = sum(lease.needs.cpu for lease in slots.held.values())
    plain = len(executing.keys() - slots.held.keys())
    free = state.nthreads - plain - threads
    assert free > -_ROUNDING
    assert abs(slots._threads - threads) < _ROUNDING

    # Waiting tasks, as Dask has them, and the first of each kind
    waiting: dict[Needs | None, list[Any]] = defaultdict(list)
    for ts in {*state.ready, *state.constrained}:
        waiting[slots.needs_of(ts)].append(ts)
    assert {needs: len(tasks) for needs, tasks in waiting.items() if needs} == {
        needs: len(heap) for needs, heap in slots.waiting.items()
    }
    if not state.running:
        return
    first = {needs: min(ts.priority for ts in tasks) for needs, tasks in waiting.items()}
    for needs, priority in first.items():
        # Threads are left to a task that comes before and needs more of them.
        is_barred = any(
            other is not None
            and free + _ROUNDING < other.cpu <= state.nthreads
            and (before < priority or slots.is_kept(other))
            and slots.could_hold(other)
            for other, before in first.items()
        )
        cpu = 1.0 if needs is None else needs.cpu
        if cpu > free + _ROUNDING or (is_barred and cpu):
            continue
        if needs is None:
            raise AssertionError(f"{waiting[None]} wait for one of {free} threads")
        if cpu < 1 and slots.beside >= slots.beside_max:
            continue
        assert not slots.could_hold(needs), f"{waiting[needs]} wait for {needs}, which is free"
