"""Which ready task of a worker starts next: slots for each kind of request, apart from each other.

Dask looks at the first ready task only, and counts each running one as a thread. Here tasks that
ask for the same wait together, and any of these queues whose resources are free goes on, whatever
waits before it in another one (dask/distributed#6136); what asks for no CPU takes no thread away.
Each task that asks for something other than one thread holds a lease while it runs. It comes back
when the task ends, however it ends, or secedes.

Plain tasks are started by Dask's own code as long as nothing else waits or runs.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from backhaul._native import ResourcePools, ResourceRequest
from backhaul.dask.compat.names import HeapSet
from backhaul.dask.resource_pools.declarations import Declared, checked, groups_of, totals
from backhaul.dask.resource_pools.leases import Lease
from backhaul.dask.resource_pools.machine_pools import Coupled
from backhaul.dask.resource_pools.overflow_pool import OverflowThreadPoolExecutor
from backhaul.dask.resource_pools.requests import (
    ANNOTATION,
    CPU,
    Needs,
    apart_from_threads,
    declared_name,
)
from backhaul.errors import ConfigError

__all__ = ["WorkerSlots", "by_priority"]

logger = logging.getLogger(__name__)

#: As Dask sorts tasks that are ready
by_priority = attrgetter("priority")

#: Shares of threads are added up as floats
_ROUNDING = 1e-9


class WorkerSlots:
    """Waiting and running tasks of one worker, besides plain tasks.

    `couple` returns which of the declared units are near to each other. At most `beside_max`
    concurrent tasks take less than a thread; these run in `executor`. `wake` is called when ready
    tasks may start that nothing else will look at.
    """

    def __init__(
        self,
        declared: Declared,
        *,
        couple: Callable[[Declared], Coupled] = lambda _: {},
        beside_max: int,
        executor: OverflowThreadPoolExecutor | None = None,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        self.declared = declared
        self.pools = ResourcePools(apart_from_threads(declared), coupled=couple(declared))
        self._couple = couple
        self._totals = totals(declared)
        self.groups = groups_of(apart_from_threads(declared))
        self.beside_max = beside_max
        #: Tasks that are ready, by what they ask for
        self.waiting: dict[Needs, HeapSet[Any]] = {}
        #: Leases of tasks that execute, by key
        self.held: dict[Any, Lease] = {}
        #: Units that results in memory were made on, by key
        self.made_on: dict[Any, dict[str, tuple[int, ...]]] = {}
        #: Tasks that have seceded and ask for a lease again: their callbacks, by key
        self._returning: dict[Any, tuple[Any, Lease, Callable[[], object]]] = {}
        #: Those of them that have it; to Dask they are not executing
        self._returned: set[Any] = set()
        #: Tasks that ask for a lease again, of which the state machine has not heard
        self._asking: dict[Any, tuple[Any, Lease, Callable[[], object]]] = {}
        #: Tasks that execute and take less than a thread
        self.beside = 0
        #: Threads that tasks with leases take; a plain one takes one
        self._threads = 0.0
        self._executor = executor
        self._wake = wake
        self._needs: dict[Any, Needs] = {}
        self._requests: dict[Needs, ResourceRequest] = {}

    @property
    def is_idle(self) -> bool:
        """Return whether there are only plain tasks."""
        return not self.held and not self.waiting and not self._returning

    def needs_of(self, ts: Any) -> Needs | None:
        """Say what a task of the worker asks for; None for one thread and nothing else."""
        restrictions = ts.resource_restrictions
        carried = ts.annotations.get(ANNOTATION) if ts.annotations else None
        if not restrictions and carried is None:
            return None
        cpu, affinity = (carried["CPU"], carried["affinity"]) if carried else (1.0, ())
        found = (tuple((restrictions or {}).items()), cpu, tuple(affinity))
        needs = self._needs.get(found)
        if needs is None:
            amounts = apart_from_threads(dict(found[0]))
            names = map(declared_name, affinity)
            needs = self._needs[found] = Needs({**amounts, CPU: cpu}, names)
        return needs

    def add(self, ts: Any, needs: Needs) -> None:
        """Note a task that has become ready."""
        heap = self.waiting.get(needs)
        if heap is None:
            heap = self.waiting[needs] = HeapSet(key=by_priority)
        heap.add(ts)

    def discard(self, ts: Any) -> None:
        """Forget a task that is not ready any more."""
        needs = self.needs_of(ts)
        if needs is not None and (heap := self.waiting.get(needs)) is not None:
            # It may be that threads were left idle for it.
            wakes = needs.cpu > 0 and bool(heap) and heap.peek() is ts
            heap.discard(ts)
            if not heap:
                del self.waiting[needs]
                wakes = self.pools.left(self._request(needs), threads=needs.cpu) or wakes
            if wakes:
                self._wake()

    def start(self, state: Any) -> dict[Any, str]:
        """Take leases for as many ready tasks as there are slots for, in order of priority.

        Tasks that units are reserved for come first: free units of these are idle until they start.
        Returns recommendations for the state machine.
        """
        self._follow(state.total_resources)
        recs: dict[Any, str] = {}
        ready = state.ready
        plain_running = len(state.executing) - len(self.held) + len(self._returned)
        free = state.nthreads - plain_running - self._threads
        if self._returning:
            free -= self._lend_again(free)
        keeps = self.pools.keeps
        heads = [
            (() if keeps and self.is_kept(needs) else heap.peek().priority, number, needs)
            for number, (needs, heap) in enumerate(self.waiting.items())
        ]
        heapq.heapify(heads)
        #: The request that idle threads are left to, which are too few
        left_to: Needs | None = None
        while True:
            plain = ready.peek_plain() if free >= 1 - _ROUNDING else None
            if plain is not None and (not heads or plain.priority <= heads[0][0]):
                ready.discard(plain)
                free -= 1
                state._acquire_resources(plain)
                state.executing.add(plain)
                recs[plain] = "executing"
                continue
            if not heads:
                break
            _, number, needs = heapq.heappop(heads)
            heap = self.waiting[needs]
            ts = heap.peek()
            if needs.cpu > free + _ROUNDING:
                if free > _ROUNDING and needs.cpu <= state.nthreads and self.could_hold(needs):
                    # It would wait for ever if others took each thread as it gets free.
                    free, left_to = 0, needs
                continue
            if not self._lend(ts, needs):
                continue
            self.pools.granted(self._request(needs), ts.priority, threads=needs.cpu)
            free -= needs.cpu
            heap.discard(ts)
            state.ready.discard(ts)
            state.constrained.discard(ts)
            state._acquire_resources(ts)
            state.executing.add(ts)
            recs[ts] = "executing"
            if heap:
                heapq.heappush(heads, (heap.peek().priority, number, needs))
            else:
                self.waiting.pop(needs, None)
        if left_to is not None and recs and not self.could_hold(left_to):
            # One without a thread has taken what else it asks for.
            recs.update(self.start(state))
        return recs

    def take_again(self, ts: Any, lease: Lease, tell: Callable[[], object]) -> None:
        """Lend again to a task that has seceded, as soon as what it asks for is free.

        Such a task runs already, so it comes before those that wait, from `hear_who_asks` on. The
        task is None if the worker does not know it any more; the lease is over. `tell` is called
        when the task holds the lease again, or never will: the lease says so.
        """
        if ts is None or not lease.is_over or ts.key in self._returning or ts.key in self._asking:
            tell()
        else:
            self._asking[ts.key] = ts, lease, tell

    def hear_who_asks(self) -> None:
        """Let those go first that have asked to; called by the state machine, for an event.

        The caller has handled before which tasks threads have ended, and so which ones they went on
        with: none of these may lose its thread to the returning task.
        """
        self._returning.update(self._asking)
        self._asking.clear()

    def could_hold(self, needs: Needs) -> bool:
        """Tell whether the resources of a request are free, without taking them."""
        try:
            return self.pools.is_free(self._request(needs))
        except ValueError:
            return False

    def is_kept(self, needs: Needs) -> bool:
        """Tell whether units are kept for a request, which others have gone past too often."""
        return self.pools.is_kept(self._request(needs), threads=needs.cpu)

    def give_back(self, ts: Any) -> None:
        """Take back the units that a task holds; does nothing if it holds none."""
        lease = self.held.pop(ts.key, None)
        if lease is None:
            return
        lease.is_over = True
        self.pools.give_back(lease.number)
        self._returned.discard(ts.key)
        self._threads -= lease.needs.cpu
        if lease.needs.cpu < 1:
            self.beside -= 1
            if self._executor is not None:
                self._executor.shrink(self.beside)
        if units := lease.units:
            self.made_on[ts.key] = units

    def _lend_again(self, free: float) -> float:
        """Lend to tasks that ask for it again, and return how many threads they take."""
        taken = 0.0
        for key, (ts, lease, tell) in list(self._returning.items()):
            needs = lease.needs
            if needs.cpu > free - taken + _ROUNDING:
                continue
            try:
                self.pools.is_free(self._request(needs))
            except ValueError:
                # There is less by now: it would wait for ever, and with it every task that waits
                # for it.
                del self._returning[key]
                if needs not in self.waiting:
                    self.pools.left(self._request(needs), threads=needs.cpu)
                tell()
                continue
            if self._lend(ts, needs, lease):
                del self._returning[key]
                self.pools.granted(self._request(needs), ts.priority, threads=needs.cpu)
                self._returned.add(key)
                taken += needs.cpu
                tell()
        return taken

    def _follow(self, total: Mapping[str, float]) -> None:
        """Adopt the present resources of the worker; units in use stay with their tasks."""
        if total == self._totals:
            return
        changed = {name: units for name, units in total.items() if self._totals.get(name) != units}
        try:
            declared = checked({**self.declared, **changed})
        except ConfigError as error:
            logger.warning("Backhaul lends what there was before: %s", error)
        else:
            named = apart_from_threads(declared)
            self.pools.declare(named, coupled=self._couple(declared))
            self.declared = declared
            self.groups = groups_of(named)
            self._requests.clear()
        self._totals = dict(total)

    def _lend(self, ts: Any, needs: Needs, lease: Lease | None = None) -> bool:
        if needs.cpu < 1 and self.beside >= self.beside_max:
            return False
        inputs: dict[str, list[tuple[int, float]]] = {}
        if lease is not None:
            # Again the same, if that is free: what the task has made may be there.
            inputs = {name: [(unit, 1e6) for unit in ids] for name, ids in lease.units.items()}
        elif needs.affinity and self.made_on:
            for dependency in ts.dependencies:
                for name, units in self.made_on.get(dependency.key, {}).items():
                    nbytes = dependency.get_nbytes() / len(units)
                    inputs.setdefault(name, []).extend((unit, nbytes) for unit in units)
        number = self._take(needs, inputs, again=lease is not None)
        if number is None:
            self.pools.refused(self._request(needs), ts.priority, threads=needs.cpu)
            return False
        held = self.pools.held(number)
        if lease is None:
            lease = Lease(needs, number, held, self.groups)
        else:
            lease.begin_again(number, held)
        self.held[ts.key] = lease
        self._threads += needs.cpu
        if needs.cpu < 1:
            self.beside += 1
            if self._executor is not None:
                self._executor.grow(self.beside)
        return True

    def _take(
        self, needs: Needs, inputs: Mapping[str, list[tuple[int, float]]], *, again: bool = False
    ) -> int | None:
        request = self._request(needs)
        if again and not self.is_kept(needs):
            request = ResourceRequest(request.needs, list(inputs))
        try:
            return self.pools.take(request, inputs)
        except ValueError:
            # There is less than when it was sent here. It waits, as upstream has it, for more.
            return None

    def _request(self, needs: Needs) -> ResourceRequest:
        request = self._requests.get(needs)
        if request is None:
            request = self._requests[needs] = self._fitted(needs)
        return request

    def _fitted(self, needs: Needs) -> ResourceRequest:
        """Round up what is more than one of something that Dask counts, and we do by ids."""
        amounts = dict(needs.request.needs)
        for name, units in amounts.items():
            if units > 1 and name not in self.groups and self.pools.units(name) is not None:
                amounts[name] = math.ceil(units)
        affinity = [name for name in needs.affinity if self.pools.units(name) is not None]
        return ResourceRequest(amounts, affinity)
