"""Views of tasks while the core has the state: Dask's own objects, read from the core.

A lookup of a task makes its object, an instance of a guarded subclass of `TaskState`
(`guarded_classes`), which reads each attribute from the core. An escape fills the same object. An
iteration over many tasks causes an escape, because that makes all objects sooner, in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from backhaul.dask.compat.names import TaskState, key_split_group
from backhaul.dask.scheduler.core.export_state import whole
from backhaul.dask.scheduler.core.failures import found_failure
from backhaul.dask.scheduler.core.lazy_sets import LISTED_MAX, MembersOf
from backhaul.dask.scheduler.core.payloads import LivePayloads

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.group_views import Views
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["ATTRIBUTES", "TaskViews", "Tasks", "TasksOfCore", "tasks_of"]

#: Attributes of a task that are in the core, and their names there
ATTRIBUTES: Final = {
    "_queueable": "queueable",
    "_state": "state",
    # An assignment to `state` also changes counts, so it is guarded, too.
    "state": "state",
    **{
        name: name
        for name in (
            "actor",
            "annotations",
            "dependencies",
            "dependents",
            "erred_on",
            "exception",
            "exception_blame",
            "exception_text",
            "group",
            "has_lost_dependencies",
            "host_restrictions",
            "loose_restrictions",
            "nbytes",
            "priority",
            "processing_on",
            "resource_restrictions",
            "retries",
            "run_id",
            "run_spec",
            "suspicious",
            "traceback",
            "traceback_text",
            "type",
            "waiters",
            "waiting_on",
            "who_has",
            "who_wants",
            "worker_restrictions",
        )
    },
}

_TASKS = ("dependencies", "dependents", "waiters", "waiting_on")

#: Attributes that no task in the core of a running scheduler has; the read of a value escapes
_NEVER = ("annotations", "host_restrictions", "resource_restrictions", "worker_restrictions")

#: Replaces the group while a task is made, so that the group does not count the task
_NO_GROUP: Any = SimpleNamespace(add=lambda task: None)


class TaskViews:
    """The task objects that a program has while the core has the state, of a guarded class."""

    def __init__(self, live: LiveCore, views: Views, task_class: Any) -> None:
        self._live = live
        self._views = views
        self._class = task_class
        self._payloads = LivePayloads(live)
        #: Metadata of tasks, which the core does not have, by text of their keys
        self.metadata: dict[str, Any] = {}
        #: Objects that a program still refers to, by text of their keys
        self.known: WeakValueDictionary[str, Any] = WeakValueDictionary()

    def task(self, text: str) -> Any:
        """Find or make the object of an existing task."""
        task: Any = self.known.get(text)
        if task is None:
            task = _made(self._live.texts.key(text), "released")
            task.metadata = self.metadata.get(text)
            task.__class__ = self._class
            self.known[text] = task
        return task

    def take(self, text: str, task: Any) -> None:
        """Turn one of Dask's tasks, which the core has imported, into a view."""
        # Its collections are replaced, too: reference cycles of tasks would need the cyclic GC.
        metadata = task.metadata
        _make(task, task.key, "released")
        if metadata is not None:
            self.metadata[text] = task.metadata = metadata
        task.__class__ = self._class
        self.known[text] = task

    def collect_metadata(self) -> None:
        """Keep the metadata that programs have set on tasks meanwhile."""
        for text, task in self.known.items():
            if task.metadata is not None:
                self.metadata[text] = task.metadata

    def write_metadata(self, tasks: Mapping[Any, Any]) -> None:
        """Restore the metadata of Dask's tasks, which are given by their keys."""
        for text, metadata in self.metadata.items():
            task = tasks.get(self._live.texts.key(text))
            if task is not None:
                task.metadata = metadata

    def listed(self, texts: Iterable[str]) -> list[Any]:
        """Find or make the objects of existing tasks."""
        return [self.task(text) for text in texts]

    def forget(self, text: str) -> None:
        """Turn the view of a forgotten task into a plain object in state ``forgotten``."""
        task = self.known.pop(text, None)
        if task is not None:
            task.__class__ = TaskState
            _make(task, task.key, "forgotten")
            task.group = self._views.group_that_was(key_split_group(task.key), task.key)

    def release(self) -> None:
        """Restore the class of all objects."""
        for task in list(self.known.values()):
            task.__class__ = TaskState

    def read(self, task: Any, name: str) -> Any:
        """Read an attribute of a task; `KeyError` if the task is forgotten."""
        text = self._live.texts.text(task.key)
        said = self._live.core.task_value(text, ATTRIBUTES[name])
        if said is None and name == "annotations":
            return self._no_annotations(text)
        return None if said is None else self._meant(task, text, name, said)

    def _no_annotations(self, text: str) -> dict[str, Any] | None:
        """Return the empty annotations of a task, as Dask's extension for spans leaves them."""
        live = self._live
        is_spanned = "spans" in live.scheduler.extensions
        has_spec = live.core.task_value(text, "run_spec") is not None
        return {} if is_spanned and has_spec else None

    def _meant(self, task: Any, text: str, name: str, said: Any) -> Any:
        live = self._live
        scheduler = live.scheduler
        match name:
            case "group":
                return self._views.group_named(said)
            case "processing_on":
                return scheduler.workers[said]
            case "priority":
                return tuple(map(whole, said))
            case "run_spec":
                return self._payloads.run_spec(text, said)
            case "exception" if isinstance(said, bytes):
                return self._payloads.exception(text, said)
            case "exception":
                kind, of = said
                departed = live.membership.departed
                return found_failure(kind, of, key=task.key, scheduler=scheduler, departed=departed)
            case "traceback":
                return self._payloads.traceback(text, said)
            case "erred_on":
                return set(said)
            case "who_has" | "who_wants" | "dependencies" | "dependents":
                return MembersOf(live, task, name)
            case "waiters" | "waiting_on":
                return MembersOf(live, task, name)
            case "exception_blame" if live.core.has_task(said):
                return self.task(said)
            case _ if name in _NEVER or name == "exception_blame":
                live.escape(f"TaskState.{name}")
                return getattr(task, name)
        return said

    def members(self, task: Any, name: str) -> list[Any]:
        """List the members of a collection of a task."""
        text = self._live.texts.text(task.key)
        said = self._live.core.task_value(text, name) or ()
        if name in _TASKS:
            return self.listed(said)
        scheduler = self._live.scheduler
        place = scheduler.workers if name == "who_has" else scheduler.clients
        return [place[one] for one in said]


