"""Every name of ``distributed`` that we touch and that its documentation does not promise.

The rest of the package imports these names from here and from nowhere else; what it imports from
``distributed`` directly is documented. A name is looked up when it is first imported. A release of
Dask that lacks the name makes that raise `MissingName`, which refuses the feature that needs the
name and nothing else (`backhaul.dask.compat.features`). ``names.pyi`` has the table: type
checkers read its imports as they stand, and so does this module.

Read for 2026.7.1 and 2026.8.0. Between them nothing changed in the modules below, nor in the rest
of ``distributed.comm``, ``protocol``, ``shuffle``, ``batched`` and ``client``. Changes: ``nanny``
(one closes though its process does not end), ``node``, ``scheduler`` and ``worker`` (HTTP services
are stopped by awaiting) and ``spans``.

Besides the names below we depend on some facts that no import shows:

- ``distributed.comm.core.connect`` reads ``comm._peer_addr`` and ``comm._local_addr``;
- ``BaseListener`` keeps the comms that are still shaking hands, and ``Server`` aborts them through
  ``listener.abort_handshaking_comms()`` when it stops;
- a worker calls each of ``Worker.metrics`` for a heartbeat, and ``Scheduler.handlers`` has the
  handler that takes it;
- ``distributed.dashboard.scheduler.template_variables`` gives the same ``pages`` to all pages of a
  scheduler, ``distributed.dashboard.core.BokehApplication`` makes an application from functions,
  ``scheduler.http_application`` takes and stops any number of them, and ``simple.html`` shows what
  a document holds; they are imported where there is a dashboard, as they need Bokeh;
- ``/metrics`` shows what is registered with ``prometheus_client.REGISTRY``;
- a worker asks ``monitor.get_process_memory()`` how much it holds, for its memory monitor and for
  the scheduler;
- ``periodic_callbacks["memory_monitor"]`` of a nanny compares its worker's memory with the limit;
- a nanny has its ``WorkerProcess`` in ``process``, and that its ``AsyncProcess`` in ``process``,
  each set before it is started; ``AsyncProcess._process.start`` is called on a thread of its own,
  and ``WorkerProcess._init_msg_interval`` says how often the worker's first message is looked for.
"""

from __future__ import annotations

import contextlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import distributed

import dask

__all__ = ["NAMES", "MissingName", "process_of", "resolve"]

#: An import of ``names.pyi``: module, name there, name here
_IMPORT: Final = re.compile(r"^(?:from ([\w.]+) )?import \(?\s*([\w.]+) as (\w+)", re.MULTILINE)

#: Name in this module, and where Dask has it, read from ``names.pyi``
NAMES: Final[dict[str, str]] = {
    here: f"{module}:{name}" if module else name
    for module, name, here in _IMPORT.findall(
        Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    )
}

#: Functions without their decorator, which hides where they come from
_UNWRAPPED: Final[dict[str, str]] = {
    "handle_report": "Client._handle_report",
    "update_graph": "Scheduler.update_graph",
    "add_worker": "Scheduler.add_worker",
    "remove_worker": "Scheduler.remove_worker",
    "update_data": "Scheduler.update_data",
    "retire_workers": "Scheduler.retire_workers",
    "get_data": "Worker.get_data",
}

#: Class of the event for a message of the scheduler to a worker, by operation
_WORKER_EVENTS: Final[dict[str, str]] = {
    "acquire-replicas": "AcquireReplicasEvent",
    "compute-task": "ComputeTaskEvent",
    "free-keys": "FreeKeysEvent",
    "refresh-who-has": "RefreshWhoHasEvent",
    "remove-replicas": "RemoveReplicasEvent",
    "remove-worker": "RemoveWorkerEvent",
    "steal-request": "StealRequestEvent",
}


class MissingName(ImportError):
    """The installed release of Dask lacks a private name that a feature needs."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is missing from dask {dask.__version__} and distributed "
            f"{distributed.__version__}"
        )
        self.path = path


def resolve(path: str) -> Any:
    """Find one of the names of this module, or a module, or ``module:name``; attributes may follow.

    `MissingName` if the installed release does not have it.
    """
    head, *attributes = path.split(".")
    if not _is_here(head):
        return _look_up(path)
    found = globals()[head] if head in globals() else __getattr__(head)
    try:
        for attribute in attributes:
            found = getattr(found, attribute)
    except AttributeError as error:
        raise MissingName(path) from error
    return found


def process_of(process: Any) -> Any:
    """Reach the process of ``multiprocessing`` that Dask starts on a thread of its own."""
    return process._process


def _span_metadata() -> Callable[[], Any]:
    metadata = resolve("SpanMetadata")

    def span_metadata() -> Any:
        """Make what a client says of the futures that it submits, for their span.

        A new one each time: 2026.7.1 tells them apart by their addresses.
        """
        return metadata(collections=[{"type": "Future"}])

    return span_metadata


def _starting_method() -> Callable[[], str]:
    context = resolve("get_mp_context")

    def starting_method() -> str:
        """Tell how Dask starts worker processes, as ``multiprocessing`` calls it."""
        return str(context().get_start_method())

    return starting_method


#: Values made of several names, or functions that need one
_MADE: Final[dict[str, Callable[[], Any]]] = {
    "span_metadata": _span_metadata,
    "starting_method": _starting_method,
    "containers": lambda: tuple(map(resolve, ("List", "Tuple", "Set", "Dict"))),
    "worker_events": lambda: {name: resolve(path) for name, path in _WORKER_EVENTS.items()},
}


def _is_here(name: str) -> bool:
    return name in NAMES or name in _UNWRAPPED or name in _MADE


def _look_up(path: str) -> Any:
    try:
        with contextlib.suppress(AttributeError):
            return pkgutil.resolve_name(path)
        # Perhaps a module that its package does not import
        return pkgutil.resolve_name(path.replace(":", "."))
    except (ImportError, AttributeError) as error:
        raise MissingName(path) from error


def __getattr__(name: str) -> Any:
    if name in NAMES:
        found = _look_up(NAMES[name])
    elif name in _UNWRAPPED:
        found = inspect.unwrap(resolve(_UNWRAPPED[name]))
    elif name in _MADE:
        found = _MADE[name]()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found
