"""Resources on Dask's local schedulers: what lets a task through to a pool when its units are free.

`dask.local.get_async` hands each ready task to ``submit``. A `Gate` stands there in the place of a
pool: it takes all of them, and gives each to a thread or a process once it holds what it asks for,
on the thread that has just given something back. A graph without requests never
comes here.
"""

from __future__ import annotations

import contextvars
import heapq
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

import dask
from backhaul._locks import RLock
from backhaul._native import ResourcePools, ResourceRequest
from backhaul.dask.resource_pools.declarations import Declared, checked, groups_of
from backhaul.dask.resource_pools.leases import Lease, current_lease, lay_down, take_up
from backhaul.dask.resource_pools.machine_pools import coupled_here, resolved
from backhaul.dask.resource_pools.requests import CPU, Needs, anyone_asks, needs_of
from backhaul.errors import ConfigError

__all__ = ["Asked", "Gate", "asked_in", "declared_for", "run_holding"]

#: Ready tasks that `dask.local.get_async` may hand over: all
_WORKERS = 1 << 30

_PLAIN = Needs({})


def asked_in(dsk: Any) -> Asked | None:
    """Find what the tasks of a graph ask for; None if they ask for nothing but a thread each.

    `ConfigError` if an annotation asks for what cannot be.
    """
    annotated = _annotations(dsk)
    if not annotated and not anyone_asks():
        return None
    graph = dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__()
    needs: dict[Any, Needs] = {}
    for key, task in graph.items():
        found = needs_of(task) if anyone_asks() else None
        if (said := annotated.get(key)) is not None:
            found = (found or _PLAIN).with_annotated(*said)
        if found is not None:
            needs[key] = found
    return Asked(graph, needs, is_annotated=bool(annotated)) if needs else None


@dataclass(frozen=True)
class Asked:
    """A graph, and what its tasks ask for."""

    #: The graph
    graph: Mapping[Any, Any]
    #: By key, for those that ask for something
    needs: dict[Any, Needs]
    #: Whether some of it is known by the key alone, so that tasks must keep theirs
    is_annotated: bool


def declared_for(resources: Mapping[str, Any] | None, *, cpus: int) -> Declared:
    """Say what a local scheduler has: its resources, or what ``backhaul.resources`` says.

    `cpus` are its threads or processes, unless ``CPU`` says otherwise. `ConfigError` if it makes no
    sense.
    """
    given = resources if resources is not None else dask.config.get("backhaul.resources", None)
    declared = resolved(checked(given))
    amount = declared.get(CPU, cpus)
    if isinstance(amount, list):
        raise ConfigError(f"CPU={amount!r}: the threads of a scheduler have no ids")
    declared[CPU] = float(amount)
    return declared


class _Outcome:
    """Future for `dask.local.get_async`: a callback, and then the result.

    One of ``concurrent.futures`` has a condition of its own, which would cost more than all else
    that is done here for a task. The lock is held while it changes.
    """

    __slots__ = ("_callback", "_error", "_is_done", "_lock", "_value")

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._callback: Callable[[_Outcome], object] | None = None
        self._is_done = False
        self._value: Any = None
        self._error: BaseException | None = None

    def add_done_callback(self, callback: Callable[[_Outcome], object]) -> None:
        """Call a callback once it is done."""
        with self._lock:
            if not self._is_done:
                self._callback = callback
                return
        callback(self)

    def end(self, value: Any, error: BaseException | None) -> None:
        """Be done."""
        with self._lock:
            self._value, self._error, self._is_done = value, error, True
        if self._callback is not None:
            self._callback(self)

    def result(self) -> Any:
        """Give the value, or raise the error; to be asked when it is done."""
        if self._error is not None:
            raise self._error
        return self._value


class _Waiting:
    """A task at the gate."""

    __slots__ = ("batch", "context", "dependencies", "function", "future", "key")

    def __init__(
        self,
        key: Any,
        function: Any,
        batch: Any,
        dependencies: Iterable[Any],
        future: _Outcome,
        context: contextvars.Context | None,
    ) -> None:
        self.key = key
        self.function = function
        self.batch = batch
        self.dependencies = dependencies
        self.future = future
        self.context = context


class _Queue:
    """The tasks at the gate that ask for the same."""

    __slots__ = ("contended", "heap", "is_blocked", "needs", "request")

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        self.request = ResourceRequest({**needs.resources, CPU: needs.cpu}, list(needs.affinity))
        #: The newest first, as `dask.local.get_async` has it; of those that came together, in order
        self.heap: list[tuple[int, int, _Waiting]] = []
        #: Whether nothing was free for them, since something was last given back
        self.is_blocked = False

        #: Names of what they may wait for while others take it; one CPU is soon free
        self.contended = needs.resources.keys() | ({CPU} if needs.cpu > 1 else set())


