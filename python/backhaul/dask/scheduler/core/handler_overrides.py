"""Detects handlers and methods of a scheduler that a program has replaced, so that they are called.

While the core has the state, its handlers are in the place of Dask's, the engine takes hot
messages before any handler, and no transition calls a method of the scheduler. So a scheduler keeps
its state if a handler or a method of it, of its class or of a subclass is a program's. To replace a
handler of streams, or a method of the scheduler object, while the core has the state is an escape.
A method that is replaced in the class meanwhile is called after the next escape.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, Protocol

from distributed import Scheduler

from backhaul.dask.compat.function_origin import is_dasks
from backhaul.dask.compat.instance_patches import WATCHED_HANDLERS
from backhaul.dask.compat.names import SchedulerState

__all__ = [
    "REQUESTS_TAKEN",
    "STREAMS_TAKEN",
    "StreamHandlers",
    "program_handler",
    "program_method",
    "replaces_method",
    "watch",
]

#: Operations of streams whose handlers the core takes the place of
STREAMS_TAKEN: Final = frozenset(
    {
        "add-keys",
        "cancel-keys",
        "client-desires-keys",
        "client-releases-keys",
        "close-client",
        "long-running",
        "release-worker-data",
        "request-refresh-who-has",
        "reschedule",
        "steal-response",
        "task-erred",
        "task-finished",
        "worker-status-change",
    }
)

#: Requests likewise
REQUESTS_TAKEN: Final = frozenset(
    {
        "add_keys",
        "check_idle",
        "get_task_stream",
        "get_task_stream_index",
        "has_what",
        "heartbeat_worker",
        "nbytes",
        "processing",
        "register-worker",
        "retry",
        "unregister",
        "who_has",
    }
)


#: Methods of a scheduler, by class and name, as they are before a program can have replaced one
_METHODS: Final = {
    kind: {
        name: value
        for name, value in vars(kind).items()
        if isinstance(value, FunctionType) and not name.startswith("__")
    }
    for kind in (Scheduler, SchedulerState)
}
_NAMES: Final = frozenset(name for methods in _METHODS.values() for name in methods)


def program_method(scheduler: Any) -> str | None:
    """Name a method of a scheduler that a program has replaced; None if there is none."""
    own: dict[str, Any] = vars(scheduler)
    for name, value in own.items():
        if replaces_method(name, value):
            return name
    for kind in type(scheduler).__mro__:
        if not issubclass(kind, SchedulerState):
            continue
        methods = _METHODS.get(kind, {})
        for name, value in vars(kind).items():
            if value is not methods.get(name) and replaces_method(name, value):
                return name
    return None


def replaces_method(name: str, value: object) -> bool:
    """Tell whether a value under this name replaces a method of Dask's scheduler."""
    return name in _NAMES and not is_dasks(value)


def program_handler(scheduler: Any) -> str | None:
    """Name an operation of a scheduler with a program's own handler; None if there is none."""
    for place, taken in (
        (scheduler.stream_handlers, STREAMS_TAKEN),
        (scheduler.handlers, REQUESTS_TAKEN),
    ):
        for operation in taken:
            if operation in place and not is_dasks(place[operation]):
                return operation
    return None


def watch(scheduler: Scheduler) -> StreamHandlers | None:
    """Make the stream handlers of a scheduler notify of changes; idempotent.

    The handlers are copied into another dictionary, so this is called before Backhaul installs
    handlers. Returns None if there are streams already, which use the old dictionary, or if the
    digests do not fit this release of Dask.
    """
    handlers = scheduler.stream_handlers
    if isinstance(handlers, StreamHandlers):
        return handlers
    if scheduler.stream_comms or scheduler.client_comms:
        return None
    watched = StreamHandlers(handlers)
    return watched if WATCHED_HANDLERS.install(scheduler, {"stream_handlers": watched}) else None


class Escaping(Protocol):
    """Has the state of a scheduler until a program changes something."""

    def escape(self, reason: str) -> None:
        """Give the state back."""


class StreamHandlers(dict[str, Callable[..., Any]]):
    """The handlers of a scheduler's streams; the core gives the state back before each change.

    Attributes
    ----------
    core : Escaping or None
        The core. If it raises, the dictionary is unchanged and the caller gets the exception.
    """

    core: Escaping | None = None

    def _change(self) -> None:
        if self.core is not None:
            self.core.escape("a handler of streams that is replaced")

    def __setitem__(self, operation: str, handler: Callable[..., Any]) -> None:
        self._change()
        super().__setitem__(operation, handler)

    def __delitem__(self, operation: str) -> None:
        self._change()
        super().__delitem__(operation)

    # mypy finds no argument that fits both of the base's overloads.
    def __ior__(self, others: Any) -> Any:  # type: ignore[misc]
        self._change()
        return super().__ior__(others)

    def clear(self) -> None:
        """Remove all."""
        self._change()
        super().clear()

    def pop(self, *arguments: Any) -> Any:
        """Remove and return a handler."""
        self._change()
        return super().pop(*arguments)

    def popitem(self) -> tuple[str, Callable[..., Any]]:
        """Remove and return the last operation and its handler."""
        self._change()
        return super().popitem()

    def setdefault(self, *arguments: Any) -> Any:
        """Add a handler if there is none, and return the handler in the dictionary."""
        self._change()
        return super().setdefault(*arguments)

    def update(self, *others: Any, **named: Any) -> None:
        """Add several."""
        self._change()
        super().update(*others, **named)
