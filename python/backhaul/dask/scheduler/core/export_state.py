"""The escape: the export of a scheduler core's whole state to Dask's own objects.

Dask's code then continues with the same decisions, because every set and dict has the core's order.
An event that failed half way left the core as it would have left Dask's objects, so that state can
be exported, too.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

from backhaul._native import SchedulerCore
from backhaul.dask.compat.names import (
    ClientState,
    ErredTask,
    Status,
    TaskGroup,
    TaskPrefix,
    TaskState,
    key_split,
    key_split_group,
)
from backhaul.dask.scheduler.core.failures import found_failure, worker_that_left
from backhaul.dask.scheduler.core.heap import fill_queue
from backhaul.errors import EscapeError

__all__ = [
    "Payloads",
    "fill_counts",
    "fill_times",
    "forgotten_task",
    "no_collection",
    "refill",
    "register_stealable",
    "whole",
    "write_into",
]

#: Attributes by upstream's names, as the core says them.
Said: TypeAlias = dict[str, Any]


class Payloads(Protocol):
    """Converts the core's texts and bytes to Python's objects."""

    def key(self, text: str, /) -> Any:
        """Return the key of a text."""

    def run_spec(self, text: str, payload: bytes, /) -> Any:
        """Return the run spec of a task; not None."""

    def annotations(self, text: str, payload: bytes, /) -> dict[str, Any] | None:
        """Return the annotations of a task."""

    def exception(self, text: str, payload: bytes, /) -> Any:
        """Return the exception of a task, still serialized, as Dask keeps it."""

    def traceback(self, text: str, payload: bytes, /) -> Any:
        """Return the traceback of a task, still serialized."""


def write_into(
    core: SchedulerCore,
    scheduler: Any,
    payloads: Payloads,
    *,
    departed: Mapping[str, Any] | None = None,
    groups: Mapping[str, Any] | None = None,
    prefixes: Mapping[str, Any] | None = None,
    tasks: Mapping[str, Any] | None = None,
    monotonic_offset_s: float = 0.0,
    wall_offset_s: float = 0.0,
) -> None:
    """Export the whole state of a core to a scheduler, whose own code can then continue.

    The core is only read; it must not be used any more once the scheduler has handled an event.
    State that the core does not have is unchanged: stealing (see `register_stealable`),
    computations, spans, metadata of tasks, events, the log of transitions, and memory use from
    heartbeats.

    Parameters
    ----------
    core : SchedulerCore
        The state.
    scheduler : distributed.Scheduler
        Has the real objects of the cluster's workers and clients (``workers``, ``aliases``,
        ``host_info``, ``total_nthreads``), and no tasks. Sets and dicts are filled in place. A
        worker of which the core does not know is left as it is.
    payloads : Payloads
        Makes Python's objects of texts and bytes.
    departed : mapping of str to WorkerState, optional
        Workers by address that are not in ``scheduler.workers`` any more. Where an event was
        refused while a worker was leaving, tasks may still be on it; for one that is not named here
        a closed worker stands in, with what the core knows of it.
    groups, prefixes, tasks : mapping of str to object, optional
        Existing objects, by name, and tasks by text of the key: they are filled, and no new ones
        are made, because a program may refer to them.
    monotonic_offset_s, wall_offset_s : float
        Differences of ``time.monotonic`` and of ``time.time`` to the core's clock, in seconds. Dask
        uses the first clock for tasks that wait for a worker, and the second for the times at which
        graphs arrived and tasks failed.

    Raises
    ------
    EscapeError
        If the scheduler has tasks, or lacks a worker that the core has. Nothing has changed then.
        What ``payloads`` raises is passed on, and the scheduler is half written; the core is not
        touched, so that the same may be tried with a scheduler that is cleared.
    """
    said = core.dump(tasks=False)
    if scheduler.tasks:
        raise EscapeError(f"the scheduler has {len(scheduler.tasks)} tasks already")
    missing = [address for address in said["workers"] if address not in scheduler.workers]
    if missing:
        raise EscapeError(f"the scheduler lacks workers that the core has: {missing}")
    writer = _Writer(core, said, scheduler, payloads, departed or {})
    writer.given_groups = groups or {}
    writer.given_prefixes = prefixes or {}
    writer.given_tasks = {} if tasks is None else tasks
    with no_collection():
        writer.groups()
        writer.tasks()
        writer.tallies()
        writer.workers()
        writer.clients()
        writer.cluster(monotonic_offset_s, wall_offset_s)


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector while many objects are made that stay alive.

    The collector would take a third of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def register_stealable(scheduler: Any) -> None:
    """Register all stealable tasks with Dask's work stealing.

    Called once, after `write_into`, if stealing was notified of no transitions before.
    """
    stealing = scheduler.extensions.get("stealing")
    if stealing is None:
        return
    for ws in scheduler.workers.values():
        for ts in ws.processing:
            # As long as upstream itself leaves them out: see its `handle_long_running`
            if ts not in ws.long_running:
                stealing.put_key_in_stealable(ts)


class _Writer:
    """The steps of one export; tables find the exported objects by the texts of keys."""

    def __init__(
        self,
        core: SchedulerCore,
        said: Said,
        scheduler: Any,
        payloads: Payloads,
        departed: Mapping[str, Any],
    ) -> None:
        self.core = core
        self.said = said
        self.scheduler = scheduler
        self.payloads = payloads
        #: Upstream's class of sets, whatever that is.
        self.set = type(scheduler.running)
        self.by_text: dict[str, Any] = {}
        self.by_serial: dict[int, Any] = {}
        self.forgotten: dict[tuple[str, int | None], Any] = {}
        self.known = {address: scheduler.workers[address] for address in said["workers"]}
        self.departed = departed
        self.left = {
            address: departed.get(address) or _left(scheduler, address, one)
            for address, one in said["departed_workers"].items()
        }

        self.given_groups: Mapping[str, Any] = {}
        self.given_prefixes: Mapping[str, Any] = {}
        self.given_tasks: Mapping[str, Any] = {}

    def groups(self) -> None:
        """Make prefixes and groups, without their counts."""
        scheduler = self.scheduler
        scheduler.task_prefixes.clear()
        scheduler.task_groups.clear()
        for name in self.said["task_prefixes"]:
            scheduler.task_prefixes[name] = self._prefix(name)
        current = self.said["task_groups"].items()
        all_groups = [
            *((one["serial"], one["name"], one, True) for one in self.said["gone_groups"]),
            *((one["serial"], name, one, False) for name, one in current),
        ]
        for serial, name, one, gone in sorted(all_groups, key=lambda entry: entry[0]):
            prefix = scheduler.task_prefixes[one["prefix"]]
            group = TaskGroup(name, prefix) if gone else self._group(name, prefix)
            self.by_serial[serial] = group
            if gone:
                # The prefix must not have a forgotten group; other groups only depend on it.
                del prefix._groups[group]
            else:
                scheduler.task_groups[name] = group

    def _prefix(self, name: str) -> Any:
        prefix = self.given_prefixes.get(name)
        if prefix is None:
            return TaskPrefix(name)
        prefix._groups.clear()
        return prefix

    def _group(self, name: str, prefix: Any) -> Any:
        group = self.given_groups.get(name)
        if group is None:
            return TaskGroup(name, prefix)
        group.prefix = prefix
        prefix.add_group(group)
        return group

    def tasks(self) -> None:
        """Make the tasks in the order of their arrival, and link them to each other."""
        texts = self.core.keys()
        for text in texts:
            ts = self.given_tasks.get(text)
            if ts is None:
                ts = TaskState.__new__(TaskState)
            # Only key and hash, so that others can refer to it: dependencies may come later.
            ts.key = self.payloads.key(text)
            ts._hash = hash(ts.key)
            self.by_text[text] = ts
            self.scheduler.tasks[ts.key] = ts
        for text in texts:
            self._fill(text, self.by_text[text], self.core.task(text))

    def _fill(self, text: str, ts: Any, one: Said) -> None:
        payloads = self.payloads
        spec = one["run_spec"]
        ts.__init__(
            ts.key,
            None if spec is None else payloads.run_spec(text, spec),
            one["state"],
            self.scheduler.task_groups[one["group"]],
            self.scheduler.validate,
        )
        for name in ("dependencies", "dependents", "waiting_on", "waiters"):
            texts = one[name]
            members = None if texts is None else self.set(self.by_text[text] for text in texts)
            setattr(ts, name, members)
        if one["who_wants"] is not None:
            ts.who_wants = self.set(map(self._client, one["who_wants"]))
        if one["who_has"]:
            ts.who_has = self.set(map(self._worker, one["who_has"]))
        if one["processing_on"] is not None:
            ts.processing_on = self._worker(one["processing_on"])
        for name in (
            "nbytes",
            "type",
            "retries",
            "suspicious",
            "run_id",
            "has_lost_dependencies",
            "actor",
            "exception_text",
            "traceback_text",
            "loose_restrictions",
        ):
            setattr(ts, name, one[name])
        for name in ("host_restrictions", "worker_restrictions", "erred_on"):
            setattr(ts, name, None if one[name] is None else self.set(one[name]))
        if one["resource_restrictions"] is not None:
            ts.resource_restrictions = _amounts(one["resource_restrictions"])
        ts._queueable = one["queueable"]
        ts.priority = None if one["priority"] is None else tuple(map(whole, one["priority"]))
        if one["annotations"] is not None:
            ts.annotations = payloads.annotations(text, one["annotations"])
        elif spec is not None and "spans" in self.scheduler.extensions:
            # As Dask's extension for spans leaves them.
            ts.annotations = {}
        if one["exception"] is not None:
            ts.exception = self._exception(text, ts, one["exception"])
        if one["traceback"] is not None:
            ts.traceback = payloads.traceback(text, one["traceback"])
        blamed = one["exception_blame"]
        if blamed is not None:
            serial = one["forgotten_blame"]
            ts.exception_blame = (
                self.by_text[blamed] if serial is None else self._forgotten(blamed, serial)
            )

    def _exception(self, text: str, ts: Any, exception: Any) -> Any:
        if isinstance(exception, bytes):
            return self.payloads.exception(text, exception)
        name, of = exception
        return found_failure(name, of, key=ts.key, scheduler=self.scheduler, departed=self.departed)

    def tallies(self) -> None:
        """Set the counts of groups and prefixes, over those from the making of tasks."""
        said = self.said
        for one in [*said["gone_groups"], *said["task_groups"].values()]:
            group = self.by_serial[one["serial"]]
            fill_counts(group, one)
            fill_times(group, one)
            group.dependencies = self.set(
                self.by_serial[serial] for serial in one["dependency_serials"]
            )
            last = one["last_worker"]
            # Dask uses a last worker only if that is still in the cluster.
            group.last_worker = None if last is None else self.known.get(last)
            group.last_worker_tasks_left = one["last_worker_tasks_left"]
        for name, one in said["task_prefixes"].items():
            prefix = self.scheduler.task_prefixes[name]
            fill_counts(prefix, one)
            counts = {state: count for state, count in one["state_counts"].items() if count}
            refill(prefix.state_counts, counts)
            prefix.duration_average = one["duration_average"]
            prefix.max_exec_time = one["max_exec_time"]
            prefix.suspicious = one["suspicious"]

    def workers(self) -> None:
        """Export the state of workers."""
        for address, one in self.said["workers"].items():
            self._fill_worker(self.known[address], one)
        for address, one in self.said["departed_workers"].items():
            self._fill_worker(self.left[address], one)

    def _fill_worker(self, ws: Any, one: Said) -> None:
        if status_name(ws.status) != one["status"]:
            ws.status = Status[one["status"]]
        ws.nbytes = one["nbytes"]
        refill(ws._has_what, dict.fromkeys(map(self._task, one["has_what"])))
        for name in ("processing", "long_running", "actors"):
            refill(getattr(ws, name), self._tasks(one[name]))
        # Upstream makes a new dict with each heartbeat.
        ws.executing = {self._task(text): took for text, took in one["executing"].items()}
        refill(ws.needs_what, {self._task(text): n for text, n in one["needs_what"].items()})
        refill(ws.task_prefix_count, dict(one["task_prefix_count"]))
        ws._network_occ = one["network_occ"]
        ws._occupancy_cache = None
        refill(ws.resources, _amounts(one["resources"]))
        refill(ws.used_resources, _amounts(one["used_resources"]))

    def clients(self) -> None:
        """Export the keys that clients want."""
        for name, texts in self.said["clients"].items():
            refill(self._client(name).wants_what, self._tasks(texts))

    def cluster(self, monotonic_offset_s: float, wall_offset_s: float) -> None:
        """Export the state that belongs to no single task or worker."""
        scheduler, said = self.scheduler, self.said
        for name in ("running", "idle_task_count", "saturated"):
            members = getattr(scheduler, name)
            others = [ws for ws in members if ws.address not in said["workers"]]
            refill(members, [*map(self.known.__getitem__, said[name]), *others])
        idle = {address: self.known[address] for address in said["idle"]}
        others = [address for address in scheduler.idle if address not in said["workers"]]
        refill(scheduler.idle, {**{one: scheduler.idle[one] for one in others}, **idle})
        suppliers = {name: _amounts(has) for name, has in said["resources"].items()}
        for name, known in scheduler.resources.items():
            strangers = {one: known[one] for one in known if one not in said["workers"]}
            suppliers.setdefault(name, {}).update(strangers)
        refill(scheduler.resources, suppliers)
        refill(
            scheduler.unrunnable,
            {
                self.by_text[text]: since + monotonic_offset_s
                for text, since in said["unrunnable"].items()
            },
        )
        refill(scheduler.replicated_tasks, self._tasks(said["replicated_tasks"]))
        fill_queue(scheduler.queued, said, self.by_text)
        scheduler.erred_tasks.clear()
        # The newest come first, and a full deque would drop them, so the list is cut before.
        latest = said["erred_tasks"][: scheduler.erred_tasks.maxlen]
        for text, at, erred_on, exception_text, traceback_text in latest:
            scheduler.erred_tasks.append(
                ErredTask(
                    self.payloads.key(text),
                    at + wall_offset_s,
                    self.set(erred_on),
                    exception_text,
                    traceback_text,
                )
            )
        refill(scheduler._task_prefix_count_global, dict(said["task_prefix_count"]))
        scheduler._network_occ_global = said["network_occ"]
        scheduler.bandwidth = said["bandwidth"]
        scheduler.n_tasks = said["n_tasks"]
        scheduler.transition_counter = said["transition_counter"]
        scheduler.generation = said["generation"]
        # Dask has 0 before the first graph, so no offset is added then.
        last = said["last_graph"]
        scheduler._last_time = last + wall_offset_s if last else 0.0
        since = said["no_workers_since"]
        scheduler._no_workers_since = None if since is None else since + monotonic_offset_s
        _advance_run_ids(said["next_run_id"])

    def _tasks(self, texts: Iterable[str]) -> list[Any]:
        return [self._task(text) for text in texts]

    def _task(self, text: str) -> Any:
        """Find or make a task; a worker may have an entry of a forgotten task."""
        return self.by_text.get(text) or self._forgotten(text, None)

    def _forgotten(self, text: str, serial: int | None) -> Any:
        """Find or make the object that Dask would still have of a forgotten task."""
        ts = self.forgotten.get((text, serial))
        if ts is None:
            ts = forgotten_task(self.payloads.key(text), self.scheduler)
            self.forgotten[text, serial] = ts
        return ts

    def _client(self, name: str) -> Any:
        client = self.scheduler.clients.get(name)
        if client is None:
            # A client without a stream, such as that of a variable or queue.
            client = self.scheduler.clients[name] = ClientState(name)
        return client

    def _worker(self, address: str) -> Any:
        return self.known.get(address) or self.left[address]


def forgotten_task(key: Any, scheduler: Any) -> Any:
    """Make the object that Dask would still have of a forgotten task."""
    group = TaskGroup(key_split_group(key), TaskPrefix(key_split(key)))
    return TaskState(key, None, "forgotten", group, scheduler.validate)


def status_name(status: Status) -> str:
    """Return a worker's status for the core, where any status besides these three is ``paused``."""
    name = str(status.name)
    return name if name in ("running", "closing_gracefully", "closed") else "paused"


