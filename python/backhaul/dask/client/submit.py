"""`Client.submit` without an expression: one pickle of the task, made natively, in a message.

Dask's client makes an expression of the one task and pickles the whole expression; its scheduler
undoes each step. Here the client sends a compact message: the key, a pickle that only the worker
loads (`backhaul.dask.serialize.pickled_task`), the keys of the dependencies, and the options that
the caller has set. Keys, futures and options are made as Dask makes them. `task_fallback` pickles a
task that the native codec cannot write, one with arrays or with objects whose classes are neither
Dask's nor the interpreter's (`backhaul.dask.serialize.task_fallback`). Large tasks take Dask's
path, and so do all tasks for a scheduler that has not announced support
(`backhaul.dask.scheduler.submissions`).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from numbers import Number
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from dask.utils import funcname

import dask
from backhaul.dask.client.futures import future_of
from backhaul.dask.client.keys import function_token
from backhaul.dask.client.outgoing_queue import outbox_of, sends_by_outbox
from backhaul.dask.client.send import sent_in_thread
from backhaul.dask.comm.capabilities import offers
from backhaul.dask.comm.comm import BackhaulComm
from backhaul.dask.compat.names import (
    Client,
    Future,
    Task,
    ToPickle,
    parse_input,
    thread_state,
    validate_key,
)
from backhaul.dask.compat.operations import SUBMIT
from backhaul.dask.resource_pools.requests import anyone_asks, needs_of
from backhaul.dask.serialize.codec import codec
from backhaul.dask.serialize.submit_message import FIFO_TIMEOUT, update_graph_of
from backhaul.dask.serialize.task_fallback import pickle_whole

__all__ = [
    "compact_submit",
    "may_submit",
    "said_of",
    "send_compactly",
]

#: Dask's own log, for what Dask logs there
logger = logging.getLogger("distributed.client")

#: Default options of a call of `Client.submit`
_NOTHING_ASKED: Final[dict[str, Any]] = {
    "workers": None,
    "resources": None,
    "retries": None,
    "priority": 0,
    "allow_other_workers": False,
}


def compact_submit(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Client.submit` that sends one compact message where it can."""
    compactly = _submitted

    def submit(
        self: Client,
        func: Callable[..., Any],
        *args: Any,
        key: Any = None,
        workers: Any = None,
        resources: Any = None,
        retries: Any = None,
        priority: Any = 0,
        fifo_timeout: Any = FIFO_TIMEOUT,
        allow_other_workers: Any = False,
        actor: Any = False,
        actors: Any = False,
        pure: Any = True,
        **kwargs: Any,
    ) -> Any:
        options = {
            "workers": workers,
            "resources": resources,
            "retries": retries,
            "priority": priority,
            "allow_other_workers": allow_other_workers,
        }
        actor = actor or actors
        future, key = compactly(self, func, args, kwargs, key, actor, pure, fifo_timeout, options)
        if future is not None:
            return future
        return original(
            self,
            func,
            *args,
            key=key,
            fifo_timeout=fifo_timeout,
            actor=actor,
            pure=pure,
            **options,
            **kwargs,
        )

    return as_dasks_own(submit, original)


