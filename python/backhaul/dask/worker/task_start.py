"""Starts tasks in the thread pool of a worker, in the place of Dask's asyncio tasks.

A worker calls `start_execution` for each task that its state machine executes. A task that is not
an ordinary function takes Dask's own path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backhaul.dask.compat.names import WORKER_ANY_RUNNING, ThreadPoolExecutor, Worker
from backhaul.dask.resource_pools.lease_context import (
    holding,
    holding_nothing,
    send_to_overflow_pool,
)
from backhaul.dask.resource_pools.overflow_pool import OverflowThreadPoolExecutor
from backhaul.dask.resource_pools.worker_state import lease_of
from backhaul.dask.worker.early_reader import early_reader_for
from backhaul.dask.worker.eligibility import is_ordinary
from backhaul.dask.worker.execution import Execution
from backhaul.dask.worker.item_state import READY
from backhaul.dask.worker.local_queue import LocalQueue
from backhaul.dask.worker.work_queue import install_work_queue

__all__ = ["direct_start", "start_execution"]

#: Pools that run a task as Dask's does
_EXECUTORS = frozenset({ThreadPoolExecutor, OverflowThreadPoolExecutor})

#: Dask's own, whose source was read, even if a program replaces it later
_EXECUTE = Worker.execute


def start_execution(
    worker: Worker,
    key: Any,
    *,
    span_id: str | None,
    stimulus_id: str,
    executor_name: str = "default",
) -> bool:
    """Start to execute a task that the state machine has just put into the state *executing*.

    Parameters
    ----------
    worker : distributed.Worker
        Its event loop is running.
    key : key
        Of a task in ``worker.state.tasks``.
    span_id : str or None
        Span that the metrics belong to.
    stimulus_id : str
        The cause.
    executor_name : str
        Which of the worker's pools runs it.

    Returns
    -------
    bool
        False if this task is not for us; nothing was done.
    """
    task_state = worker.state.tasks[key]
    executor = worker.executors.get(executor_name)
    local_queue: LocalQueue | None = getattr(
        getattr(executor, "_work_queue", None), "local_queue", None
    )
    execution: Any = None if local_queue is None else local_queue.take(task_state)
    if execution is not None and execution.state is not READY:
        # It was looked at when it was laid out.
        execution.name(span_id)
        return True
    if (
        not isinstance(executor, ThreadPoolExecutor)
        or type(executor) not in _EXECUTORS
        or worker.status not in WORKER_ANY_RUNNING
        or not is_ordinary(worker, task_state)
    ):
        return False
    if local_queue is None:
        install_work_queue(worker, executor_name, _make_local_queue)
        local_queue = getattr(executor._work_queue, "local_queue", None)
    if execution is None:
        execution = Execution(worker, task_state, local_queue)
        if not execution.take_data():
            return False
    execution.submit(executor, span_id)
    return True


def _prepare(worker: Worker, local_queue: LocalQueue, task_state: Any) -> Execution | None:
    """Make an item of a task that is ready; None if it goes Dask's way."""
    if not is_ordinary(worker, task_state):
        return None
    execution = Execution(worker, task_state, local_queue)
    return execution if execution.take_data() else None


def direct_start(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Worker._start_async_instruction` that starts tasks by `start_execution`."""

    def _start_async_instruction(
        self: Worker,
        task_name: str,
        func: Callable[..., Any],
        /,
        *args: Any,
        span_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        # A subclass that overrides `execute` keeps its method.
        if getattr(func, "__func__", None) is not _EXECUTE:
            original(self, task_name, func, *args, span_id=span_id, **kwargs)
        elif (lease := lease_of(self.state, args[0])) is not None:
            with holding(self, args[0], lease) as executor_name:
                if not start_execution(
                    self, *args, span_id=span_id, executor_name=executor_name, **kwargs
                ):
                    send_to_overflow_pool(self, args[0], executor_name)
                    original(self, task_name, func, *args, span_id=span_id, **kwargs)
        elif not start_execution(self, *args, span_id=span_id, **kwargs):
            with holding_nothing():
                original(self, task_name, func, *args, span_id=span_id, **kwargs)

    return _start_async_instruction


def _make_local_queue(worker: Worker, executor: Any) -> LocalQueue:
    return LocalQueue(worker, executor, _prepare, early_reader_for)
