"""Where the exchange applies: all workers have it, and share the memory of one host.

A worker reports its version of the exchange and its host when it registers. The scheduler looks at
the workers for each graph that has an expression of P2P. Dask makes graphs in a thread, which must
not look at the state of the scheduler, so that thread asks the event loop.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from distributed import Scheduler, Status, Worker
from distributed.system import MEMORY_LIMIT

from backhaul.dask.compat.exchange_patches import EXCHANGE_INFORMATION, GRAPHS_WITH_CLUSTER
from backhaul.dask.compat.operations import EXCHANGE, UPDATE_GRAPH
from backhaul.dask.config.settings import Settings, switched_on
from backhaul.dask.exchange.block_files import MEMORY_SHARE, block_store

__all__ = [
    "ClusterView",
    "install_for_scheduler",
    "install_for_worker",
    "with_direct_chunks",
    "with_exchange",
]

logger = logging.getLogger(__name__)

#: Version of blocks and tasks; workers of different versions do not exchange
VERSION: Final = 6
SWITCH: Final = "exchange"

#: Module that defines the expressions of P2P; a process that lacks it has none of them
_EXPRESSIONS: Final = "dask.dataframe.dask_expr"
#: Most seconds that a graph waits for the event loop
_ANSWER_S: Final = 30.0

#: The scheduler whose graph is being made, and its event loop
_scheduler: ContextVar[tuple[Scheduler, asyncio.AbstractEventLoop] | None] = ContextVar(
    "backhaul_exchange_scheduler", default=None
)


#: Handlers that note their scheduler, so that each scheduler has one
_noting_handlers: Final[WeakSet[Callable[..., Any]]] = WeakSet()


@dataclass(frozen=True)
class ClusterView:
    """The workers at the moment at which a graph is made.

    Parameters
    ----------
    threads : int
        Threads of all workers.
    free_bytes : float
        Memory of all workers below the share of their limits that an exchange may fill.
    block_bytes : float
        Memory that the blocks of one exchange may take in each worker.
    reason : str or None
        Why they cannot exchange; None if they can.
    has_files : bool
        Whether all workers write blocks that they have no memory for to files.
    """

    threads: int
    free_bytes: float
    block_bytes: float
    reason: str | None
    has_files: bool = True

    def refusal(self) -> str | None:
        """Say why the exchange does not apply; None if it does."""
        return self.reason


def install_for_worker(worker: Worker) -> None:
    """Add the exchange to what a worker reports when it registers; again costs nothing."""
    block_store.install(worker)
    if EXCHANGE not in worker.startup_information:
        (slot,) = EXCHANGE_INFORMATION.slots
        EXCHANGE_INFORMATION.install(worker, {slot: _ability_of})


def install_for_scheduler(scheduler: Scheduler) -> None:
    """Note which scheduler makes a graph; again costs nothing."""
    handlers = scheduler.stream_handlers
    handler = handlers.get(UPDATE_GRAPH)
    if handler is not None and handler not in _noting_handlers:
        (slot,) = GRAPHS_WITH_CLUSTER.slots
        GRAPHS_WITH_CLUSTER.install(scheduler, {slot: _noting(scheduler, handler)})


def _ability_of(worker: Worker) -> dict[str, Any]:
    settings = Settings.current()
    native = dict(settings.native)
    shares = (
        settings.arena is not None
        and settings.share_results
        and settings.allocate
        and "shm" in native.get("lanes", ("shm",))
        and "lease" in native.get("carriers", ("lease",))
        and worker.address.startswith("backhaul://")
        and not worker.security.require_encryption
    )
    return {
        "version": VERSION,
        "host": _host() if shares else None,
        "memory_bytes": MEMORY_LIMIT,
        "files": block_store.writes_for(worker),
    }


def _host() -> str:
    """Identify the kernel, the namespaces and the user that processes share memory in."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespaces = (os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "pid"))
    return "-".join(map(str, (boot, *namespaces, os.getuid())))


