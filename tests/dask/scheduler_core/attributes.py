"""All attributes of upstream's scheduler that decide or are reported, and its messages, as values.

The form is that of ``SchedulerCore.dump`` and ``SchedulerCore.take_messages``.
"""

from __future__ import annotations

import pickle
from typing import Any

from distributed.scheduler import ALL_TASK_STATES

from backhaul.dask.scheduler.core.failures import found_failure

from .upstream import exception_name

__all__ = [
    "attributes_of",
    "difference",
    "message_of",
    "our_attributes",
    "our_message",
    "our_stealing",
    "outlived",
    "stealing_of",
    "without",
]

#: Order in which upstream lists states is no matter here.
STATES = sorted(ALL_TASK_STATES)


def attributes_of(state: Any) -> dict[str, Any]:
    """Say all of a scheduler."""
    return {
        "tasks": {key: _task(ts) for key, ts in state.tasks.items()},
        "workers": {address: _worker(ws) for address, ws in state.workers.items()},
        "task_groups": {name: _group(state, tg) for name, tg in state.task_groups.items()},
        "task_prefixes": {name: _prefix(tp) for name, tp in state.task_prefixes.items()},
        "task_keys": list(state.tasks),
        "group_names": list(state.task_groups),
        "prefix_names": list(state.task_prefixes),
        "running": [ws.address for ws in state.running],
        "idle": list(state.idle),
        "idle_task_count": [ws.address for ws in state.idle_task_count],
        "saturated": [ws.address for ws in state.saturated],
        "queued": [ts.key for ts in state.queued],
        "queue_entries": _queue(state),
        "queue_added": state.queued._inc,
        "unrunnable": {ts.key: since for ts, since in state.unrunnable.items()},
        "replicated_tasks": [ts.key for ts in state.replicated_tasks],
        "erred_tasks": [
            (one.key, one.timestamp, list(one.erred_on), one.exception_text, one.traceback_text)
            for one in state.erred_tasks
        ],
        "clients": {name: [ts.key for ts in cs.wants_what] for name, cs in state.clients.items()},
        "resources": {name: dict(has) for name, has in state.resources.items()},
        "hosts": {
            host: list(info["addresses"])
            for host, info in state.host_info.items()
            if info.get("addresses")
        },
        "task_prefix_count": list(state._task_prefix_count_global.items()),
        "network_occ": state._network_occ_global,
        "total_occupancy": state.total_occupancy,
        "total_nthreads": state.total_nthreads,
        "bandwidth": state.bandwidth,
        "n_tasks": state.n_tasks,
        "transition_counter": state.transition_counter,
        "generation": state.generation,
        "last_graph": state._last_time,
        "no_workers_since": state._no_workers_since,
    }


def _queue(state: Any) -> list[tuple[Any, int, str]]:
    """Say what the heap has, in order, without what is left in it of forgotten tasks."""
    entries = [(key, order, ts()) for key, order, ts in state.queued._heap]
    known = [
        (key, order, ts.key)
        for key, order, ts in entries
        if ts is not None and state.tasks.get(ts.key) is ts
    ]
    # A graph that was refused in the middle leaves tasks without a priority, which may be queued.
    return sorted(known, key=lambda entry: (entry[0] is not None, entry[0] or (), entry[1]))


def _run_spec(spec: Any) -> Any:
    return None if spec is None else (spec.key, sorted(spec.dependencies), spec.data_producer)


def _keys(tasks: Any) -> list[str] | None:
    return None if tasks is None else [ts.key for ts in tasks]


def _task(ts: Any) -> dict[str, Any]:
    return {
        "state": ts.state,
        "run_spec": _run_spec(ts.run_spec),
        "priority": ts.priority,
        "dependencies": _keys(ts.dependencies),
        "dependents": _keys(ts.dependents),
        "waiting_on": _keys(ts.waiting_on),
        "waiters": _keys(ts.waiters),
        "who_wants": None if ts.who_wants is None else [cs.client_key for cs in ts.who_wants],
        "who_has": [ws.address for ws in ts.who_has or ()],
        "processing_on": ts.processing_on.address if ts.processing_on else None,
        "nbytes": ts.nbytes,
        "type": ts.type,
        "retries": ts.retries,
        "suspicious": ts.suspicious,
        "run_id": ts.run_id,
        "queueable": ts._queueable,
        "annotations": ts.annotations,
        "has_lost_dependencies": ts.has_lost_dependencies,
        "actor": ts.actor,
        "group": ts.group.name,
        "prefix": ts.prefix.name,
        "exception": exception_name(ts.exception),
        "traceback": ts.traceback,
        "exception_text": ts.exception_text,
        "traceback_text": ts.traceback_text,
        "exception_blame": ts.exception_blame.key if ts.exception_blame else None,
        "erred_on": None if ts.erred_on is None else list(ts.erred_on),
        "host_restrictions": list(ts.host_restrictions or ()),
        "worker_restrictions": list(ts.worker_restrictions or ()),
        "resource_restrictions": dict(ts.resource_restrictions or {}),
        "loose_restrictions": ts.loose_restrictions,
    }


