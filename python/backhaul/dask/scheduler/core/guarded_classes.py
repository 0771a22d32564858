"""Guarded classes: an access to a scheduler's state while the core has it is answered or escapes.

While the core has the state, the scheduler, its workers, clients and groups have classes made here.
Attributes that the core does not have are unchanged. Reads that monitoring makes, such as the
dashboard's, are answered from the core (`group_views`). Any other read or write causes an escape,
which exports the core's state to Dask's objects and restores their classes. If a collection is
empty in the core, a read returns Dask's own empty collection.

All of this runs in the thread of the event loop; other threads wait for that one (`loop_thread`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from distributed import Scheduler

from backhaul.dask.compat.names import (
    ClientState,
    SchedulerState,
    TaskGroup,
    TaskPrefix,
    TaskState,
    WorkerState,
)
from backhaul.dask.scheduler.core.eligibility import may_stay
from backhaul.dask.scheduler.core.group_views import Views, raw_reader
from backhaul.dask.scheduler.core.handler_overrides import replaces_method
from backhaul.dask.scheduler.core.lazy_sets import TasksIn
from backhaul.dask.scheduler.core.task_views import ATTRIBUTES, TasksOfCore, TaskViews, tasks_of

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["Guards"]

#: Attributes of the state that are in the core, whatever they hold
_STATE = ("transition_log",)

#: Counts of all, by the names that the core has for them
_LOADS = {
    "_network_occ_global": "network_occ",
    "generation": "generation",
    "n_tasks": "n_tasks",
}

#: Methods of a scheduler that change other state before they access the core's, or that compare
#: classes
_CHANGES_MORE = (
    "close",
    "new_task",
    "restart_workers",
    "validate_state",
)

#: Collections of Dask that may be read without an escape while the core's are empty
_OFTEN_EMPTY = ("erred_tasks", "unrunnable")

_OF_WORKERS = ("_has_what", "executing", "needs_what", "used_resources")

#: Collections of tasks that workers have
_TASKS_OF_WORKERS = ("processing", "long_running", "actors")

_OF_GROUPS = ("last_worker", "last_worker_tasks_left")

#: Counts of both groups and prefixes, of groups, and of prefixes
_COUNTS = ("_all_durations_us", "_duration_us", "_size", "_types", "nbytes_total", "states")
_COUNTS_OF_GROUPS = (*_COUNTS, "start", "stop")
_COUNTS_OF_PREFIXES = (
    *_COUNTS,
    "_groups",
    "duration_average",
    "max_exec_time",
    "state_counts",
    "suspicious",
)


class Guards:
    """The guarded classes of one scheduler's objects, while the core has the state."""

    def __init__(self, live: LiveCore) -> None:
        self._live = live
        self._scheduler_class = type(live.scheduler)
        self._guarded: list[tuple[Any, type]] = []
        self._property = live.loop_thread.attribute
        self.tasks = tasks_of(live)
        self._worker = self._class(WorkerState, self._worker_attributes())
        self._client = self._class(ClientState, [("wants_what", self._tasks_in)])
        attributes: list[tuple[str, Any]] = [(name, self._touch) for name in _OF_GROUPS]
        attributes += [(name, self._counted) for name in _COUNTS_OF_GROUPS]
        attributes.append(("dependencies", self._dependencies))
        self._group = self._class(TaskGroup, attributes)
        # A group whose name is no text is from before the import, and has no tasks any more.
        self._group.done = self._property(
            "done", lambda group: type(group.name) is not str or live.core.is_group_done(group.name)
        )
        self._prefix = self._class(
            TaskPrefix, [(name, self._counted) for name in _COUNTS_OF_PREFIXES]
        )
        self.views = Views(live, group_class=self._group, prefix_class=self._prefix)
        task = self._class(TaskState, [(name, self._of_task) for name in ATTRIBUTES])
        self.task_views = TaskViews(live, self.views, task)

    def guard(self) -> None:
        """Change the classes of the scheduler, its workers and its clients."""
        scheduler = self._live.scheduler
        for ws in scheduler.workers.values():
            self.guard_worker(ws)
        for cs in scheduler.clients.values():
            self.guard_client(cs)
        attributes: list[tuple[str, Any]] = [(name, self._touch) for name in _STATE]
        attributes += [(name, self._touch_unless_empty) for name in _OFTEN_EMPTY]
        attributes += [(name, self._tasks_in) for name in ("queued", "replicated_tasks")]
        guarded = self._class(self._scheduler_class, attributes)
        live, tasks = self._live, self.tasks
        self._watch(guarded)
        self._change(tasks, TasksOfCore)
        guarded.tasks = property(
            lambda _: tasks, lambda _, value: live.written(SchedulerState, "tasks", value)
        )
        guarded.transition_counter = self._property(
            "transition_counter",
            lambda _: live.core.transition_count(),
            lambda _, value: live.written(SchedulerState, "transition_counter", value),
        )
        guarded._no_workers_since = self._touch(self._scheduler_class, "_no_workers_since")
        # The core has it, too.
        guarded.no_workers_timeout = property(
            lambda one: vars(one)["no_workers_timeout"],
            lambda _, value: live.written(Scheduler, "no_workers_timeout", value),
        )
        guarded.is_idle = self._property("is_idle", lambda _: live.core.is_idle())
        upstream_who_has = self._scheduler_class.get_who_has

        def get_who_has(self: Any, keys: Any = None) -> Any:
            if not live.loop_thread.is_current():
                return live.loop_thread.run(lambda: self.get_who_has(keys))
            if keys is None:
                live.escape("who_has of all")
                return upstream_who_has(self)
            return live.who_has(keys)

        guarded.get_who_has = get_who_has
        guarded.task_metadata = self._metadata()
        guarded.replicated_tasks = self._replicated_tasks(guarded.replicated_tasks)
        guarded.request_remove_replicas = self._remove_replicas()
        guarded.add_plugin = self._add_plugin()
        guarded.remove_plugin = self._after_what_happened("remove_plugin", then=live.watch)
        for name in ("get_task_stream", "get_task_stream_index"):
            setattr(guarded, name, self._after_what_happened(name))
        guarded.transitions = self._transitions()
        guarded.__setattr__ = self._set_attribute()
        for part in (live.membership, live.interests, live.timeouts):
            for name, make in part.methods().items():
                upstream = getattr(self._scheduler_class, name)
                setattr(guarded, name, functools.wraps(upstream)(make(upstream)))
        for name in _CHANGES_MORE:
            setattr(guarded, name, self._escaping(getattr(self._scheduler_class, name), name))
        self._change(scheduler, guarded)

    def guard_worker(self, ws: WorkerState) -> None:
        """Change the class of a worker."""
        self._change(ws, self._worker)

    def release_one(self, gone: Any) -> None:
        """Restore the class of a worker or client that has left."""
        for place, (one, own) in enumerate(self._guarded):
            if one is gone:
                del self._guarded[place]
                gone.__class__ = own
                return

    def guard_client(self, cs: ClientState) -> None:
        """Change the class of a client that has connected since."""
        if type(cs) is ClientState:
            self._change(cs, self._client)

    def guard_extension(
        self, extension: Any, attributes: Iterable[str], methods: Mapping[str, Callable[..., Any]]
    ) -> None:
        """Change the class of an extension; the core replaces some attributes and methods."""
        own = type(extension)
        guarded = self._class(own, [])
        for name in attributes:
            setattr(guarded, name, self._touch(own, name))
        for name, method in methods.items():
            setattr(guarded, name, self._while_here(getattr(own, name), method))
        self._change(extension, guarded)

    def computations(self) -> Any:
        """Return the computations, which are not in the core."""
        return raw_reader(SchedulerState, "computations")(self._live.scheduler)

    def metadata(self) -> Any:
        """Return the metadata by keys of tasks, which is not in the core."""
        return raw_reader(SchedulerState, "task_metadata")(self._live.scheduler)

    def release(self) -> None:
        """Restore the classes of all objects."""
        for one, own in self._guarded:
            one.__class__ = own
        self._guarded.clear()
        self.views.release()
        self.task_views.release()

    def _change(self, one: Any, to: type) -> None:
        self._guarded.append((one, type(one)))
        one.__class__ = to

    def _worker_attributes(self) -> list[tuple[str, Any]]:
        attributes: list[tuple[str, Any]] = [(name, self._touch) for name in _OF_WORKERS]
        attributes += [(name, self._tasks_in) for name in (*_TASKS_OF_WORKERS, "has_what")]
        attributes += [("_network_occ", self._load), ("task_prefix_count", self._load)]
        return [*attributes, ("occupancy", self._load), ("nbytes", self._nbytes)]

    def _class(self, own: type, attributes: list[tuple[str, Any]]) -> Any:
        """Make a class of the same layout, with properties in the place of attributes."""
        members: dict[str, Any] = {"__slots__": (), "__doc__": own.__doc__}
        for name, make in attributes:
            if hasattr(own, name) or name == "generation":
                members[name] = make(own, name)
        made = type(own)(own.__name__, (own,), members)
        made.__module__ = own.__module__
        made.__qualname__ = own.__qualname__
        return made

    def _set_attribute(self) -> Any:
        """Make a `__setattr__` that escapes before a program replaces a method."""
        live = self._live

        def set_attribute(scheduler: Any, name: str, value: Any) -> None:
            if replaces_method(name, value):
                live.written(Scheduler, name, value)
            else:
                object.__setattr__(scheduler, name, value)

        return set_attribute

    def _replicated_tasks(self, touched: property) -> property:
        live = self._live

        def read(self: Any) -> Any:
            return touched.__get__(self) if live.replicas is None else live.replicas

        return property(read, touched.fset)

    def _metadata(self) -> property:
        live = self._live

        def read(_: Any) -> Any:
            # Removes the metadata of forgotten tasks first.
            live.forget_gone()
            return self.metadata()

        touched = self._touch(SchedulerState, "task_metadata")
        return self._property("task_metadata", read, touched.fset)

    def _remove_replicas(self) -> Any:
        live = self._live

        def request_remove_replicas(addr: str, keys: list[Any], *, stimulus_id: str) -> None:
            live.remove_replicas(addr, keys, stimulus_id)

        original = self._scheduler_class.request_remove_replicas
        return self._while_here(original, request_remove_replicas)

    def _escaping(self, original: Any, name: str) -> Any:
        live = self._live

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            live.escape(name)
            return original(self, *args, **kwargs)

        return method

    def _transitions(self) -> Any:
        live = self._live
        original = self._scheduler_class.transitions

        @functools.wraps(original)
        def transitions(self: Any, recommendations: Any, stimulus_id: str) -> None:
            # Empty when a worker joins or leaves, because the core has done the transitions.
            if recommendations:
                live.escape("transitions")
                original(self, recommendations, stimulus_id)

        return transitions

    def _touch(self, own: type, name: str) -> property:
        live = self._live

        def read(self: Any) -> Any:
            live.escape(f"{own.__name__}.{name}")
            return getattr(self, name)

        def write(self: Any, value: Any) -> None:
            live.escape(f"{own.__name__}.{name} = …")
            setattr(self, name, value)

        return self._property(name, read, write)

    def _touch_unless_empty(self, own: type, name: str) -> property:
        touched = self._touch(own, name)
        here = raw_reader(own, name)
        live = self._live

        def read(self: Any) -> Any:
            if live.core.has_any(name):
                return touched.__get__(self)
            return here(self)

        return self._property(name, read, touched.fset)

    def _tasks_in(self, own: type, name: str) -> property:
        live = self._live

        def read(one: Any) -> Any:
            of = {WorkerState: "address", ClientState: "client_key"}.get(own)
            whose = "" if of is None else getattr(one, of)
            return TasksIn(live, name, whose, lambda: getattr(one, name))

        # Nothing is looked at yet.
        return property(read, self._touch(own, name).fset)

    def _dependencies(self, own: type, name: str) -> property:
        touched = self._touch(own, name)
        live = self._live

        def read(group: Any) -> Any:
            live.look()
            found = self.views.dependencies(group)
            return touched.__get__(group) if found is None else found

        return self._property(name, read, touched.fset)

    def _counted(self, own: type, name: str) -> property:
        here = raw_reader(own, name)
        live = self._live

        def read(one: Any) -> Any:
            live.look()
            if own is TaskGroup:
                self.views.refresh_group(one)
            else:
                self.views.refresh_prefix(one)
            return here(one)

        return self._property(name, read, self._touch(own, name).fset)

    def _of_task(self, own: type, name: str) -> property:
        here = raw_reader(own, name)
        live = self._live

        def read(task: Any) -> Any:
            live.look()
            try:
                return self.task_views.read(task, name)
            except KeyError:
                return here(task)

        return self._property(name, read, self._touch(own, name).fset)

    def _load(self, own: type, name: str) -> property:
        live = self._live

        def read(ws: Any) -> Any:
            live.look()
            try:
                occupancy, network_occ, counts = live.core.worker_load(ws.address)
            except KeyError:
                occupancy, network_occ, counts = 0.0, 0, []
            if name == "task_prefix_count":
                return self.views.counts_of(own, ws, name, counts)
            return occupancy if name == "occupancy" else network_occ

        return self._property(name, read, self._touch(own, name).fset)

    def _watch(self, guarded: Any) -> None:
        """Answer from the core the attributes that monitoring reads of a scheduler."""
        live, views = self._live, self.views

        def answer(name: str, read: Callable[[], Any]) -> None:
            def looked(one: Any) -> Any:
                live.look()
                return read()

            touched = self._touch(self._scheduler_class, name)
            setattr(guarded, name, self._property(name, looked, touched.fset))

        def load(name: str) -> Callable[[], Any]:
            return lambda: live.core.cluster_load()[name]

        for name, said in _LOADS.items():
            answer(name, load(said))
        for name in ("idle", "idle_task_count", "saturated"):
            answer(name, functools.partial(views.workers_in, name))
        answer("total_occupancy", load("total_occupancy"))
        answer("task_groups", views.task_groups)
        answer("task_prefixes", views.task_prefixes)
        answer("computations", self.computations)
        answer(
            "_task_prefix_count_global",
            lambda: views.counts_of(
                SchedulerState,
                live.scheduler,
                "_task_prefix_count_global",
                live.core.cluster_load()["task_prefix_count"],
            ),
        )

    def _add_plugin(self) -> Any:
        live = self._live
        original = self._scheduler_class.add_plugin

        @functools.wraps(original)
        def add_plugin(self: Any, plugin: Any, **kwargs: Any) -> Any:
            if not may_stay(plugin):
                live.escape("add_plugin")
            original(self, plugin, **kwargs)
            live.watch()

        return add_plugin

    def _after_what_happened(self, name: str, then: Callable[[], None] | None = None) -> Any:
        """Make a method of a scheduler that first notifies the plugins of all transitions."""
        live = self._live
        original = getattr(self._scheduler_class, name)

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if live.is_active and live.loop_thread.is_current():
                live.forget_gone()
            found = original(self, *args, **kwargs)
            if then is not None:
                then()
            return found

        return method

    def _nbytes(self, own: type, name: str) -> property:
        touched = self._touch(own, name)
        live = self._live

        def read(self: Any) -> Any:
            try:
                return live.core.worker_bytes(self.address)
            except KeyError:
                return 0

        return self._property(name, read, touched.fset)

    def _while_here(self, original: Any, method: Callable[..., Any]) -> Any:
        """Make a method that calls another one, without `self`, while the core has the state.

        A reference to the method, such as a timer's, may outlive the core; then `original` runs.
        """
        live = self._live

        @functools.wraps(original)
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            if live.is_active:
                return method(*args, **kwargs)
            return original(self, *args, **kwargs)

        return called
