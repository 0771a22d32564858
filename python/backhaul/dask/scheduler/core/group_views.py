"""Views of groups and prefixes while the core has the state: Dask's own objects, updated on read.

A group or prefix has a guarded subclass of its class (`guarded_classes`), and a read of a count
gets the value from the core. An escape keeps the same object, and the same dicts and sets of the
scheduler. `task_views` has the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from backhaul.dask.compat.names import SchedulerState, TaskGroup, TaskPrefix, key_split
from backhaul.dask.scheduler.core.export_state import fill_counts, fill_times, refill

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["Views", "raw_reader"]

#: Replaces the prefix while a group is made, so that the group does not register itself
_NOBODY: Any = SimpleNamespace(add_group=lambda group: None)


class Views:
    """Groups, prefixes and counts of the core, as Dask's objects of guarded classes.

    Attributes
    ----------
    groups, prefixes : dict of str to object
        Existing objects, by name.
    """

    def __init__(self, live: LiveCore, *, group_class: Any, prefix_class: Any) -> None:
        self._live = live
        self._group_class = group_class
        self._prefix_class = prefix_class
        self.groups: dict[str, Any] = {}
        self.prefixes: dict[str, Any] = {}
        for name, prefix in raw_reader(SchedulerState, "task_prefixes")(live.scheduler).items():
            if type(prefix) is TaskPrefix:
                prefix.__class__ = prefix_class
                self.prefixes[name] = prefix
        for name, group in raw_reader(SchedulerState, "task_groups")(live.scheduler).items():
            group.__class__ = group_class
            self.groups[name] = group

    def prefix(self, name: str) -> Any:
        """Find or make a prefix."""
        prefix: Any = self.prefixes.get(name)
        if prefix is None:
            prefix = TaskPrefix(name)
            prefix.__class__ = self._prefix_class
            self.prefixes[name] = prefix
        return prefix

    def group(self, name: str, prefix: str) -> Any:
        """Find or make a group, of a prefix by name."""
        group: Any = self.groups.get(name)
        if group is None:
            group = TaskGroup(name, _NOBODY)
            group.prefix = self.prefix(prefix)
            group.__class__ = self._group_class
            self.groups[name] = group
        return group

    def group_named(self, name: str) -> Any:
        """Find a group that the core has."""
        if name not in self.groups:
            self.task_groups()
        return self.groups[name]

    def group_that_was(self, name: str, key: Any) -> Any:
        """Find the group of a forgotten task, or make an empty one."""
        group = self.groups.get(name)
        return TaskGroup(name, TaskPrefix(key_split(key))) if group is None else group

    def release_group(self, name: str) -> Any | None:
        """Restore the class of a forgotten group's object, and return it; None if there is none."""
        group = self.groups.pop(name, None)
        if group is not None:
            group.__class__ = TaskGroup
        return group

    def release(self) -> None:
        """Restore the classes of all groups and prefixes."""
        for group in self.groups.values():
            group.__class__ = TaskGroup
        for prefix in self.prefixes.values():
            prefix.__class__ = TaskPrefix

    # Reads

    def refresh_group(self, group: Any) -> None:
        """Update the counts of a group."""
        said = self._live.core.group(group.name)
        if said is not None and self.groups.get(group.name) is group:
            fill_counts(group, said, read=_read_raw, write=_write_raw)
            fill_times(group, said, write=_write_raw)

    def dependencies(self, group: Any) -> Any | None:
        """Update and return the dependencies of a group; None if one of these is forgotten."""
        core = self._live.core
        said = core.group(group.name)
        if said is None or self.groups.get(group.name) is not group:
            return _read_raw(group, "dependencies")
        found = set()
        for (name, _), serial in zip(said["dependencies"], said["dependency_serials"], strict=True):
            other = core.group(name)
            if other is None or other["serial"] != serial:
                return None
            found.add(self.group_named(name))
        own = _read_raw(group, "dependencies")
        refill(own, found)
        return own

    def refresh_prefix(self, prefix: Any) -> None:
        """Update the counts of a prefix."""
        said = self._live.core.prefix(prefix.name)
        if said is None:
            return
        fill_counts(prefix, said, read=_read_raw, write=_write_raw)
        counts = {state: count for state, count in said["state_counts"].items() if count}
        refill(_read_raw(prefix, "state_counts"), counts)
        for name in ("duration_average", "max_exec_time", "suspicious"):
            _write_raw(prefix, name, said[name])
        groups = _read_raw(prefix, "_groups")
        if [group.name for group in groups] != said["groups"]:
            refill(groups, dict.fromkeys(self.group(name, prefix.name) for name in said["groups"]))

    def task_groups(self) -> Any:
        """Update and return ``Scheduler.task_groups``."""
        return self._up_to_date("task_groups", self._live.core.group_names(), self.group)

    def task_prefixes(self) -> Any:
        """Update and return ``Scheduler.task_prefixes``."""
        names = [(name,) for name in self._live.core.prefix_names()]
        return self._up_to_date("task_prefixes", names, self.prefix)

    def _up_to_date(
        self, name: str, said: Sequence[tuple[str, ...]], find: Callable[..., Any]
    ) -> dict[str, Any]:
        own: dict[str, Any] = raw_reader(SchedulerState, name)(self._live.scheduler)
        if [one[0] for one in said] != list(own):
            refill(own, {one[0]: find(*one) for one in said})
        return own

    def workers_in(self, name: str) -> Any:
        """Update and return ``idle``, ``idle_task_count`` or ``saturated``."""
        scheduler = self._live.scheduler
        said = self._live.core.cluster_load()[name]
        own = raw_reader(SchedulerState, name)(scheduler)
        workers = [scheduler.workers[address] for address in said]
        if name == "idle":
            if list(own) != sorted(said):
                refill(own, zip(said, workers, strict=True))
        elif own != set(workers):
            refill(own, workers)
        return own

    def counts_of(self, own: type, one: Any, name: str, counts: Iterable[tuple[str, int]]) -> Any:
        """Update and return a dict of counts."""
        found = raw_reader(own, name)(one)
        refill(found, dict(counts))
        return found


def raw_reader(own: type, name: str) -> Callable[[Any], Any]:
    """Return a function that reads an attribute without its guard."""
    for base in own.__mro__:
        if name in vars(base):
            descriptor = vars(base)[name]
            return lambda one: descriptor.__get__(one)
    return lambda one: vars(one)[name]


def _read_raw(one: Any, name: str) -> Any:
    return _descriptor(one, name).__get__(one)


def _write_raw(one: Any, name: str, value: Any) -> None:
    _descriptor(one, name).__set__(one, value)


def _descriptor(one: Any, name: str) -> Any:
    for base in type(one).__mro__[1:]:
        if name in vars(base):
            return vars(base)[name]
    raise AttributeError(name)