class Gate(Executor):
    """Pool for `dask.local.get_async`, over one that has room for all that may run together.

    The needs are by key. `in_threads` says whether the pool has threads of this process. `needs_in`
    says what a task asks for, and which keys it depends on, by what was made of it for another
    process.

    Raises
    ------
    ConfigError
        If a task asks for what can never be met here. Names it, and what there is.
    """

    def __init__(
        self,
        declared: Declared,
        needs: Mapping[Any, Needs],
        pool: Executor,
        *,
        in_threads: bool = True,
        needs_in: Callable[[Any], tuple[Needs | None, Iterable[Any]]] | None = None,
    ) -> None:
        self._max_workers = _WORKERS
        self._pool = pool
        self._pools = ResourcePools(declared, coupled=coupled_here(declared))
        self._groups = groups_of(declared)
        self._needs_in = needs_in
        self._in_threads = in_threads
        self._lock = RLock()
        self._queues: dict[Needs, _Queue] = {}
        #: Whether some could take what others wait for, so that turns are counted
        self._contends = False
        #: Whether a task may prefer the units on which its inputs were made
        self._prefers = needs_in is not None
        #: These units, by key
        self._made_on: dict[Any, dict[str, tuple[int, ...]]] = {}
        self._count = 0
        self._ended = 0
        self._is_closed = False
        self._plain = self._queue(_PLAIN)
        self._by_key = {key: self._queue(each) for key, each in needs.items()}
        for key, queue in self._by_key.items():
            reason = self._pools.unmeetable(queue.request)
            if reason is not None:
                raise ConfigError(
                    f"task {key!r} asks for {queue.needs!r}, which is never met: {reason}"
                )

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Take a batch of one task, and run it when it may hold what it asks for."""
        (batch,) = args
        ((key, task_info, *_),) = batch
        dependencies: Iterable[Any] = ()
        queue = self._by_key.get(key)
        if self._needs_in is not None:
            found, dependencies = self._needs_in(task_info)
            if queue is None and found is not None:
                queue = self._queue(found)
        elif queue is not None and queue.needs.affinity:
            dependencies = task_info[1]
        if queue is None:
            queue = self._plain
        future = _Outcome(self._lock)
        context = contextvars.copy_context() if self._in_threads else None
        waiting = _Waiting(key, fn, batch, dependencies, future, context)
        with self._lock:
            # Where one waits that is not blocked, it has been let through.
            lease = (
                None
                if queue.is_blocked or self._is_closed
                else self._lend(queue, waiting.dependencies)
            )
            if lease is None:
                self._count += 1
                heapq.heappush(queue.heap, (-self._ended, self._count, waiting))
            else:
                self._start(waiting, lease)
        return future

    def close(self) -> None:
        """Let nothing more through; what runs goes on."""
        with self._lock:
            self._is_closed = True
            for queue in self._queues.values():
                queue.heap.clear()

    def _queue(self, needs: Needs) -> _Queue:
        queue = self._queues.get(needs)
        if queue is None:
            queue = _Queue(needs)
            others = self._queues.values()
            if any(queue.contended & other.contended for other in others):
                self._contends = True
            self._prefers = self._prefers or bool(needs.affinity)
            self._queues[needs] = queue
        return queue

    def _let_through(self) -> list[tuple[_Waiting, Lease]]:
        """Take out all that may hold what it asks for, the newest first; called under the lock."""
        started: list[tuple[_Waiting, Lease]] = []
        while True:
            keeps = self._pools.keeps
            first: _Queue | None = None
            for queue in self._queues.values():
                if queue.is_blocked or not queue.heap:
                    continue
                if keeps and self._pools.is_kept(queue.request):
                    first = queue
                    break
                if first is None or queue.heap[0] < first.heap[0]:
                    first = queue
            if first is None:
                return started
            waiting = first.heap[0][-1]
            lease = self._lend(first, waiting.dependencies)
            if lease is not None:
                heapq.heappop(first.heap)
                started.append((waiting, lease))

    def _lend(self, queue: _Queue, dependencies: Iterable[Any]) -> Lease | None:
        """Take what a task asks for; None if that is not free, nor for others that ask for it."""
        needs = queue.needs
        inputs = self._inputs(dependencies) if needs.affinity else None
        is_kept = self._contends and self._pools.is_kept(queue.request)
        number = self._pools.take(queue.request, inputs)
        if number is None:
            queue.is_blocked = True
            if self._contends:
                # Later requests overtake it: the newest come first here.
                self._pools.refused(queue.request, (0,))
            return None
        if self._contends:
            self._pools.granted(queue.request, (1,))
            if is_kept:
                # Units that were reserved and not taken are for all again.
                self._unblock()
        held = self._pools.held(number)
        held.pop(CPU, None)
        return Lease(needs, number, held, self._groups)

    def _unblock(self) -> None:
        for queue in self._queues.values():
            queue.is_blocked = False

    def _inputs(self, dependencies: Iterable[Any]) -> dict[str, list[tuple[int, float]]]:
        """List the units of the inputs; their sizes are unknown, so each counts alike."""
        inputs: dict[str, list[tuple[int, float]]] = {}
        for key in dependencies:
            for name, units in self._made_on.get(key, {}).items():
                inputs.setdefault(name, []).extend((unit, 1e6) for unit in units)
        return inputs

    def _start(self, waiting: _Waiting, lease: Lease) -> None:
        if self._in_threads:
            self._pool.submit(self._run_here, waiting, lease)
        else:
            self._pool.submit(
                run_holding, lease.needs, lease.held, self._groups, waiting.function, waiting.batch
            ).add_done_callback(lambda ended: self._end(waiting, lease, ended))

    def _run_here(self, waiting: _Waiting, lease: Lease) -> None:
        """Run a task in this thread, and then what can run for what it gives back."""
        following: tuple[_Waiting, Lease] | None = (waiting, lease)
        while following is not None:
            waiting, lease = following
            error: BaseException | None = None
            outcome: Any = None
            try:
                assert waiting.context is not None
                outcome = waiting.context.run(_run_in_context, lease, waiting)
            except BaseException as raised:
                error = raised
            started = self._go_on(waiting, lease)
            following = started.pop(0) if started else None
            for other in started:
                self._start(*other)
            waiting.future.end(outcome, error)

    def _end(self, waiting: _Waiting, lease: Lease, ended: Future[Any]) -> None:
        """Pass on what came back from a process."""
        for started in self._go_on(waiting, lease):
            self._start(*started)
        error = ended.exception()
        waiting.future.end(None if error is not None else ended.result(), error)

    def _give_back(self, key: Any, lease: Lease) -> None:
        """Take back the units of a task."""
        lease.is_over = True
        self._pools.give_back(lease.number)
        if self._prefers and (units := lease.units):
            self._made_on[key] = units

    def _go_on(self, waiting: _Waiting, lease: Lease) -> list[tuple[_Waiting, Lease]]:
        """Take back the units of a task, and take out the tasks that may run on them."""
        with self._lock:
            self._give_back(waiting.key, lease)
            self._unblock()
            self._ended += 1
            return [] if self._is_closed else self._let_through()


def _run_in_context(lease: Lease, waiting: _Waiting) -> Any:
    current_lease.set(lease)
    take_up(lease)
    try:
        return waiting.function(waiting.batch)
    finally:
        lay_down(lease)


def run_holding(
    needs: Needs,
    held: Mapping[str, tuple[int, ...] | float],
    groups: Mapping[str, list[list[int]]],
    function: Callable[[Any], Any],
    batch: Any,
) -> Any:
    """Run a batch in this process, with what its task holds."""
    lease = Lease(needs, 0, held, groups)
    token = current_lease.set(lease)
    try:
        take_up(lease)
        return function(batch)
    finally:
        lay_down(lease)
        current_lease.reset(token)


def _annotations(dsk: Any) -> dict[Any, tuple[dict[str, float], tuple[str, ...]]]:
    """Collect what annotations say, by key: amounts, and affinities."""
    by_type: dict[str, dict[Any, Any]] = {}
    layers = getattr(dsk, "layers", None)
    if layers is not None:
        for layer in layers.values():
            for kind, value in (layer.annotations or {}).items():
                if kind in ("resources", "affinity"):
                    found = by_type.setdefault(kind, {})
                    found.update({key: value(key) if callable(value) else value for key in layer})
    elif (annotations := getattr(dsk, "__dask_annotations__", None)) is not None:
        by_type = annotations()
    affinity = by_type.get("affinity", {})
    found = {}
    for key, amounts in by_type.get("resources", {}).items():
        said = affinity.get(key, ())
        found[key] = amounts, (said,) if isinstance(said, str) else tuple(said)
    return found
