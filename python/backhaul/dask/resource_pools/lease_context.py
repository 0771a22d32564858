"""A task that begins with a lease: which pool runs it, and what it sees."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from distributed import Worker

from backhaul.dask.resource_pools.leases import Lease, current_lease
from backhaul.dask.resource_pools.overflow_pool import BESIDE

__all__ = ["holding", "holding_execute", "holding_nothing", "send_to_overflow_pool"]

_DEFAULT = "default"


@contextlib.contextmanager
def holding(worker: Worker, key: Any, lease: Lease) -> Iterator[str]:
    """Show a lease to what is started meanwhile, and yield the executor that is to run it.

    An annotation ``executor`` of the user's wins.
    """
    annotations = worker.state.tasks[key].annotations or {}
    token = current_lease.set(lease)
    try:
        yield BESIDE if lease.needs.cpu < 1 and "executor" not in annotations else _DEFAULT
    finally:
        current_lease.reset(token)


@contextlib.contextmanager
def holding_nothing() -> Iterator[None]:
    """Show no lease to what is started meanwhile, though a task that had one has led to it."""
    token = current_lease.set(None)
    try:
        yield
    finally:
        current_lease.reset(token)


def send_to_overflow_pool(worker: Worker, key: Any, executor_name: str) -> None:
    """Make `Worker.execute` run a task in the pool that `holding` returned."""
    task_state = worker.state.tasks[key]
    if executor_name == BESIDE:
        task_state.annotations = {**(task_state.annotations or {}), "executor": BESIDE}


def holding_execute(
    worker: Worker,
    original: Callable[..., Awaitable[Any]],
    lease_of: Callable[[Any, Any], Lease | None],
) -> Callable[..., Awaitable[Any]]:
    """Make a `Worker.execute` that shows leases, for a worker without our own way to execute."""

    async def execute(key: Any, *, stimulus_id: str) -> Any:
        lease = lease_of(worker.state, key)
        if lease is None:
            return await original(key, stimulus_id=stimulus_id)
        with holding(worker, key, lease) as executor_name:
            send_to_overflow_pool(worker, key, executor_name)
            return await original(key, stimulus_id=stimulus_id)

    return execute
