"""What we put in the place of private names of ``distributed``, and when we do not dare to.

Most of Backhaul reaches Dask through its entry points. What costs microseconds per task does not
have one: there a function of ours takes the place of one of Dask's, which it calls for whatever it
does not handle. Each replacement is an entry of `PATCHES`; there are no others.

A patch rests on the source of what it replaces or relies upon. It is installed only where that
source is, to the letter, one that we have read; in any other release of ``distributed``, or if
somebody else has replaced the function before us, Dask runs as it is, and the log says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import linecache
import logging
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import dask.order
import distributed.utils
import distributed.worker
import tornado.gen
from distributed import Nanny, Scheduler

from backhaul.dask import (
    batching,
    execution,
    memory,
    order,
    outbox,
    plumbing,
    streams,
    transfers,
    waiting,
    work_in_hand,
)
from backhaul.dask.comm import BackhaulComm
from backhaul.dask.config import switched_on
from backhaul.dask.private import (
    BaseWorker,
    BatchedSend,
    Client,
    DelayedMetricsLedger,
    Future,
    FutureState,
    Server,
    SpillBuffer,
    StateMachineEvent,
    TaskFinishedMsg,
    ThreadPoolExecutor,
    Worker,
    WorkerStateMachine,
    run_actor,
    run_task,
    run_task_simple,
    wait_for,
    wait_for_all,
)

__all__ = ["PATCHES", "Patch", "install", "install_for", "installed", "uninstall"]

logger = logging.getLogger(__name__)

#: The one whose source was read, whoever replaces it later.
_EXECUTE = Worker.execute

#: Decorators that Dask uses, and the code that `dataclass` makes.
_DECORATORS = {
    contextlib.__file__,
    dataclasses.__file__,
    functools.__file__,
    tornado.gen.__file__,
    "<string>",
}


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One replacement of one function.

    Parameters
    ----------
    switch : str
        The key under ``distributed.comm.backhaul`` that switches it on.
    owner : object
        Class or module that has the function.
    name : str
        Its name there.
    replace : callable
        Makes our function from Dask's; from None if there is none.
    read : dict of object to str
        Digest of the source of the function, and of each other one, class or module that ours
        relies upon to behave as it did when we read it.
    """

    switch: str
    owner: Any
    name: str
    replace: Callable[[Any], Callable[..., Any]]
    read: dict[Any, str]

    def __str__(self) -> str:
        return f"{_name(self.owner)}.{self.name}"


def _name(source: Any) -> str:
    return str(getattr(source, "__qualname__", source.__name__))


@functools.cache
def source_digest(source: Any) -> str:
    """Digest the source of a function, class or module: 12 hexadecimal digits; ``""`` if none."""
    try:
        text = _class_source(source) or inspect.getsource(source)
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _class_source(source: Any) -> str:
    """Give what `inspect.getsource` does for a class, but find it by its line; ``""`` if not so.

    Until Python 3.13 the latter parses the whole module: 0.1 s for that of the client.
    """
    if not isinstance(source, type):
        return ""
    lines = linecache.getlines(inspect.getsourcefile(source) or "")
    start = re.compile(rf"class {re.escape(source.__qualname__)}\b")
    found = [number for number, line in enumerate(lines) if start.match(line)]
    if len(found) != 1:
        return ""
    (first,) = found
    while first > 0 and lines[first - 1].startswith("@"):
        first -= 1
    return "".join(inspect.getblock(lines[first:]))


def _files(function: Any) -> set[str | None]:
    """Collect the files that a function, its decorators and what they wrap were compiled from."""
    if isinstance(function, (classmethod, staticmethod)):
        function = function.__func__
    elif isinstance(function, property):
        function = function.fget
    files: set[str | None] = set()
    while isinstance(function, FunctionType):
        files.add(function.__code__.co_filename)
        function = getattr(function, "__wrapped__", None)
    return files - _DECORATORS


def is_pristine(source: Any) -> bool:
    """Tell whether nobody has replaced or wrapped a function, or one of a class or module.

    A wrapper shows the source of what it wraps, and a class that of the file that it came from, so
    a digest alone would not tell.
    """
    if isinstance(source, FunctionType):
        return len(_files(source)) == 1
    parts = list(vars(source).values())
    if isinstance(source, type):
        home = sys.modules[source.__module__].__file__
    else:
        home = source.__file__
        # The rest it has from elsewhere.
        parts = [part for part in parts if getattr(part, "__module__", None) == source.__name__]
    return all(_files(part) <= {home} for part in parts)


