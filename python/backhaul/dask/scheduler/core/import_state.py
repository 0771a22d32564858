"""The adoption: the import of a running scheduler's state into a new core.

The import reads Dask's objects in Dask's order: the cluster, tasks with their groups and prefixes,
the keys that clients want, the queue, counters and the history of failures. So the core makes the
decisions that Dask would have made. Dask keeps a state that no core can hold (`obstacle`, and
`EscapeError` of `adopt`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from backhaul._native import SchedulerCore
from backhaul.dask.compat.arrivals import by_arrival
from backhaul.dask.compat.names import TaskState
from backhaul.dask.scheduler.core.adopted_tasks import Payloads, ThreadsOf, tasks_said
from backhaul.dask.scheduler.core.export_state import Said, status_name
from backhaul.errors import EscapeError

__all__ = ["adopt", "are_amounts", "empty", "name_text", "obstacle"]

#: Upper limit of sums of sizes that a core can import, in bytes
_BYTES_END = 2**62


def obstacle(scheduler: Any) -> str | None:
    """Return why no core can be made of a scheduler now; None if `adopt` may try."""
    for name in scheduler.task_groups:
        if type(name) is not str:
            return f"the group {name!r} has no text as its name"
    for nbytes in _sums(scheduler):
        # No number is not below it, either.
        if not abs(nbytes) < _BYTES_END:
            return f"results took {nbytes} bytes"
    return None


def adopt(
    scheduler: Any,
    settings: Mapping[str, Any],
    payloads: Payloads,
    *,
    key_text: Callable[[Any], str] = str,
    threads_of: ThreadsOf | None = None,
    monotonic_offset_s: float = 0.0,
    wall_offset_s: float = 0.0,
) -> SchedulerCore:
    """Make a core with the state of a scheduler; the scheduler is only read.

    Work stealing and requests for resources are not part of it: see `stealing.begin_stealing` and
    `resources.begin_admission`.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        Its tasks, workers, clients, groups, prefixes and counters are imported. Numbers of runs
        continue those of this process, so that no worker can mistake a run for an old one.
    settings : mapping of str to object
        Fields of ``Config``, as for `SchedulerCore`; values that the scheduler has measured, such
        as bandwidth, are read from the scheduler.
    payloads : Payloads
        Gives the bytes by which the core knows run specs, annotations and failures.
    key_text : callable
        Gives the text of a key; the inverse of ``Payloads.key`` of `write_into`.
    threads_of : callable or None
        Returns how many threads a task requested; None if the scheduler ignores such requests.
    monotonic_offset_s, wall_offset_s : float
        As for `write_into`, in seconds; here subtracted from the scheduler's times.

    Raises
    ------
    EscapeError
        If the scheduler has something that a core cannot hold, such as a task whose worker has
        left (an event was refused half way), or a result whose size is no whole number.
    """
    reason = obstacle(scheduler)
    if reason is not None:
        raise EscapeError(reason)
    streams = [name for name in scheduler.clients if name in scheduler.client_comms]
    said = _say(scheduler, key_text, monotonic_offset_s, wall_offset_s)
    said["tasks"] = tasks_said(scheduler, payloads, key_text, threads_of)
    try:
        return SchedulerCore.inherit(said, streams, **settings)
    except (LookupError, OverflowError, TypeError) as error:
        # Dask's state is inconsistent, which Dask tolerates.
        raise EscapeError(str(error)) from error


def empty(scheduler: Any) -> None:
    """Clear Dask's collections of tasks, whose members a core has imported.

    Groups and prefixes stay. `write_into` fills the collections again.
    """
    for ws in scheduler.workers.values():
        for name in ("_has_what", "processing", "long_running", "actors", "executing"):
            getattr(ws, name).clear()
        ws.needs_what.clear()
    for cs in scheduler.clients.values():
        cs.wants_what.clear()
    for name in ("queued", "unrunnable", "replicated_tasks", "tasks"):
        getattr(scheduler, name).clear()


def name_text(name: object) -> str:
    """Return the text of a worker's name in a core; the name may be an object of any type.

    For example, the restriction ``"1"`` must not find a worker whose name is the number 1.
    """
    return name if isinstance(name, str) else f"{type(name).__qualname__} {name!r}"


def are_amounts(resources: Mapping[Any, Any]) -> bool:
    """Tell whether all resources of a worker are numbers by text names, as a core needs."""
    return all(
        isinstance(name, str) and isinstance(amount, (int, float))
        for name, amount in resources.items()
    )


def _sums(scheduler: Any) -> Iterator[float]:
    """Yield the sums of sizes of results, in bytes."""
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
    """Return the state of a scheduler in the form of `SchedulerCore.inherit`, without tasks."""

    def texts_of(tasks: Iterable[Any]) -> list[str]:
        return [key_text(ts.key) for ts in tasks]

    last = scheduler._last_time
    since = scheduler._no_workers_since
    return {
        "workers": {ws.address: _worker(ws, key_text) for ws in by_arrival(scheduler)},
        "task_prefixes": {name: _prefix(tp) for name, tp in scheduler.task_prefixes.items()},
        "running": [ws.address for ws in scheduler.running],
        "idle": list(scheduler.idle),
        "idle_task_count": [ws.address for ws in scheduler.idle_task_count],
        "saturated": [ws.address for ws in scheduler.saturated],
        "groups": _groups(scheduler),
        "queued": texts_of(scheduler.queued),
        "queue_entries": _queue_entries(scheduler, key_text),
        "queue_added": scheduler.queued._inc,
        "unrunnable": {
            key_text(ts.key): since - monotonic_offset_s
            for ts, since in scheduler.unrunnable.items()
        },
        "replicated_tasks": texts_of(scheduler.replicated_tasks),
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
        "clients": {name: texts_of(cs.wants_what) for name, cs in scheduler.clients.items()},
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
        # Results with fractional sizes may have left a part of a byte, here and below.
        "nbytes": round(ws.nbytes),
        "has_what": [key_text(ts.key) for ts in ws.has_what],
        "processing": [key_text(ts.key) for ts in ws.processing],
        "long_running": [key_text(ts.key) for ts in ws.long_running],
        "actors": [key_text(ts.key) for ts in ws.actors],
        "task_prefix_count": list(ws.task_prefix_count.items()),
        "needs_what": {key_text(ts.key): count for ts, count in ws.needs_what.items()},
        "network_occ": round(ws._network_occ),
        "executing": {key_text(ts.key): took for ts, took in ws.executing.items()},
        "resources": dict(ws.resources),
        "used_resources": dict(ws.used_resources),
    }


def _groups(scheduler: Any) -> list[Said]:
    """Return the groups; first the forgotten groups on which others depend."""
    known = list(scheduler.task_groups.values())
    serials = dict.fromkeys(map(id, known))
    gone = {
        id(other): other
        for group in known
        for other in group.dependencies
        if id(other) not in serials
    }
    listed = [*gone.values(), *known]
    serials = {id(group): serial for serial, group in enumerate(listed)}
    said = []
    for serial, group in enumerate(listed):
        last = group.last_worker
        is_gone = serial < len(gone)
        said.append(
            {
                **_collection(group),
                "name": group.name,
                "serial": serial,
                "gone": is_gone,
                "prefix": group.prefix.name,
                "dependency_serials": []
                if is_gone
                else [serials[id(other)] for other in group.dependencies],
                "start": group.start,
                "stop": group.stop,
                # Dask uses a last worker only if that is still in the cluster.
                "last_worker": last.address
                if last is not None and scheduler.workers.get(last.address) is last
                else None,
                "last_worker_tasks_left": group.last_worker_tasks_left,
            }
        )
    return said


def _prefix(tp: Any) -> Said:
    return {
        **_collection(tp),
        "state_counts": dict(tp.state_counts),
        "duration_average": tp.duration_average,
        "max_exec_time": tp.max_exec_time,
        "suspicious": tp.suspicious,
        "groups": [group.name for group in tp._groups],
    }


def _collection(one: Any) -> Said:
    return {
        "states": dict(one.states),
        "len": len(one),
        "nbytes_total": round(one.nbytes_total),
        "duration_us": one._duration_us,
        "all_durations_us": dict(one._all_durations_us),
        "types": dict(one._types),
    }


def _queue_entries(scheduler: Any, key_text: Callable[[Any], str]) -> list[tuple[Any, int, str]]:
    """Return the entries of the queue's heap, without those of forgotten tasks."""
    entries = ((priority, order, ts()) for priority, order, ts in scheduler.queued._heap)
    return [
        (priority, order, key_text(ts.key))
        for priority, order, ts in entries
        if ts is not None and scheduler.tasks.get(ts.key) is ts
    ]


def _next_run_id() -> int:
    """Tell which number the next run would get, without taking it."""
    runs: Any = TaskState
    number = next(runs._run_id_iterator)
    runs._run_id_iterator = itertools.count(number)
    return int(number)