def _noting(scheduler: Scheduler, original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a handler of ``update-graph`` that notes its scheduler in the context."""

    async def update_graph(*args: Any, **kwargs: Any) -> Any:
        token = _scheduler.set((scheduler, asyncio.get_running_loop()))
        try:
            return await original(*args, **kwargs)
        finally:
            _scheduler.reset(token)

    _noting_handlers.add(update_graph)
    return update_graph


def with_exchange(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make an `Expr.__dask_graph__` that exchanges where Dask would run P2P."""

    def __dask_graph__(self: Any) -> Any:
        noted = _scheduler.get()
        if noted is None or _EXPRESSIONS not in sys.modules or not switched_on(SWITCH):
            return original(self)
        expressions = _expressions_of(self)
        if not any(type(each).__name__ in _P2P for each in expressions):
            return original(self)
        try:
            # It imports dask.dataframe, which most processes do without.
            graphs = importlib.import_module("backhaul.dask.exchange.graphs")
        except ImportError as error:
            logger.info("The exchange is off: %s", error)
            return original(self)
        view = _look(*noted)
        layers = {each._name: graphs.exchange_layer(each, view) for each in expressions}
        unread = graphs.unread(expressions, layers)
        tasks: dict[Any, Any] = {}
        for each in expressions:
            if each._name not in unread:
                layer = layers[each._name]
                tasks.update(each._layer() if layer is None else layer)
        return tasks

    return __dask_graph__


def with_direct_chunks(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a `P2PRechunkLayer._construct_graph` without P2P where the workers share memory."""

    def _construct_graph(self: Any) -> Any:
        noted = _scheduler.get()
        if noted is None or not switched_on(SWITCH):
            return original(self)
        # It imports dask.array, which most processes do without.
        arrays = importlib.import_module("backhaul.dask.exchange.arrays")
        graph = arrays.direct_graph(self, _look(*noted))
        return original(self) if graph is None else graph

    return _construct_graph


#: Classes that `backhaul.dask.exchange.graphs` makes tasks for
_P2P: Final = frozenset({"HashJoinP2P", "P2PShuffle"})


def _expressions_of(expr: Any) -> list[Any]:
    """List an expression and all that it depends on, in the order of `Expr.__dask_graph__`."""
    stack, seen, found = [expr], set(), []
    while stack:
        each = stack.pop()
        if each._name not in seen:
            seen.add(each._name)
            found.append(each)
            stack.extend(each.dependencies())
    return found


def _look(scheduler: Scheduler, loop: asyncio.AbstractEventLoop) -> ClusterView:
    """Look at the workers on the event loop of their scheduler."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        return _view_of(scheduler)

    async def view() -> ClusterView:
        return _view_of(scheduler)

    asked = asyncio.run_coroutine_threadsafe(view(), loop)
    try:
        return asked.result(_ANSWER_S)
    except FutureTimeoutError:
        asked.cancel()
        return ClusterView(0, 0, 0, "the scheduler is busy")


def _view_of(scheduler: Scheduler) -> ClusterView:
    workers = list(scheduler.workers.values())
    reason = _reason(workers)
    if reason is not None:
        return ClusterView(0, 0, 0, reason)
    free = []
    for ws in workers:
        # Workers without a limit share the memory of their host.
        memory = ws.extra[EXCHANGE]["memory_bytes"] / len(workers)
        limit = float(min(ws.memory_limit or memory, memory))
        free.append(max(0.0, MEMORY_SHARE * limit - float(ws.metrics.get("memory", 0))))
    # A block counts in each worker that has borrowed it. The other half is for the outputs.
    block_bytes = min(free) / len(workers) / 2
    has_files = all(ws.extra[EXCHANGE]["files"] for ws in workers)
    threads = sum(ws.nthreads for ws in workers)
    return ClusterView(threads, sum(free), block_bytes, None, has_files)


def _reason(workers: list[Any]) -> str | None:
    if not workers:
        return "there are no workers"
    hosts = set()
    for ws in workers:
        ability = ws.extra.get(EXCHANGE)
        if not isinstance(ability, dict) or ability.get("version") != VERSION:
            return f"worker {ws.address} has no exchange of this version"
        if ability.get("host") is None:
            return f"worker {ws.address} does not share memory"
        if ws.status is not Status.running:
            return f"worker {ws.address} is {ws.status.name}"
        hosts.add(ability["host"])
    return None if len(hosts) == 1 else "the workers are on several hosts"