def as_dasks_own(function: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a function into the module of the one that it replaces; it may use no globals.

    Dask decides by the name of the module which frames are its own and which are the user's.
    """
    ours = FunctionType(
        function.__code__,
        {"__name__": original.__module__},
        None,
        function.__defaults__,
        function.__closure__,
    )
    ours.__kwdefaults__ = function.__kwdefaults__
    return ours


def _submitted(
    client: Client,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    key: Any,
    actor: Any,
    pure: Any,
    fifo_timeout: Any,
    options: dict[str, Any],
) -> tuple[Future[Any] | None, Any]:
    """Submit a task in a compact message, if it can be; its future, or None, and its key."""
    if not callable(func) or not _are_usual(actor, options) or not may_submit(client, SUBMIT):
        return None, key
    if key is None:
        if pure and not actor:
            key = f"{funcname(func)}-{function_token(func, kwargs, args)}"
        else:
            key = f"{funcname(func)}-{uuid.uuid4()}"
    if key in client.futures:
        with client._refcount_lock:
            if key in client.futures:
                return Future(key, client), key
    named: dict[str, Any] = {name: parse_input(value) for name, value in kwargs.items()}
    task = Task(key, func, *map(parse_input, args), **named)
    # The scheduler reads the resource requests of a function from the function itself.
    if anyone_asks() and needs_of(task) is not None:
        return None, key
    kept = codec.encode_task(task) or pickle_whole(task)
    if kept is None:
        return None, key
    message: dict[str, Any] = {"op": SUBMIT, "key": key, "spec": kept}
    if task.dependencies:
        message["dependencies"] = list(task.dependencies)
    if actor:
        message["actor"] = True
    if fifo_timeout != FIFO_TIMEOUT:
        message["fifo_timeout"] = fifo_timeout
    with client._refcount_lock:
        validate_key(key)
        message |= said_of(client, options)
        future = future_of(client, key)
        send_compactly(client, message)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("Submit %s(...), %s", funcname(func), key)
    return future, key


def _are_usual(actor: Any, options: dict[str, Any]) -> bool:
    """Tell whether Dask would accept these options; Dask's path refuses other ones."""
    loose = options["allow_other_workers"]
    return (
        # Other values name keys of actors.
        (actor is True or actor is False or actor is None)
        and (loose is False or loose is None or (loose is True and options["workers"] is not None))
    )


def may_submit(client: Client, operation: str) -> bool:
    """Tell whether a client is unmodified, runs, and has a scheduler that supports a message.

    The operation is `SUBMIT`, `MAP` or `GRAPH`.
    """
    kind = type(client)
    own = vars(client).get("_graph_to_futures")
    return (
        client.status == "running"
        and (kind is Client or kind._graph_to_futures is Client._graph_to_futures)
        # A program may have put its own there.
        and (own is None or own.__code__.co_filename == _GRAPH_FILE)
        and sends_by_outbox(client)
        and _understands(client, operation)
    )


def said_of(client: Client, options: dict[str, Any]) -> dict[str, Any]:
    """Return the optional fields of compact messages about tasks, of some or all options of a call.

    These are ``annotations``, ``code`` and ``submitting_task``, each only if there is a value.
    """
    said: dict[str, Any] = {}
    if (options != _NOTHING_ASKED or dask.get_annotations()) and (
        annotations := _annotations(**options)
    ):
        said["annotations"] = ToPickle(annotations)
    if code := _code(client):
        said["code"] = ToPickle(code)
    submitting_task = getattr(thread_state, "key", None)
    if submitting_task is not None:
        said["submitting_task"] = submitting_task
    return said


def send_compactly(client: Client, message: dict[str, Any]) -> None:
    """Send a compact message, by this thread or by the event loop."""
    if not sent_in_thread(client, message):
        outbox_of(client).add(_Sending(client), message)


#: Most frames of this package above the user's in a traceback, and their files
_FRAMES: Final = 3
_FILES: Final = tuple(
    str(Path(__file__).with_name(f"{name}.py")) for name in ("submit", "map", "graph", "compute")
)
_GRAPH_FILE: Final = _FILES[2]


class _Sending:
    """Sends compact messages of one client, in its event loop."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        self._client = client

    def __call__(self, message: dict[str, Any]) -> None:
        client = self._client
        # The client may have lost its scheduler since, and have, or look for, another one.
        if client.status not in ("running", "closing") or not _understands(client, message["op"]):
            message = update_graph_of(message)
        client._send_to_scheduler_safe(message)


def _understands(client: Client, operation: str) -> bool:
    stream: Any = client.scheduler_comm
    comm = None if stream is None else stream.comm
    return isinstance(comm, BackhaulComm) and offers(comm, operation)


def _code(client: Client) -> tuple[Any, ...]:
    """Return the user's code around the call, of as many frames as the configuration sets."""
    try:
        nframes = dask.config.config["distributed"]["diagnostics"]["computations"]["nframes"]
    except (KeyError, TypeError):
        nframes = dask.config.get("distributed.diagnostics.computations.nframes")
    if nframes <= 0:
        return ()
    found = client._get_computation_code(nframes=nframes + _FRAMES)
    return tuple(each for each in found if each.filename not in _FILES)[-nframes:]


def _annotations(
    *,
    priority: Any = None,
    workers: Any = None,
    retries: Any = None,
    allow_other_workers: Any = None,
    resources: Any = None,
) -> dict[str, Any]:
    """Return the annotations of the call, merged over those that are set for all tasks."""
    annotations = dict(dask.get_annotations())
    if priority:
        annotations["priority"] = priority
    if isinstance(workers, (str, Number)):
        workers = [workers]
    if workers:
        is_many = isinstance(workers, (list, tuple, set))
        annotations["workers"] = workers if is_many else [workers]
    if retries:
        annotations["retries"] = retries
    if allow_other_workers:
        annotations["allow_other_workers"] = allow_other_workers
    if resources:
        annotations["resources"] = resources
    return annotations