def _adaptive_start(original: Callable[..., Any]) -> Callable[..., Any]:
    def start(self: BatchedSend, comm: Any) -> None:
        if not batching.adopt(self, comm):
            original(self, comm)

    return start


def _draining_handle_stream(original: Callable[..., Any]) -> Callable[..., Any]:
    async def handle_stream(self: Server, comm: Any, extra: dict[str, Any] | None = None) -> None:
        if isinstance(comm, BackhaulComm):
            await streams.handle_stream(self, comm, extra)
        else:
            await original(self, comm, extra)

    return handle_stream


def _direct_start(original: Callable[..., Any]) -> Callable[..., Any]:
    def _start_async_instruction(
        self: Worker,
        task_name: str,
        func: Callable[..., Any],
        /,
        *args: Any,
        span_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        # A sub-class with an `execute` of its own keeps it.
        if getattr(func, "__func__", None) is not _EXECUTE or not execution.start_execution(
            self, *args, span_id=span_id, **kwargs
        ):
            original(self, task_name, func, *args, span_id=span_id, **kwargs)

    return _start_async_instruction


def _arena_actor(original: Callable[..., Any]) -> Callable[..., Any]:
    def _run_actor(
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        execution_state: dict[str, Any],
        key: Any,
        active_threads: dict[int, Any],
        active_threads_lock: Any,
    ) -> Any:
        # Dask copies no context for it.
        memory.allocate_in_arena()
        return original(
            func, args, kwargs, execution_state, key, active_threads, active_threads_lock
        )

    return _run_actor


def _light_all(original: Callable[..., Any]) -> Callable[..., Any]:
    return waiting.wait_for_all


def _native_order(original: Callable[..., Any]) -> Callable[..., Any]:
    return order.order


#: Every patch there is.
PATCHES: tuple[Patch, ...] = (
    Patch(
        switch="hot-path.batching",
        owner=BatchedSend,
        name="start",
        replace=_adaptive_start,
        read={BatchedSend: "6b8b9c6179e7"},
    ),
    Patch(
        switch="hot-path.batching",
        owner=Server,
        name="handle_stream",
        replace=_draining_handle_stream,
        read={
            Server.handle_stream: "72ba087c9df7",
            Worker._handle_remote_stimulus: "cb8790fe82a6",
            Worker.handle_stimulus: "623c704ef088",
            WorkerStateMachine.handle_stimulus: "eacb3baa767e",
        },
    ),
    Patch(
        switch="hot-path.execution",
        owner=Worker,
        name="_start_async_instruction",
        replace=_direct_start,
        read={
            _EXECUTE: "981e9c472e6a",
            BaseWorker._start_async_instruction: "24de6e1ef8a2",
            BaseWorker._finish_async_instruction: "1f40fa28fc06",
            BaseWorker._finalize_metrics: "f736e6f8ef51",
            DelayedMetricsLedger: "f6bb5bb68eaa",
            ThreadPoolExecutor: "ea2d0c64c2c5",
            run_task: "879cc11a993c",
            run_task_simple: "072a00fb1d13",
        },
    ),
    Patch(
        switch="hot-path.execution",
        owner=WorkerStateMachine,
        name="_handle_event",
        replace=plumbing.direct_handle_event,
        read={WorkerStateMachine.handle_stimulus: "eacb3baa767e"},
    ),
    Patch(
        switch="hot-path.execution",
        owner=WorkerStateMachine,
        name="_get_task_finished_msg",
        replace=plumbing.quick_finished_message,
        read={
            WorkerStateMachine._get_task_finished_msg: "38db9750edf3",
            TaskFinishedMsg: "232e1fa070b3",
        },
    ),
    Patch(
        switch="hot-path.execution",
        owner=SpillBuffer,
        name="__getitem__",
        replace=plumbing.quick_getitem,
        read={SpillBuffer: "4c66a9e8386b"},
    ),
    Patch(
        switch="hot-path.execution",
        owner=StateMachineEvent,
        name="__copy__",
        replace=plumbing.add_copy,
        read={StateMachineEvent: "b2e4fc28d8a7"},
    ),
    Patch(
        switch="hot-path.futures",
        owner=FutureState,
        name="wait",
        replace=waiting.untimed_wait,
        read={FutureState: "a3cf7ecc4e8d", wait_for: "f9c57ed5f23e"},
    ),
    # The scheduler looks it up in its module at each call.
    Patch(
        switch="hot-path.order",
        owner=dask.order,
        name="order",
        replace=_native_order,
        read={dask.order: "632001b800fc"},
    ),
    Patch(
        switch="arena.allocate",
        owner=distributed.worker,
        name="_run_actor",
        replace=_arena_actor,
        read={run_actor: "9088419020a7"},
    ),
    # The client calls it by the name of its module; others have imported it before us.
    Patch(
        switch="hot-path.futures",
        owner=distributed.utils,
        name="All",
        replace=_light_all,
        read={wait_for_all: "4a12c1f80983", Client._gather: "e5e8b8868464"},
    ),
    Patch(
        switch="hot-path.futures",
        owner=Client,
        name="_send_to_scheduler",
        replace=outbox.collected_send,
        read={
            Client._send_to_scheduler: "650edb8d752b",
            Client._send_to_scheduler_safe: "6ca335890717",
        },
    ),
    Patch(
        switch="hot-path.futures",
        owner=Future,
        name="release",
        replace=outbox.collected_release,
        read={
            Future.release: "46a65cb22fca",
            Future.__del__: "bffba933b84f",
            Future._verify_initialized: "8cfcb0e99a39",
            Future._bind_late: "36cf95d12009",
            Client._dec_ref: "f7c892d68ed0",
            Client._release_key: "2d790ca7d72e",
        },
    ),
)

_lock = threading.Lock()


@dataclass(frozen=True)
class _Installed:
    replacement: Callable[..., Any]
    original: Callable[..., Any]
    #: The owner had it from a base class.
    inherited: bool


_installed: dict[int, _Installed] = {}
_refused: set[int] = set()


def install() -> None:
    """Install every patch that is switched on and fits; calling it again costs nothing."""
    with _lock:
        for number, patch in enumerate(PATCHES):
            if number in _installed or number in _refused or not switched_on(patch.switch):
                continue
            original = inspect.getattr_static(patch.owner, patch.name, None)
            strange = [
                source
                for source, digest in patch.read.items()
                if source_digest(source) != digest or not is_pristine(source)
            ]
            if not strange and not _belongs(original, patch):
                strange.append(original)
            if strange:
                _refused.add(number)
                logger.warning(
                    "Backhaul leaves %s as it is, which is slower: the source of %s is none that "
                    "it was written for",
                    patch,
                    ", ".join(map(_name, strange)),
                )
                continue
            replacement = patch.replace(original)
            for attribute in ("__name__", "__qualname__", "__doc__"):
                if (value := getattr(original, attribute, None)) is not None:
                    setattr(replacement, attribute, value)
            _installed[number] = _Installed(
                replacement, original, inherited=patch.name not in vars(patch.owner)
            )
            setattr(patch.owner, patch.name, replacement)


def _belongs(original: Any, patch: Patch) -> bool:
    """Tell whether a function is the one that was read, or comes with the class or module."""
    if original is None:
        # Dask has none: nobody may have added one.
        return True
    original = getattr(original, "func", original)
    homes = (inspect.getsourcefile(source) for source in patch.read)
    return isinstance(original, FunctionType) and _files(original) <= set(filter(None, homes))


def install_for(server: Any) -> None:
    """Do for one server what is not a matter of the process; again costs nothing.

    Parameters
    ----------
    server : object
        Anything that a preload or a listener may belong to. Schedulers, workers and nannies have
        such matters; a worker's are those of the context that starts it.
    """
    if isinstance(server, Scheduler):
        work_in_hand.install(server)
        transfers.install_for_scheduler(server)
    elif isinstance(server, Worker):
        memory.install(server)
        transfers.install_for_worker(server)
    elif isinstance(server, Nanny):
        memory.install_for_nanny(server)


def uninstall() -> None:
    """Put Dask's own functions back, where nobody has replaced ours; for tests."""
    with _lock:
        for number, done in _installed.items():
            patch = PATCHES[number]
            if vars(patch.owner).get(patch.name) is not done.replacement:
                continue
            if done.inherited:
                delattr(patch.owner, patch.name)
            else:
                setattr(patch.owner, patch.name, done.original)
        _installed.clear()
        _refused.clear()


def installed() -> list[Patch]:
    """List the patches in force."""
    return [PATCHES[number] for number in sorted(_installed)]
