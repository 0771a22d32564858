"""Where the exchange applies: all workers have it, and share memory with those of their host.

A worker reports its version of the exchange and its host when it registers. The scheduler looks at
the workers for each graph that has an expression of P2P. Dask makes graphs in a thread, which must
not look at the state of the scheduler, so that thread asks the event loop.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import sys
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import time
from typing import Any, Final
from weakref import WeakSet

from distributed import Scheduler, Status, Worker
from distributed.system import MEMORY_LIMIT

from backhaul.dask.compat.exchange_patches import EXCHANGE_INFORMATION, GRAPHS_WITH_CLUSTER
from backhaul.dask.compat.operations import EXCHANGE, UPDATE_GRAPH
from backhaul.dask.config.settings import Settings, switched_on
from backhaul.dask.exchange.block_files import MEMORY_SHARE, block_store
from backhaul.dask.exchange.placing import Host, PinnedTasks, Pins, host_name, restricts_workers

__all__ = [
    "CHOSEN_WORKERS",
    "ClusterView",
    "install_for_scheduler",
    "install_for_worker",
    "with_direct_chunks",
    "with_exchange",
]

logger = logging.getLogger(__name__)

#: Version of blocks and tasks; workers of different versions do not exchange
VERSION: Final = 8
SWITCH: Final = "exchange"
#: Why a graph is left to P2P whose tasks the program restricts
CHOSEN_WORKERS: Final = "the program chooses the workers, which are on several hosts"

#: Module that defines the expressions of P2P; a process that lacks it has none of them
_EXPRESSIONS: Final = "dask.dataframe.dask_expr"
#: Most seconds that a graph waits for the event loop
_ANSWER_S: Final = 30.0

#: The graph that is being made
_noted: ContextVar[_Noted | None] = ContextVar("backhaul_exchange_scheduler", default=None)


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
    hosts : tuple of Host
        The hosts of the workers.
    pins : Pins
        Gets the workers that tasks are restricted to, if there are several hosts.
    """

    threads: int
    free_bytes: float
    block_bytes: float
    reason: str | None
    has_files: bool = True
    hosts: tuple[Host, ...] = ()
    pins: Pins = field(default_factory=Pins)

    def refusal(self) -> str | None:
        """Say why the exchange does not apply; None if it does."""
        return self.reason