def _worker(ws: Any) -> dict[str, Any]:
    return {
        "name": ws.name,
        "host": ws.host,
        "status": ws.status.name,
        "nthreads": ws.nthreads,
        "memory_limit": ws.memory_limit,
        "nbytes": ws.nbytes,
        "occupancy": ws.occupancy,
        "has_what": _keys(ws.has_what),
        "processing": _keys(ws.processing),
        "long_running": _keys(ws.long_running),
        "actors": _keys(ws.actors),
        "task_prefix_count": list(ws.task_prefix_count.items()),
        "needs_what": {ts.key: count for ts, count in ws.needs_what.items()},
        "network_occ": ws._network_occ,
        "executing": {ts.key: took for ts, took in ws.executing.items()},
        "resources": dict(ws.resources),
        "used_resources": dict(ws.used_resources),
    }


def _collection(one: Any) -> dict[str, Any]:
    return {
        "states": {state: one.states[state] for state in STATES},
        "len": len(one),
        "nbytes_total": one.nbytes_total,
        "duration_us": one._duration_us,
        "all_durations_us": dict(one._all_durations_us),
        "types": dict(one._types),
    }


def _group(state: Any, tg: Any) -> dict[str, Any]:
    last = tg.last_worker
    if last is not None:
        # One that has gone is as good as none.
        last = last.address if state.workers.get(last.address) is last else None
    return {
        **_collection(tg),
        "prefix": tg.prefix.name,
        "dependencies": [(other.name, len(other)) for other in tg.dependencies],
        "start": tg.start,
        "stop": tg.stop,
        "last_worker": last,
        "last_worker_tasks_left": tg.last_worker_tasks_left,
    }


def _prefix(tp: Any) -> dict[str, Any]:
    return {
        **_collection(tp),
        "state_counts": {state: tp.state_counts.get(state, 0) for state in STATES},
        "duration_average": tp.duration_average,
        "max_exec_time": tp.max_exec_time,
        "suspicious": tp.suspicious,
        "groups": [tg.name for tg in tp.groups],
    }


def our_attributes(dump: dict[str, Any], upstream: Any) -> dict[str, Any]:
    """Bring a dump of the core to the form of `attributes_of`; ``upstream`` is a scheduler."""
    del dump["departed_workers"], dump["gone_groups"], dump["next_run_id"]
    dump["task_keys"] = list(dump["tasks"])
    dump["group_names"] = list(dump["task_groups"])
    dump["prefix_names"] = list(dump["task_prefixes"])
    for group in dump["task_groups"].values():
        del group["serial"], group["dependency_serials"]
        if group["last_worker"] == "gone":
            group["last_worker"] = None
    for task in dump["tasks"].values():
        del task["forgotten_blame"]
        if task["run_spec"] is not None:
            key, dependencies, data_producer = pickle.loads(task["run_spec"])
            task["run_spec"] = (key, sorted(dependencies), data_producer)
        if task["annotations"] is not None:
            task["annotations"] = pickle.loads(task["annotations"])
        for name in ("host_restrictions", "worker_restrictions"):
            task[name] = task[name] or []
        task["resource_restrictions"] = task["resource_restrictions"] or {}
        task["exception"] = _exception(task["exception"], upstream)
    return dump


def _exception(exception: Any, upstream: Any) -> Any:
    if isinstance(exception, tuple):
        name, of = exception
        exception = found_failure(name, of, key=of.get("key"), scheduler=upstream)
    return exception_name(exception)


