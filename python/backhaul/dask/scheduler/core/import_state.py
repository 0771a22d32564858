"""The way back: a core of a scheduler that has no tasks.

What outlives tasks goes with it, in upstream's order: the cluster, what workers are believed to
have to fetch still, what prefixes have learned of durations, counters and the history of failures.
So the core decides as upstream would have.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral
from typing import Any

from backhaul._native import SchedulerCore
from backhaul.dask.compat.names import TaskState
from backhaul.dask.scheduler.core.export_state import Said, status_name
from backhaul.errors import EscapeError

__all__ = ["adopt", "are_amounts", "holds_no_tasks", "is_size", "name_text"]

#: Largest result that a core takes, in bytes: as in the core
_NBYTES_MAX = 2**48

#: What sums of sizes are below, in bytes, for a core to go on with them
_BYTES_END = 2**62


def holds_no_tasks(scheduler: Any) -> bool:
    """Tell whether a scheduler has nothing of tasks, so that a core may be made of it."""
    return _in_the_way(scheduler) is None


def adopt(
    scheduler: Any,
    settings: Mapping[str, Any],
    *,
    key_text: Callable[[Any], str] = str,
    monotonic_offset_s: float = 0.0,
    wall_offset_s: float = 0.0,
) -> SchedulerCore:
    """Make a core of a scheduler without tasks; the scheduler is only read.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        Its workers, clients, prefixes and counters are taken over. Numbers of runs go on from those
        of this process, so that no worker can mistake a run for an old one.
    settings : mapping of str to object
        Fields of ``Config``, as for `SchedulerCore`; what the scheduler has learned since it was
        made, such as bandwidth, is taken from the scheduler.
    key_text : callable
        Gives the text of a key; the inverse of ``Payloads.key``. Keys of forgotten tasks, which
        histories and workers refer to, are all that it is asked for.
    monotonic_offset_s, wall_offset_s : float
        As for `write_into`: what is taken from the scheduler's times to make the core's of them, in
        seconds.

    Raises
    ------
    EscapeError
        If it has tasks, or something is left of tasks in it, as when an event was refused.
    """
    reason = _in_the_way(scheduler)
    if reason is not None:
        raise EscapeError(f"the scheduler is not without tasks: {reason}")
    streams = [name for name in scheduler.clients if name in scheduler.client_comms]
    said = _say(scheduler, key_text, monotonic_offset_s, wall_offset_s)
    return SchedulerCore.inherit(said, streams, **settings)


def name_text(name: object) -> str:
    """Give the text by which a core knows a worker's name, which need not be one.

    A restriction that is a text must not find a worker whose name is the number of that text.
    """
    return name if isinstance(name, str) else f"{type(name).__qualname__} {name!r}"


def are_amounts(resources: Mapping[Any, Any]) -> bool:
    """Tell whether all that a worker has is a number by a name, as a core takes it."""
    return all(
        isinstance(name, str) and isinstance(amount, (int, float))
        for name, amount in resources.items()
    )


def is_size(nbytes: object) -> bool:
    """Tell whether the size of a result is a number of bytes that a core can count."""
    return isinstance(nbytes, Integral) and 0 <= int(nbytes) <= _NBYTES_MAX


def _in_the_way(scheduler: Any) -> str | None:
    for name in ("tasks", "task_groups", "queued", "unrunnable", "replicated_tasks"):
        if len(getattr(scheduler, name)):
            return f"{name} is not empty"
    for ws in scheduler.workers.values():
        for name in ("processing", "long_running", "has_what"):
            if len(getattr(ws, name)):
                return f"{name} of {ws.address} is not empty"
    for client in scheduler.clients.values():
        if client.wants_what:
            return f"client {client.client_key} wants something"
    for nbytes in _sums(scheduler):
        # No number is not below it, either.
        if not abs(nbytes) < _BYTES_END:
            return f"results took {nbytes} bytes"
    return None


def _sums(scheduler: Any) -> Iterator[float]:
    """Give what sizes of results have added up to, in bytes; all of it is about 0 without them."""
    yield scheduler._network_occ_global
    for ws in scheduler.workers.values():
        yield ws.nbytes
        yield ws._network_occ
    for tp in scheduler.task_prefixes.values():
        yield tp.nbytes_total


def _say(
    scheduler: Any,
    key_text: Callable[[Any], str],
    monotonic_offset_s: float,
    wall_offset_s: float,
) -> Said:
    """Say a scheduler in the form of `SchedulerCore.dump`."""
    last = scheduler._last_time
    since = scheduler._no_workers_since
    return {
        "workers": {address: _worker(ws, key_text) for address, ws in scheduler.workers.items()},
        "task_prefixes": {name: _prefix(tp) for name, tp in scheduler.task_prefixes.items()},
        "running": [ws.address for ws in scheduler.running],
        "idle": list(scheduler.idle),
        "idle_task_count": [ws.address for ws in scheduler.idle_task_count],
        "saturated": [ws.address for ws in scheduler.saturated],
        "queued": [],
        "queue_added": scheduler.queued._inc,
        "unrunnable": {},
        "replicated_tasks": [],
        "erred_tasks": [
            (
                key_text(one.key),
                one.timestamp - wall_offset_s,
                list(one.erred_on),
                one.exception_text,
                one.traceback_text,
            )
            for one in scheduler.erred_tasks
        ],
        "clients": {name: [] for name in scheduler.clients},
        "resources": {name: dict(has) for name, has in scheduler.resources.items()},
        "hosts": {
            host: list(info["addresses"])
            for host, info in scheduler.host_info.items()
            if info.get("addresses")
        },
        "task_prefix_count": list(scheduler._task_prefix_count_global.items()),
        "network_occ": round(scheduler._network_occ_global),
        "total_nthreads": scheduler.total_nthreads,
        "bandwidth": scheduler.bandwidth,
        "n_tasks": scheduler.n_tasks,
        "transition_counter": scheduler.transition_counter,
        "generation": scheduler.generation,
        "last_graph": last - wall_offset_s if last else 0.0,
        "next_run_id": _next_run_id(),
        "no_workers_since": None if since is None else since - monotonic_offset_s,
    }


def _worker(ws: Any, key_text: Callable[[Any], str]) -> Said:
    return {
        "name": name_text(ws.name),
        "host": ws.host,
        "status": status_name(ws.status),
        "nthreads": ws.nthreads,
        "memory_limit": ws.memory_limit,
        # Of results whose sizes were no whole numbers a part of a byte may be left, here and below.
        "nbytes": round(ws.nbytes),
        "has_what": [],
        "processing": [],
        "long_running": [],
        "actors": [key_text(ts.key) for ts in ws.actors],
        "task_prefix_count": list(ws.task_prefix_count.items()),
        "needs_what": {key_text(ts.key): count for ts, count in ws.needs_what.items()},
        "network_occ": round(ws._network_occ),
        "executing": {key_text(ts.key): took for ts, took in ws.executing.items()},
        "resources": dict(ws.resources),
        "used_resources": dict(ws.used_resources),
    }


def _prefix(tp: Any) -> Said:
    return {
        "states": dict(tp.states),
        "len": len(tp),
        "nbytes_total": round(tp.nbytes_total),
        "duration_us": tp._duration_us,
        "all_durations_us": dict(tp._all_durations_us),
        "types": dict(tp._types),
        "state_counts": dict(tp.state_counts),
        "duration_average": tp.duration_average,
        "max_exec_time": tp.max_exec_time,
        "suspicious": tp.suspicious,
    }


def _next_run_id() -> int:
    """Tell which number the next run would get, without taking it."""
    runs: Any = TaskState
    number = next(runs._run_id_iterator)
    runs._run_id_iterator = itertools.count(number)
    return int(number)
