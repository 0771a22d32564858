"""Conditions under which a task is only a function call in a thread of the default pool."""

from __future__ import annotations

import inspect
from types import BuiltinFunctionType, FunctionType
from typing import Any

from backhaul.dask.compat.names import Task, Worker

__all__ = ["is_coroutine", "is_ordinary"]


def is_ordinary(worker: Worker, task_state: Any) -> bool:
    """Tell whether a task is a function that is called in a thread of the default pool.

    Parameters
    ----------
    worker : distributed.Worker
        The worker of the task.
    task_state : object
        Has the task's ``annotations`` and ``run_spec``.
    """
    return (
        task_state.annotations is not None
        and "executor" not in task_state.annotations
        and "span" not in task_state.annotations
        and not worker.state.actors
        and task_state.run_spec is not None
        and not is_coroutine(task_state.run_spec)
    )


def is_coroutine(run_spec: Any) -> bool:
    """Tell the same as ``run_spec.is_coro``, with a quicker test for plain functions."""
    if type(run_spec) is Task and run_spec._is_coro is None:
        function = run_spec.func
        if (
            type(function) is FunctionType
            and not function.__code__.co_flags & inspect.CO_COROUTINE
            # A marker, as of `inspect.markcoroutinefunction`, would be in its attributes.
            and not function.__dict__
        ) or type(function) is BuiltinFunctionType:
            run_spec._is_coro = False
    return bool(run_spec.is_coro)
