"""Dask's synchronous scheduler with resources: ``x.compute(scheduler=backhaul.dask.sync.get)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import dask.local

from backhaul.dask.local.resource_gate import Gate, asked_in, declared_for
from backhaul.dask.resource_pools.declarations import Declared
from backhaul.dask.resource_pools.leases import Lease, current_lease, lay_down, take_up
from backhaul.dask.resource_pools.requests import CPU, Needs

__all__ = ["get"]


def get(
    dsk: Any,
    keys: Any,
    *,
    resources: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Compute a graph in this thread, one task after another, and show each what it holds.

    Parameters
    ----------
    dsk, keys, **kwargs
        As for `dask.local.get_sync`, which computes graphs that ask for nothing.
    resources : mapping, optional
        The resources, as for `backhaul.dask.threaded.get`. A task may ask for any number of CPUs:
        it runs alone.

    Returns
    -------
    object
        The results, in the shape of `keys`.

    Raises
    ------
    ConfigError
        If a task asks for what can never be met. Names it, and what there is.
    """
    asked = asked_in(dsk)
    if asked is None:
        return dask.local.get_sync(dsk, keys, **kwargs)
    most = max(1.0, *(needs.cpu for needs in asked.needs.values()))
    declared = declared_for(resources, cpus=1)
    declared[CPU] = most
    gate = _OneAfterAnother(declared, asked.needs)
    kwargs.pop("num_workers", None)
    # One at a time, so that the order is that of the scheduler without resources.
    return dask.local.get_async(gate.submit, 1, asked.graph, keys, **{**kwargs, "chunksize": 1})


class _Ended:
    """Future for `dask.local.get_async`, of a task that has run."""

    __slots__ = ("_error", "_value")

    def __init__(self, value: Any, error: BaseException | None) -> None:
        self._value = value
        self._error = error

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call it."""
        callback(self)

    def result(self) -> Any:
        """Give the value, or raise the error."""
        if self._error is not None:
            raise self._error
        return self._value


class _OneAfterAnother(Gate):
    """A gate that runs each task immediately, so that all units are free for the next one."""

    def __init__(self, declared: Declared, needs: Mapping[Any, Needs]) -> None:
        # It gives nothing to the pool.
        super().__init__(declared, needs, self)
        #: Leases of tasks with a request, without an affinity: each time the same
        self._held: dict[Needs, dict[str, Any]] = {}

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a batch of one task, with what the task asks for."""
        (batch,) = args
        ((key, task_info, *_),) = batch
        queue = self._by_key.get(key)
        try:
            if queue is None:
                return _Ended(fn(batch), None)
            lease = self._lease(queue, task_info)
            token = current_lease.set(lease)
            try:
                take_up(lease)
                return _Ended(fn(batch), None)
            finally:
                lay_down(lease)
                current_lease.reset(token)
                lease.is_over = True
                if self._prefers and (units := lease.units):
                    self._made_on[key] = units
        except BaseException as error:
            return _Ended(None, error)

    def _lease(self, queue: Any, task_info: Any) -> Lease:
        """Return the lease of a task while it runs; all is free, so no other task is concerned."""
        needs = queue.needs
        held = self._held.get(needs)
        if held is None:
            lease = self._lend(queue, task_info[1] if needs.affinity else ())
            assert lease is not None
            self._pools.give_back(lease.number)
            if needs.affinity:
                return lease
            held = self._held[needs] = dict(lease.held)
        return Lease(needs, 0, held, self._groups)
