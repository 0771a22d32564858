"""Stamps around the stages of a submit, in client, scheduler and workers: a job that collects them.

Functions are wrapped while the processes run, by name, and stay so until they end: for clusters of
the trace only. Spans are in nanoseconds of the monotonic clock, which a host's processes share.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import threading
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Final

from distributed import Client

from backhaul.dask.compat.operations import SUBMIT, UPDATE_GRAPH
from backhaul_bench.jobs import Job

__all__ = ["TracedSubmits"]

#: Functions that are wrapped in each role, ``module:Class.name`` or ``module:name``, with their
#: labels
_FUNCTIONS: Final = {
    "client": {
        "distributed.client:Client._graph_to_futures": "graph, pickle",
        "backhaul.dask.client.submit:function_token": "token",
        "distributed.client:Future.result": "result",
        "distributed.client:Client._gather_remote": "gather",
        "backhaul.dask.client.outgoing_queue:Outbox._work_off": "send",
        "backhaul.dask.comm.comm:BackhaulComm.write_nowait": "write",
        "backhaul.dask.comm.comm:BackhaulComm.write_in_thread": "write",
    },
    "scheduler": {
        "distributed.scheduler:deserialize": "deserialize",
        "distributed.scheduler:Scheduler._create_taskstate_from_graph": "create tasks",
        "backhaul.dask.comm.comm:BackhaulComm.write_nowait": "write",
    },
    "worker": {
        "distributed.worker:Worker.handle_stimulus": "state machine",
        "distributed.worker:Worker.get_data": "get data",
        "backhaul.dask.worker.execution:Execution._call": "the function",
        "backhaul.dask.comm.comm:BackhaulComm.write_nowait": "write",
        "backhaul.dask.comm.comm:BackhaulComm.write_in_thread": "write",
    },
}
#: Handlers of streams and requests that are wrapped, by the dictionary that has them
_HANDLERS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "client": {"_stream_handlers": ("key-in-memory", "backhaul-result")},
    "scheduler": {
        "stream_handlers": (
            "update-graph",
            "backhaul-submit",
            "task-finished",
            "client-releases-keys",
            "release-worker-data",
        ),
        "handlers": ("gather",),
    },
    "worker": {},
}

#: Spans since they were last collected: name, beginning, end, thread
_spans: list[tuple[str, int, int, int]] = []
_is_stamping = False


def _stamped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waited(*args: Any, **options: Any) -> Any:
            begin = monotonic_ns()
            try:
                return await function(*args, **options)
            finally:
                _spans.append((name, begin, monotonic_ns(), threading.get_native_id()))

        return waited

    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        begin = monotonic_ns()
        try:
            return function(*args, **options)
        finally:
            _spans.append((name, begin, monotonic_ns(), threading.get_native_id()))

    return called


def _stamp(role: str, place: Any) -> None:
    """Wrap what a role does; once in a process, and the handlers once for each object."""
    global _is_stamping
    if _is_stamping:
        return
    _is_stamping = True
    for path, name in _FUNCTIONS[role].items():
        module, _, qualified = path.partition(":")
        owner: Any = importlib.import_module(module)
        *owners, attribute = qualified.split(".")
        for each in owners:
            owner = getattr(owner, each)
        setattr(owner, attribute, _stamped(name, getattr(owner, attribute)))
    for dictionary, operations in _HANDLERS[role].items():
        handlers = getattr(place, dictionary)
        for operation in operations:
            # A scheduler that handles graphs itself is sent them as Dask does.
            if operation == UPDATE_GRAPH and SUBMIT in handlers:
                continue
            if operation in handlers:
                handlers[operation] = _stamped(operation, handlers[operation])


def _stamp_scheduler(dask_scheduler: Any) -> None:
    _stamp("scheduler", dask_scheduler)


def _stamp_worker(dask_worker: Any) -> None:
    _stamp("worker", dask_worker)


def _collect() -> dict[str, Any]:
    """Give the spans of this process since the last time."""
    found, _spans[:] = list(_spans), []
    return {"pid": os.getpid(), "spans": found}


class TracedSubmits(Job):
    """One task at a time, as the case ``submit``, in processes that stamp what they do.

    Parameters
    ----------
    tasks : int
        Number of submits.
    seed : int
        Other inputs for each repetition.
    """

    def __init__(self, *, tasks: int, seed: int) -> None:
        super().__init__()
        self._count = tasks
        self._first = 1_000_000 * (seed + 1)
        self._rounds: list[tuple[int, int]] = []

    @property
    def tasks(self) -> int:
        return self._count

    def prepare(self, client: Client) -> None:
        _stamp("client", client)
        client.run_on_scheduler(_stamp_scheduler)
        client.run(_stamp_worker)
        self._collect(client)

    def run(self, client: Client) -> None:
        self.result = []
        # Of this client: Backhaul replaces methods on single objects.
        submit = _stamped("submit", client.submit)
        for value in range(self._first, self._first + self._count):
            begin = monotonic_ns()
            self.result.append(submit(abs, value).result())
            self._rounds.append((begin, monotonic_ns()))

    def facts(self, client: Client) -> dict[str, Any]:
        """Give the begin and end of each submit, and the spans of every process."""
        return {"rounds": self._rounds, "processes": self._collect(client)}

    def check(self, client: Client) -> None:
        if self.result != list(range(self._first, self._first + self._count)):
            raise ValueError(f"wrong results: {str(self.result)[:80]}")

    def _collect(self, client: Client) -> list[dict[str, Any]]:
        of_client = {"role": "client", **_collect()}
        scheduler: Any = client.run_on_scheduler(_collect)
        workers: Any = client.run(_collect)
        return [
            of_client,
            {"role": "scheduler", **scheduler},
            *({"role": f"worker {number}", **each} for number, each in enumerate(workers.values())),
        ]
