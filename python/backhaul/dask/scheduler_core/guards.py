"""Whoever touches the state of a scheduler while the core has it gets upstream's.

While the core runs, the scheduler, its workers, clients and groups are of classes made here. What
they have is where it was, but for what is in the core: to read or write that is to escape, which
writes the core's state into Dask's objects and gives them their own classes back. A few attributes
are answered by the core instead, as something reads them all the time; a collection that is empty
there is the empty one that is here.

All of this is for the thread of the event loop. Another thread has that one look (`home`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from backhaul.dask.private import ClientState, SchedulerState, TaskGroup, WorkerState

if TYPE_CHECKING:
    from backhaul.dask.scheduler_core.live import LiveCore

__all__ = ["Guards", "TasksOfCore"]

#: Attributes of the state that are in the core, whatever they hold
_STATE = (
    "_network_occ_global",
    "_task_prefix_count_global",
    "computations",
    "generation",
    "idle",
    "idle_task_count",
    "n_tasks",
    "saturated",
    "task_groups",
    "task_prefixes",
    "transition_log",
)

#: Methods of a scheduler that change something before they come to what is in the core
_CHANGES_MORE = (
    "add_plugin",
    "add_resources",
    "close",
    "remove_plugin",
    "remove_worker",
    "restart_workers",
    "transitions",
)

#: Those that are what they are here while the core has none
_OFTEN_EMPTY = ("erred_tasks", "queued", "replicated_tasks", "unrunnable")

_OF_WORKERS = (
    "_has_what",
    "_network_occ",
    "actors",
    "executing",
    "long_running",
    "needs_what",
    "task_prefix_count",
    "used_resources",
)

_OF_GROUPS = (
    "_all_durations_us",
    "_duration_us",
    "_types",
    "dependencies",
    "last_worker",
    "last_worker_tasks_left",
    "nbytes_total",
    "start",
    "states",
    "stop",
)


class TasksOfCore(Mapping[Any, Any]):
    """In the place of ``Scheduler.tasks``: which tasks there are; a look at one is an escape.

    Parameters
    ----------
    live : LiveCore
        Whose tasks. Once it has escaped, they are the scheduler's.
    """

    def __init__(self, live: LiveCore) -> None:
        self._live = live

    def __contains__(self, key: object) -> bool:
        live = self._live
        if not live.is_active:
            return key in live.scheduler.tasks
        if not live.home.is_here():
            return live.home.do(lambda: key in self)
        return live.has_task(key)

    def __len__(self) -> int:
        live = self._live
        if not live.is_active:
            return len(live.scheduler.tasks)
        if not live.home.is_here():
            return live.home.do(lambda: len(self))
        return live.core.task_count()

    def get(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            return default
        return self[key]

    def __getitem__(self, key: Any) -> Any:
        if key not in self:
            raise KeyError(key)
        return self._escaped("tasks[…]")[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all("iter(tasks)"))

    # Those of a dict, which another thread can copy at once while it changes.

    def keys(self) -> Any:
        return self._all("tasks.keys()").keys()

    def values(self) -> Any:
        return self._all("tasks.values()").values()

    def items(self) -> Any:
        return self._all("tasks.items()").items()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._escaped(f"tasks.{name}"), name)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._escaped("tasks[…] = …")[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._escaped("del tasks[…]")[key]

    def _all(self, what: str) -> Any:
        return self._escaped(what) if len(self) else {}

    def _escaped(self, what: str) -> Any:
        self._live.escape(what)
        return self._live.scheduler.tasks


class Guards:
    """The classes that objects of one scheduler have while the core runs.

    Parameters
    ----------
    live : LiveCore
        What is escaped from.
    """

    def __init__(self, live: LiveCore) -> None:
        self._live = live
        self._scheduler_class = type(live.scheduler)
        self._guarded: list[tuple[Any, type]] = []
        self._groups: set[Any] = set()
        self.tasks = TasksOfCore(live)
        self._worker = self._class(WorkerState, self._worker_attributes())
        self._client = self._class(ClientState, [("wants_what", self._touch)])
        self._group = self._class(TaskGroup, [(name, self._touch) for name in _OF_GROUPS])
        self._group.done = self._property("done", lambda group: live.core.is_group_done(group.name))

    def guard(self) -> None:
        """Change the classes of the scheduler, its workers and its clients."""
        scheduler = self._live.scheduler
        for ws in scheduler.workers.values():
            self._change(ws, self._worker)
        for cs in scheduler.clients.values():
            self.guard_client(cs)
        attributes: list[tuple[str, Any]] = [(name, self._touch) for name in _STATE]
        attributes += [(name, self._touch_unless_empty) for name in _OFTEN_EMPTY]
        guarded = self._class(self._scheduler_class, attributes)
        live, tasks = self._live, self.tasks
        guarded.tasks = property(
            lambda _: tasks, lambda _, value: live.written(SchedulerState, "tasks", value)
        )
        guarded.transition_counter = self._property(
            "transition_counter",
            lambda _: live.core.transition_count(),
            lambda _, value: live.written(SchedulerState, "transition_counter", value),
        )
        guarded.is_idle = self._property("is_idle", lambda _: live.core.is_idle())
        upstream_who_has = self._scheduler_class.get_who_has

        def get_who_has(self: Any, keys: Any = None) -> Any:
            if not live.home.is_here():
                return live.home.do(lambda: self.get_who_has(keys))
            if keys is None:
                live.escape("who_has of all")
                return upstream_who_has(self)
            return live.who_has(keys)

        guarded.get_who_has = get_who_has
        guarded.replicated_tasks = self._replicated_tasks(guarded.replicated_tasks)
        guarded.request_remove_replicas = self._remove_replicas()
        for name in _CHANGES_MORE:
            setattr(guarded, name, self._escaping(getattr(self._scheduler_class, name), name))
        self._change(scheduler, guarded)

    def guard_client(self, cs: ClientState) -> None:
        """Change the class of a client that has come since."""
        if type(cs) is ClientState:
            self._change(cs, self._client)

    def group(self, name: str, prefix: Any) -> Any:
        """Make what stands for a group meanwhile."""
        group: Any = TaskGroup(name, prefix)
        group.__class__ = self._group
        self._groups.add(group)
        return group

    def release_group(self, group: Any) -> Any:
        """Give what stood for a group the class of one."""
        group.__class__ = TaskGroup
        self._groups.discard(group)
        return group

    def computations(self) -> Any:
        """Give the computations, which are not in the core."""
        return raw_reader(SchedulerState, "computations")(self._live.scheduler)

    def release(self) -> None:
        """Give all of them their own classes back."""
        for one, own in self._guarded:
            one.__class__ = own
        self._guarded.clear()
        for group in self._groups:
            group.__class__ = TaskGroup
        self._groups.clear()

    def _change(self, one: Any, to: type) -> None:
        self._guarded.append((one, type(one)))
        one.__class__ = to

    def _worker_attributes(self) -> list[tuple[str, Any]]:
        attributes: list[tuple[str, Any]] = [(name, self._touch) for name in _OF_WORKERS]
        return [*attributes, ("processing", self._processing), ("nbytes", self._nbytes)]

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

    def _property(
        self,
        name: str,
        read: Callable[[Any], Any],
        write: Callable[[Any, Any], None] | None = None,
    ) -> property:
        """Make a property that is read and written in the thread of the event loop."""
        home = self._live.home

        # By name: there may be no guard any more when the event loop comes to it.
        def read_at_home(one: Any) -> Any:
            return read(one) if home.is_here() else home.do(lambda: getattr(one, name))

        if write is None:
            return property(read_at_home)

        def write_at_home(one: Any, value: Any) -> None:
            if home.is_here():
                write(one, value)
            else:
                home.do(lambda: setattr(one, name, value))

        return property(read_at_home, write_at_home)

    def _replicated_tasks(self, touched: property) -> property:
        live = self._live

        def read(self: Any) -> Any:
            return touched.__get__(self) if live.replicas is None else live.replicas

        return self._property("replicated_tasks", read, touched.fset)

    def _remove_replicas(self) -> Any:
        live = self._live

        @functools.wraps(self._scheduler_class.request_remove_replicas)
        def request_remove_replicas(
            self: Any, addr: str, keys: list[Any], *, stimulus_id: str
        ) -> None:
            live.remove_replicas(addr, keys, stimulus_id)

        return request_remove_replicas

    def _escaping(self, original: Any, name: str) -> Any:
        live = self._live

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            live.escape(name)
            return original(self, *args, **kwargs)

        return method

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

    def _processing(self, own: type, name: str) -> property:
        touched = self._touch(own, name)
        here = raw_reader(own, name)
        live = self._live

        def read(self: Any) -> Any:
            # The one that is here is empty, as is the core's while nothing runs.
            return here(self) if live.core.is_idle() else touched.__get__(self)

        return self._property(name, read, touched.fset)

    def _nbytes(self, own: type, name: str) -> property:
        touched = self._touch(own, name)
        live = self._live

        def read(self: Any) -> Any:
            try:
                return live.core.worker_bytes(self.address)
            except KeyError:
                return 0

        return self._property(name, read, touched.fset)


def raw_reader(own: type, name: str) -> Callable[[Any], Any]:
    """Give what reads an attribute past a guard."""
    for base in own.__mro__:
        if name in vars(base):
            descriptor = vars(base)[name]
            return lambda one: descriptor.__get__(one)
    return lambda one: vars(one)[name]