@dataclass
class _Noted:
    """The scheduler whose graph is being made.

    Parameters
    ----------
    scheduler : Scheduler
        The scheduler.
    loop : asyncio.AbstractEventLoop
        Its event loop.
    annotations : dict
        The program's for all tasks of the graph.
    passed : dict
        Those that Dask gets: a copy, which may have more.
    is_pinned : bool
        Whether the exchange restricts tasks of the graph to workers.
    pins : Pins
        The workers of tasks that `passed` restricts.
    """

    scheduler: Scheduler
    loop: asyncio.AbstractEventLoop
    annotations: dict[str, Any]
    passed: dict[str, Any] = field(default_factory=dict)
    is_pinned: bool = False
    pins: Pins = field(default_factory=Pins)

    def restrict(self, pins: Pins) -> None:
        """Restrict tasks of this graph, which Dask has not annotated yet.

        Optimization drops the annotations of an array's layers, but not those of a whole graph.
        """
        if pins.workers:
            self.pins.workers.update(pins.workers)
            self.pins.early |= pins.early
            if not self.is_pinned:
                self.passed.update(self.pins.annotations(self.passed.get("priority", 0)))
            self.is_pinned = True

    def look(self) -> ClusterView:
        """Look at the workers on the event loop."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None

        async def view() -> ClusterView:
            return _view_of(self.scheduler)

        if running is self.loop:
            found = _view_of(self.scheduler)
        else:
            asked = asyncio.run_coroutine_threadsafe(view(), self.loop)
            try:
                found = asked.result(_ANSWER_S)
            except FutureTimeoutError:
                asked.cancel()
                return ClusterView(0, 0, 0, "the scheduler is busy")
        if isinstance(priority := self.annotations.get("priority", 0), int | float):
            found.pins.priority = priority
        if len(found.hosts) > 1 and restricts_workers(self.annotations):
            return ClusterView(0, 0, 0, CHOSEN_WORKERS)
        return found


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
        "host": host_name() if shares else None,
        "memory_bytes": MEMORY_LIMIT,
        "files": block_store.writes_for(worker),
    }


def _noting(scheduler: Scheduler, original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a handler of ``update-graph`` that notes its scheduler in the context."""

    async def update_graph(*args: Any, annotations: Any = None, **kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        noted = _Noted(scheduler, loop, annotations or {}, dict(annotations or {}))
        token = _noted.set(noted)
        try:
            return await original(*args, annotations=noted.passed, **kwargs)
        finally:
            _noted.reset(token)
            # Dask keeps the annotations of its last computations.
            noted.pins.clear()
            if noted.is_pinned:
                # A worker may have left before the tasks were there.
                _pinned_tasks(scheduler).move_tasks(scheduler, f"exchange-{time()}")

    _noting_handlers.add(update_graph)
    return update_graph


def with_exchange(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make an `Expr.__dask_graph__` that exchanges where Dask would run P2P."""

    def __dask_graph__(self: Any) -> Any:
        noted = _noted.get()
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
        view = noted.look()
        layers = {each._name: graphs.exchange_layer(each, view) for each in expressions}
        unread = graphs.unread(expressions, layers)
        tasks: dict[Any, Any] = {}
        for each in expressions:
            if each._name not in unread:
                layer = layers[each._name]
                tasks.update(each._layer() if layer is None else layer)
        view.pins.annotate(self)
        noted.is_pinned = bool(view.pins.workers)
        return tasks

    return __dask_graph__


def with_direct_chunks(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a `P2PRechunkLayer._construct_graph` without P2P where the workers share memory."""

    def _construct_graph(self: Any) -> Any:
        noted = _noted.get()
        if noted is None or not switched_on(SWITCH):
            return original(self)
        # It imports dask.array, which most processes do without.
        arrays = importlib.import_module("backhaul.dask.exchange.arrays")
        view = noted.look()
        graph = arrays.direct_graph(self, view)
        if graph is None:
            return original(self)
        noted.restrict(view.pins)
        return graph

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


def _view_of(scheduler: Scheduler) -> ClusterView:
    workers = list(scheduler.workers.values())
    reason = _reason(workers)
    if reason is not None:
        return ClusterView(0, 0, 0, reason)
    by_host: dict[str, list[Any]] = {}
    for ws in workers:
        by_host.setdefault(ws.extra[EXCHANGE]["host"], []).append(ws)
    free, block_bytes = 0.0, math.inf
    for neighbours in by_host.values():
        free_here = [_free_bytes(ws, len(neighbours)) for ws in neighbours]
        free += sum(free_here)
        # A block counts in each worker that has borrowed it. The other half is for the outputs.
        block_bytes = min(block_bytes, min(free_here) / len(neighbours) / 2)
    hosts = tuple(
        Host(name, {ws.address: ws.nthreads for ws in neighbours})
        for name, neighbours in by_host.items()
    )
    if len(hosts) > 1:
        _pinned_tasks(scheduler).note(hosts)
    has_files = all(ws.extra[EXCHANGE]["files"] for ws in workers)
    threads = sum(ws.nthreads for ws in workers)
    return ClusterView(threads, free, block_bytes, None, has_files, hosts)


def _free_bytes(ws: Any, neighbours: int) -> float:
    """Return the memory of a worker below the share of its limit that an exchange may fill."""
    # Workers without a limit share the memory of their host.
    memory = ws.extra[EXCHANGE]["memory_bytes"] / neighbours
    limit = float(min(ws.memory_limit or memory, memory))
    return max(0.0, MEMORY_SHARE * limit - float(ws.metrics.get("memory", 0)))


def _pinned_tasks(scheduler: Scheduler) -> PinnedTasks:
    """Return the plugin that moves pinned tasks, which is there after the first use."""
    found = scheduler.plugins.get(PinnedTasks.name)
    if not isinstance(found, PinnedTasks):
        found = PinnedTasks()
        scheduler.add_plugin(found)
    return found


def _reason(workers: list[Any]) -> str | None:
    if not workers:
        return "there are no workers"
    for ws in workers:
        ability = ws.extra.get(EXCHANGE)
        if not isinstance(ability, dict) or ability.get("version") != VERSION:
            return f"worker {ws.address} has no exchange of this version"
        if ability.get("host") is None:
            return f"worker {ws.address} does not share memory"
        if ws.status is not Status.running:
            return f"worker {ws.address} is {ws.status.name}"
    return None