def message_of(message: dict[str, Any]) -> dict[str, Any]:
    """Bring a message of upstream's to the form of `our_message`."""
    plain = dict(message)
    if plain["op"] == "compute-task":
        for name in ("stimulus_id", "span_id"):
            del plain[name]
        plain["run_spec"] = _run_spec(plain["run_spec"].data)
        plain["resource_restrictions"] = plain["resource_restrictions"] or {}
    elif plain["op"] == "cancelled-keys":
        plain["keys"] = list(plain["keys"])
    elif plain["op"] == "task-erred":
        plain["exception"] = exception_name(plain["exception"])
    elif plain["op"] == "close":
        del plain["reason"]
    if "who_has" in plain:
        plain["who_has"] = {key: list(has) for key, has in plain["who_has"].items()}
    return plain


def our_message(message: dict[str, Any], upstream: Any) -> dict[str, Any]:
    """Bring a message of the core to the form of `message_of`; ``upstream`` is a scheduler."""
    if message["op"] == "compute-task":
        message["annotations"] = pickle.loads(message["annotations"] or pickle.dumps({}))
        key, dependencies, data_producer = pickle.loads(message["run_spec"])
        message["run_spec"] = (key, sorted(dependencies), data_producer)
        message["resource_restrictions"] = message["resource_restrictions"] or {}
    elif message["op"] == "task-erred":
        message["exception"] = _exception(message["exception"], upstream)
    return message


def stealing_of(upstream: Any) -> dict[str, Any]:
    """Say what work stealing has of tasks, without what says nothing."""
    state, stealing = upstream.state, upstream.stealing
    here = state.workers

    def moved(by_worker: Any) -> dict[str, Any]:
        # Counts of a worker that has left do not belong to the one that returned to its address.
        known = ((ws, count) for ws, count in by_worker.items() if here.get(ws.address) is ws)
        return {ws.address: count for ws, count in known if count}

    return {
        "stealable": [
            (address, level, [ts.key for ts in tasks])
            for address, levels in sorted(stealing.stealable.items())
            for level, tasks in enumerate(levels)
            # One that has gone is there still where an event was refused in the middle.
            if tasks and address in here
        ],
        "key_stealable": {
            ts.key: (address, level)
            for ts, (address, level) in stealing.key_stealable.items()
            # Where an event was refused in the middle, the place of a task may be left whose set is
            # gone. Upstream looks into the set as well, another worker's at that address since.
            if address in here and ts in stealing.stealable[address][level]
        },
        "in_flight": [
            (
                ts.key,
                info["victim"].address,
                info["thief"].address,
                info["victim_duration"],
                info["thief_duration"],
                info["stimulus_id"],
            )
            for ts, info in stealing.in_flight.items()
        ],
        "occupancy": moved(stealing.in_flight_occupancy),
        "tasks": moved(stealing.in_flight_tasks),
        "unknown": {
            prefix: known
            for prefix, tasks in stealing.unknown_durations.items()
            if (known := [ts.key for ts in tasks if state.tasks.get(ts.key) is ts])
        },
        "requests": stealing._request_counter,
    }


def outlived(upstream: Any) -> set[str]:
    """List keys that a set of upstream's holds a forgotten task of, so that it takes no other."""
    known, unknown = upstream.state.tasks, upstream.stealing.unknown_durations
    return {ts.key for tasks in unknown.values() for ts in tasks if known.get(ts.key) is not ts}


def without(said: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    """Leave keys out of those of unknown duration."""
    unknown = {
        prefix: [key for key in known if key not in keys]
        for prefix, known in said["unknown"].items()
    }
    return {**said, "unknown": {prefix: known for prefix, known in unknown.items() if known}}


def our_stealing(core: Any) -> dict[str, Any]:
    """Say what ours has of it, in the same form."""
    said = core.stealing()
    places = {key: (address, level) for address, level, keys in said["stealable"] for key in keys}
    return {
        **said,
        "key_stealable": places,
        "occupancy": {address: count for address, count in said["occupancy"] if count},
        "tasks": {address: count for address, count in said["tasks"] if count},
        "unknown": {prefix: keys for prefix, keys in said["unknown"] if keys},
    }


def difference(upstream: Any, ours: Any, path: str = "") -> str | None:
    """Say where two values first differ."""
    if isinstance(upstream, dict) and isinstance(ours, dict):
        for name in [*upstream, *(name for name in ours if name not in upstream)]:
            if name not in upstream:
                return f"{path}/{name}: only ours has {ours[name]!r}"
            if name not in ours:
                return f"{path}/{name}: only upstream has {upstream[name]!r}"
            found = difference(upstream[name], ours[name], f"{path}/{name}")
            if found:
                return found
        return None
    same = upstream == ours
    return None if same else f"{path}: upstream has {upstream!r}, ours {ours!r}"