def _left(scheduler: Any, address: str, one: Said) -> Any:
    known = {name: one[name] for name in ("name", "nthreads", "memory_limit")}
    return worker_that_left(address, scheduler=scheduler, **known)


def fill_counts(
    collection: Any,
    said: Mapping[str, Any],
    *,
    read: Callable[[Any, str], Any] = getattr,
    write: Callable[[Any, str, Any], None] = setattr,
) -> None:
    """Set the counts of a group or prefix to those of the core."""
    write(collection, "nbytes_total", said["nbytes_total"])
    read(collection, "states").update(said["states"])
    refill(read(collection, "_all_durations_us"), said["all_durations_us"])
    write(collection, "_duration_us", said["duration_us"])
    write(collection, "_size", said["len"])
    refill(read(collection, "_types"), said["types"])


def fill_times(
    group: Any, said: Mapping[str, Any], *, write: Callable[[Any, str, Any], None] = setattr
) -> None:
    """Set when the first task of a group began, and the last ended."""
    write(group, "start", said["start"])
    write(group, "stop", said["stop"])


def refill(collection: Any, members: Any) -> None:
    """Replace the members of a set or dict in place, because programs may refer to it."""
    collection.clear()
    collection.update(members)


def whole(number: float) -> float:
    """Convert a float without fraction back to the int that Python had."""
    return int(number) if number.is_integer() else number


def _amounts(amounts: dict[str, float]) -> dict[str, float]:
    return {name: whole(amount) for name, amount in amounts.items()}


def _advance_run_ids(next_run_id: int) -> None:
    """Advance Dask's counter of runs past the numbers that the core has used."""
    ours: Any = TaskState
    ours._run_id_iterator = itertools.count(max(next_run_id, next(ours._run_id_iterator)))