class Tasks(dict[Any, Any]):
    """``Scheduler.tasks`` of a scheduler that may give its state to a core.

    The class of the dictionary becomes `TasksOfCore` while a core has the tasks, so that a program
    which keeps a reference to it sees all tasks.
    """

    __slots__ = ("live",)

    def __init__(self, live: LiveCore, own: Mapping[Any, Any]) -> None:
        super().__init__(own)
        self.live = live

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


def tasks_of(live: LiveCore) -> Tasks:
    """Return the tasks of a scheduler as `Tasks`, which replaces its dictionary if necessary."""
    scheduler = live.scheduler
    if type(scheduler.tasks) is not Tasks:
        scheduler.tasks = Tasks(live, scheduler.tasks)
    tasks: Tasks = scheduler.tasks
    return tasks


def _escaping(name: str) -> Any:
    """Make a method that escapes, then does as `dict`."""
    own = getattr(dict, name)

    def method(self: TasksOfCore, *args: Any, **kwargs: Any) -> Any:
        self.live.escape(f"tasks.{name}")
        return own(self, *args, **kwargs)

    return method


class TasksOfCore(Tasks):
    """`Tasks` while a core has them: keys are read from the core, objects are made on lookup."""

    __slots__ = ()

    def __contains__(self, key: object) -> bool:
        return bool(self._look(self.live.has_task, key, lambda own: key in own))

    def __len__(self) -> int:
        def count(_: object) -> int:
            self.live.forget_gone()
            return self.live.core.task_count()

        return int(self._look(count, None, len))

    def get(self, key: Any, default: Any = None) -> Any:
        def find(key: Any) -> Any:
            live = self.live
            live.look()
            text = live.texts.known(key)
            if text is None or not live.core.has_task(text):
                return default
            return live.tasks.task(text)

        return self._look(find, key, lambda own: own.get(key, default))

    def __getitem__(self, key: Any) -> Any:
        task = self.get(key)
        if task is None:
            raise KeyError(key)
        return task

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    # Views of a new dictionary, because another thread may copy them while tasks change.

    def keys(self) -> Any:
        def keys(_: object) -> Any:
            live = self.live
            live.look()
            return dict.fromkeys(map(live.texts.key, live.core.keys())).keys()

        return self._look(keys, None, lambda own: own.keys())

    def values(self) -> Any:
        return self._all("tasks.values()").values()

    def items(self) -> Any:
        return self._all("tasks.items()").items()

    def __eq__(self, other: object) -> bool:
        return bool(dict(self.items()) == other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def _look(self, ask: Callable[[Any], Any], key: Any, ask_own: Callable[[Any], Any]) -> Any:
        live = self.live
        if not live.is_active:
            return ask_own(live.scheduler.tasks)
        if not live.loop_thread.is_current():
            return live.loop_thread.run(lambda: self._look(ask, key, ask_own))
        return ask(key)

    def _all(self, what: str) -> Any:
        def listed(_: object) -> Any:
            live = self.live
            if len(self) > LISTED_MAX:
                live.escape(what)
                return live.scheduler.tasks
            live.look()
            texts = live.core.keys()
            return {live.texts.key(text): live.tasks.task(text) for text in texts}

        return self._look(listed, None, lambda own: own)


for _name in (
    *("__delitem__", "__ior__", "__or__", "__repr__", "__reversed__", "__ror__", "__setitem__"),
    *("clear", "copy", "pop", "popitem", "setdefault", "update"),
):
    setattr(TasksOfCore, _name, _escaping(_name))


def _made(key: Any, state: Any) -> Any:
    task = TaskState.__new__(TaskState)
    _make(task, key, state)
    return task


def _make(task: Any, key: Any, state: Any) -> None:
    TaskState.__init__(task, key, None, state, _NO_GROUP, False)
