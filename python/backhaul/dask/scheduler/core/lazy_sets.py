"""Sets that the core answers for while it has the state, and that are Dask's own afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Set
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["LISTED_MAX", "MembersOf", "TasksIn"]

#: An iteration over more tasks than this causes an escape
LISTED_MAX: Final = 1000

#: Methods of a set that do not change it
_READING = (
    "copy",
    "difference",
    "intersection",
    "issubset",
    "issuperset",
    "symmetric_difference",
    "union",
)


class _Lazy(Set[Any]):
    """A set that the core answers for, and Dask's own after an escape; to write is to escape."""

    _live: LiveCore

    def __contains__(self, member: object) -> bool:
        return bool(self._look(lambda: self._has(member), lambda own: member in own))

    def __len__(self) -> int:
        return int(self._look(self._count, len))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._look(self._members, iter))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _READING:
            return getattr(set(self), name)
        self._live.escape(f"{self._what()}.{name}")
        return getattr(self._own(), name)

    def __repr__(self) -> str:
        return f"<{self._what()}: {len(self)}>"

    @classmethod
    def _from_iterable(cls, members: Iterable[Any]) -> Any:
        return set(members)

    def _look(self, ask: Callable[[], Any], ask_own: Callable[[Any], Any]) -> Any:
        live = self._live
        if not live.is_active:
            return ask_own(self._own())
        if not live.loop_thread.is_current():
            return live.loop_thread.run(lambda: self._look(ask, ask_own))
        live.look()
        try:
            return ask()
        except KeyError:
            # The owner of the collection is gone, and a later core does not have it.
            return ask_own(self._own())

    def _what(self) -> str:
        raise NotImplementedError

    def _own(self) -> Any:
        raise NotImplementedError

    def _count(self) -> int:
        raise NotImplementedError

    def _has(self, member: Any) -> bool:
        raise NotImplementedError

    def _members(self) -> Iterable[Any]:
        raise NotImplementedError


class TasksIn(_Lazy):
    """Tasks of a worker, a client or the scheduler; `own` gives Dask's collection after an escape.

    `name` and `of` are those of ``SchedulerCore.keys_in``.
    """

    def __init__(self, live: LiveCore, name: str, of: str, own: Callable[[], Any]) -> None:
        self._live = live
        self._name = name
        self._of = of
        self._read_own = own

    def _what(self) -> str:
        return self._name

    def _own(self) -> Any:
        return self._read_own()

    def _count(self) -> int:
        return self._live.core.count_in(self._name, self._of)

    def _has(self, member: Any) -> bool:
        text = self._live.texts.known(getattr(member, "key", None))
        return text is not None and self._live.core.is_in(self._name, self._of, text)

    def _members(self) -> Iterator[Any]:
        texts = self._live.core.keys_in(self._name, self._of, LISTED_MAX)
        listed = self._live.tasks.listed(texts)
        if len(listed) < LISTED_MAX:
            return iter(listed)
        return itertools.chain(listed, self._rest(listed))

    def _rest(self, listed: list[Any]) -> Iterator[Any]:
        """Escape, then yield those of Dask's tasks that are not in a list."""
        self._live.escape(f"{self._name} of {LISTED_MAX} tasks")
        before = set(listed)
        yield from (task for task in self._own() if task not in before)


class MembersOf(_Lazy):
    """A collection of one task, by name of the attribute: tasks, workers or clients."""

    def __init__(self, live: LiveCore, task: Any, name: str) -> None:
        self._live = live
        self._task = task
        self._name = name

    def _what(self) -> str:
        return f"TaskState.{self._name}"

    def _own(self) -> Any:
        # That of a forgotten task, or one that was emptied
        own = getattr(self._task, self._name)
        return set() if own is None or own is self or isinstance(own, MembersOf) else own

    def _count(self) -> int:
        return len(self._members())

    def _has(self, member: Any) -> bool:
        return member in self._members()

    def _members(self) -> list[Any]:
        return self._live.tasks.members(self._task, self._name)
