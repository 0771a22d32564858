"""What others look at while the core has the state: Dask's own objects, brought up to date as read.

A group or prefix is of its own class still (`guards`), and what is counted of it is fetched from
the core whenever somebody reads it; an escape goes on with the very same object. Collections of
tasks say how many and which from the core. Whoever keeps either has Dask's after an escape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from backhaul.dask.private import SchedulerState, TaskGroup, TaskPrefix
from backhaul.dask.scheduler_core.escape import fill_counts, fill_times, refill

if TYPE_CHECKING:
    from backhaul.dask.scheduler_core.live import LiveCore

__all__ = ["TasksIn", "Views", "raw_reader", "raw_writer"]

#: In the place of a prefix while a group is made, which would tell it so
_NOBODY: Any = SimpleNamespace(add_group=lambda group: None)


class Views:
    """The groups and prefixes that the core has, and what is counted of all, as Dask's objects.

    Parameters
    ----------
    live : LiveCore
        Whose.
    group_class, prefix_class : type
        What such objects are meanwhile.

    Attributes
    ----------
    groups, prefixes : dict of str to object
        Those that there are, by name.
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

    def release_group(self, name: str) -> Any | None:
        """Give the object of a group that is gone the class of one; None if there is none."""
        group = self.groups.pop(name, None)
        if group is not None:
            group.__class__ = TaskGroup
        return group

    def release(self) -> None:
        """Give all of them their own classes back."""
        for group in self.groups.values():
            group.__class__ = TaskGroup
        for prefix in self.prefixes.values():
            prefix.__class__ = TaskPrefix

    # What is read

    def refresh_group(self, group: Any) -> None:
        """Bring up to date what is counted of a group."""
        said = self._live.core.group(group.name)
        if said is not None and self.groups.get(group.name) is group:
            fill_counts(group, said, read=_read_raw, write=_write_raw)
            fill_times(group, said, write=_write_raw)

    def refresh_prefix(self, prefix: Any) -> None:
        """Bring up to date what is counted of a prefix."""
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
        """Bring ``Scheduler.task_groups`` up to date, and give it."""
        return self._up_to_date("task_groups", self._live.core.group_names(), self.group)

    def task_prefixes(self) -> Any:
        """Bring ``Scheduler.task_prefixes`` up to date, and give it."""
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
        """Bring ``idle``, ``idle_task_count`` or ``saturated`` up to date, and give it."""
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
        """Bring a dict of counts up to date, and give it."""
        found = raw_reader(own, name)(one)
        refill(found, dict(counts))
        return found


class TasksIn(Set[Any]):
    """Tasks of a worker, a client or the scheduler: how many, from the core; a look at one escapes.

    Parameters
    ----------
    live : LiveCore
        Who has them.
    name, of : str
        As for ``SchedulerCore.keys_in``.
    own : callable
        Gives Dask's own collection after an escape.
    """

    def __init__(self, live: LiveCore, name: str, of: str, own: Callable[[], Any]) -> None:
        self._live = live
        self._name = name
        self._of = of
        self._own = own

    def __len__(self) -> int:
        return int(self._look(lambda core: core.count_in(self._name, self._of), len))

    def __contains__(self, task: object) -> bool:
        def ask(core: Any) -> bool:
            text = self._live.texts.known(getattr(task, "key", None))
            return text is not None and core.is_in(self._name, self._of, text)

        return bool(self._look(ask, lambda own: task in own))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._escaped("iter") if len(self) else ())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._escaped(name), name)

    def __repr__(self) -> str:
        return f"<{len(self)} tasks {self._name} of {self._of!r}>"

    @classmethod
    def _from_iterable(cls, tasks: Iterable[Any]) -> Any:
        return set(tasks)

    def _look(self, ask: Callable[[Any], Any], ask_own: Callable[[Any], Any]) -> Any:
        live = self._live
        if not live.is_active:
            return ask_own(self._own())
        if not live.home.is_here():
            return live.home.do(lambda: self._look(ask, ask_own))
        live.look()
        try:
            return ask(live.core)
        except KeyError:
            # Its worker or client has gone, and a later core has never heard of it.
            return ask_own(self._own())

    def _escaped(self, what: str) -> Any:
        self._live.escape(f"{self._name}: {what}")
        return self._own()


def raw_reader(own: type, name: str) -> Callable[[Any], Any]:
    """Give what reads an attribute past a guard."""
    for base in own.__mro__:
        if name in vars(base):
            descriptor = vars(base)[name]
            return lambda one: descriptor.__get__(one)
    return lambda one: vars(one)[name]


def raw_writer(own: type, name: str) -> Callable[[Any, Any], None]:
    """Give what writes an attribute past a guard."""
    for base in own.__mro__:
        if name in vars(base):
            descriptor = vars(base)[name]
            return lambda one, value: descriptor.__set__(one, value)
    return lambda one, value: vars(one).__setitem__(name, value)


def _read_raw(one: Any, name: str) -> Any:
    return _descriptor(one, name).__get__(one)


def _write_raw(one: Any, name: str, value: Any) -> None:
    _descriptor(one, name).__set__(one, value)


def _descriptor(one: Any, name: str) -> Any:
    for base in type(one).__mro__[1:]:
        if name in vars(base):
            return vars(base)[name]
    raise AttributeError(name)
