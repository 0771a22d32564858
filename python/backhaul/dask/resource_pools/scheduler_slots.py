"""Where a scheduler sends tasks that ask for resources, and how many at a time.

Dask looks at what workers have, never at what is in use, and sends every such task immediately
(dask/distributed#6467). Here each distinct request has a ranking of the workers that can meet it,
by what is spoken for there (`ResourcePlaces`), so that a choice does not look at each. A worker
gets as many tasks as it can run, and as many again to go on with; the rest stays here until there
is room, in the state ``no-worker``. Tasks without a thread do not count against the threads of a
worker either: such a task is one of its ``long_running`` from the beginning.

Nothing but the annotations of new tasks is read before a task asks for a resource.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from distributed import Scheduler

from backhaul._native import ResourcePlaces
from backhaul.dask.compat.arrivals import by_arrival
from backhaul.dask.compat.names import TaskState, WorkerState
from backhaul.dask.compat.resource_patches import SCHEDULER_SLOTS
from backhaul.dask.config.settings import beside_tasks_max
from backhaul.dask.resource_pools.request_index import (
    RequestClass,
    RequestIndex,
    ResourceSpec,
    forget_refused,
)
from backhaul.dask.resource_pools.requests import ANNOTATION, CPU, Needs, anyone_asks, needs_of
from backhaul.dask.resource_pools.waiting_queue import WaitingLine, named_workers, place_of
from backhaul.dask.resource_pools.worker_inventory import place_worker
from backhaul.dask.serialize.pickled_task import PickledTask

__all__ = ["SchedulerSlots", "install", "slots_of"]

logger = logging.getLogger(__name__)


def install(scheduler: Scheduler) -> bool:
    """Make a scheduler heed requests of tasks, and tell whether it does now; idempotent."""
    if slots_of(scheduler) is not None:
        return True
    beside_max = beside_tasks_max()
    if beside_max is None:
        return False
    # All but the one of work stealing, which may be switched off
    if not SCHEDULER_SLOTS.fits_on(scheduler, *SCHEDULER_SLOTS.slots[:-1]):
        return False
    SchedulerSlots(scheduler, beside_max=beside_max).attach()
    return True


def slots_of(scheduler: Scheduler) -> SchedulerSlots | None:
    """Find the slots of a scheduler; None if it has none."""
    method = vars(scheduler).get("_apply_annotations")
    owner = getattr(method, "__self__", None)
    return owner if isinstance(owner, SchedulerSlots) else None


class SchedulerSlots:
    """Requests of one scheduler's tasks, and the workers that can meet them.

    At most `beside_max` concurrent tasks of a worker take less than a thread.
    """

    def __init__(self, scheduler: Scheduler, *, beside_max: int) -> None:
        self.scheduler: Any = scheduler
        self.beside_max = beside_max
        self.places = ResourcePlaces()
        self.asked = RequestIndex(self.places)
        #: Whether a task has asked for a resource yet
        self.is_active = False
        #: Tasks that were sent to a worker: their request, and the number of the worker
        self.booked: dict[TaskState, tuple[RequestClass, int]] = {}
        #: Tasks that there is no room for, by request and restrictions
        self.waiting: dict[Any, WaitingLine] = {}
        self.numbers: dict[WorkerState, int] = {}
        self.by_number: dict[int, WorkerState] = {}
        self._next_number = 0
        #: Tasks that take less than a thread, by worker
        self.beside: dict[WorkerState, int] = {}
        self._warned: set[int] = set()
        self.drains = False
        #: Whether tasks wait that asked for threads by what is a resource of a worker by now
        self.reads_again = False
        self._upstream_apply = scheduler._apply_annotations
        self._upstream_add: Any = scheduler.add_resources
        self._upstream_remove: Any = scheduler.remove_resources
        self._upstream_decide: Any = scheduler.decide_worker_non_rootish
        self._upstream_is_rootish: Any = scheduler.is_rootish
        self._upstream_is_unoccupied: Any = scheduler.is_unoccupied
        self._upstream_acquire: Any = scheduler.acquire_resources
        self._upstream_release: Any = scheduler.release_resources
        self._upstream_long_running: Any = scheduler.stream_handlers["long-running"]

    def attach(self) -> None:
        """Take the place of what is asked at each graph, and of what zeroes what is in use."""
        SCHEDULER_SLOTS.install(
            self.scheduler,
            {
                "_apply_annotations": self.apply_annotations,
                "add_resources": self.add_resources,
                "handlers[set_resources]": self.add_resources,
            },
        )

    # Requests of tasks

    def apply_annotations(
        self,
        tasks: Iterable[TaskState],
        annotations_by_type: dict[str, Any],
        global_annotations: dict[str, Any] | None = None,
    ) -> Any:
        """Read annotations as upstream does, and then what functions ask for.

        The client gets the `ConfigError` of a request that is not possible.
        """
        tasks = list(tasks)
        with_annotations = self._upstream_apply(
            tasks=tasks,
            annotations_by_type=annotations_by_type,
            global_annotations=global_annotations,
        )
        looks = anyone_asks()
        if not looks and not with_annotations:
            return with_annotations
        try:
            for ts in tasks:
                # Its client has looked into one that is kept: it asks for nothing.
                is_looked_at = looks and type(ts.run_spec) is not PickledTask
                found = needs_of(ts.run_spec) if is_looked_at else None
                if found is not None or ts.resource_restrictions:
                    self._note(ts, found)
        except Exception:
            forget_refused(self.scheduler, tasks)
            raise
        return with_annotations

    def wanted(
        self, annotations: Mapping[str, Any], amounts: Mapping[str, float], found: Needs | None
    ) -> ResourceSpec | None:
        """Say what a task asks for that `backhaul.dask.scheduler.core` takes; as `RequestIndex`."""
        return self.asked.wanted(annotations, amounts, found, declares_cpu=self.declares_cpu)

    def is_outdated(self, ts: TaskState) -> bool:
        """Tell whether a task must be read again before it is sent, see `_read_again`."""
        is_sent = ts.state in ("processing", "memory", "erred")
        return self.declares_cpu and not is_sent and self.asked.asks_for_threads(ts)

    @property
    def declares_cpu(self) -> bool:
        """Return whether a worker has ``CPU`` as a resource of Dask's, which it then is."""
        return bool(self.scheduler.resources.get(CPU))

    def _note(self, ts: TaskState, found: Needs | None) -> None:
        if self.asked.note(ts, found, declares_cpu=self.declares_cpu):
            self.activate()

    def is_rootish(self, ts: TaskState) -> bool:
        """Tell whether a task may wait in the queue; one that takes no thread need not."""
        if ts.annotations and ANNOTATION in ts.annotations:
            return False
        return bool(self._upstream_is_rootish(ts))

    # Resources of workers

    def add_resources(self, worker: str, resources: dict[str, float] | None = None) -> str:
        """Note what a worker has; what is in use stays in use."""
        ws = self.scheduler.workers[worker]
        used = dict(ws.used_resources)
        declared_cpu = self.declares_cpu
        answer: str = self._upstream_add(worker=worker, resources=resources)
        for name, amount in used.items():
            ws.used_resources[name] = amount
        self.reads_again |= self.declares_cpu and not declared_cpu
        if self.is_active:
            self._set_worker(ws)
            self.drain_soon()
        return answer

    def remove_resources(self, worker: str) -> None:
        """Forget what a worker has that is leaving."""
        ws = self.scheduler.workers[worker]
        for ts in ws.processing:
            self.booked.pop(ts, None)
        self.beside.pop(ws, None)
        number = self.numbers.pop(ws, None)
        if number is not None:
            del self.by_number[number]
            self.places.remove_worker(number)
        if self.waiting:
            # Another one is kept, and what may run elsewhere while it cannot run here goes there.
            self.drain_soon()
        self._upstream_remove(worker)

    def change_status(self, status: Any, worker: Any, stimulus_id: str) -> None:
        """Note that a worker pauses or goes on: what may run elsewhere while it cannot here goes.

        Its class has what does so: another one while a core has the state.
        """
        scheduler = self.scheduler
        running = len(scheduler.running)
        type(scheduler).handle_worker_status_change(scheduler, status, worker, stimulus_id)
        if self.waiting and len(scheduler.running) != running:
            self.drain_soon()

    def acquire(self, ts: TaskState, ws: WorkerState) -> None:
        """Note that a task was sent to a worker."""
        self._upstream_acquire(ts, ws)
        asked = self.asked.by(ts)
        if asked is None:
            return
        number = self.number_of(ws)
        self.places.book(asked.signature, number)
        self.booked[ts] = asked, number
        for overdue in self.places.granted(asked.signature, ts.priority):
            if self._keep_worker(overdue):
                break
        if asked.is_beside and ts not in ws.long_running:
            self.beside[ws] = self.beside.get(ws, 0) + 1
            ws.add_to_long_running(ts)

    def release(self, ts: TaskState, ws: WorkerState) -> None:
        """Note that a task has left a worker, or has given back what it held there."""
        booking = self.booked.pop(ts, None)
        if booking is None:
            return
        self._upstream_release(ts, ws)
        asked, number = booking
        # It may have been stolen from a worker that has left since.
        if number in self.by_number:
            self.places.release(asked.signature, number)
        if asked.is_beside and (beside := self.beside.get(ws, 0)):
            self.beside[ws] = beside - 1
        if self.waiting:
            self.drain_soon()

    def handle_long_running(
        self, key: Any, worker: str, run_id: int, stimulus_id: str, **message: Any
    ) -> None:
        """Handle the message that a task has seceded: its worker has its resources back."""
        scheduler = self.scheduler
        ts, ws = scheduler.tasks.get(key), scheduler.workers.get(worker)
        if ts is None or ws is None or ts.processing_on is not ws or ts.run_id != run_id:
            self._upstream_long_running(
                key=key, worker=worker, run_id=run_id, stimulus_id=stimulus_id, **message
            )
            return
        if ts not in ws.long_running:
            self._upstream_long_running(
                key=key, worker=worker, run_id=run_id, stimulus_id=stimulus_id, **message
            )
        self.release(ts, ws)

    def is_unoccupied(self, ws: WorkerState, occupancy: float, nprocessing: int) -> bool:
        """Tell whether a worker has idle threads, whatever runs beside them."""
        beside = self.beside.get(ws, 0)
        return bool(self._upstream_is_unoccupied(ws, occupancy, nprocessing - beside))

    # Where tasks go

    def decide_worker(self, ts: TaskState) -> WorkerState | None:
        """Choose a worker for a task that is no root, or asks for something."""
        self._read_again(ts)
        asked = self.asked.by(ts)
        if asked is None or ts.actor:
            found: WorkerState | None = self._upstream_decide(ts)
            return found
        if not self.scheduler.running:
            return None
        if len(self.numbers) != len(self.scheduler.workers):
            self.meet_workers()
        if ts.worker_restrictions or ts.host_restrictions:
            running = self.scheduler.running
            allowed = self.scheduler.valid_workers(ts) or ()
            if not allowed and ts.loose_restrictions:
                allowed = running
            candidates: Iterable[WorkerState] = [ws for ws in allowed if ws in running]
        else:
            candidates = self._candidates(ts, asked)
        ws = self._cheapest(ts, asked, candidates)
        if ws is None:
            self._keep(ts, asked)
        return ws

    def _read_again(self, ts: TaskState) -> None:
        """Read the meaning of ``CPU`` for a task again, where that is a resource of a worker."""
        if self.declares_cpu and self.asked.asks_for_threads(ts):
            asked = self.asked.by(ts)
            if asked is not None:
                self.line_of(ts, asked).discard(ts)
            self.asked.read_again(ts)

    @property
    def _keeps(self) -> bool:
        """Return whether tasks wait here for room.

        With a timeout for tasks that no worker can run, Dask would fail those that wait: in the
        same state, and for as long as others run.
        """
        return self.scheduler.no_workers_timeout is None

    def _candidates(self, ts: TaskState, asked: RequestClass) -> Iterable[WorkerState]:
        """List the workers that hold inputs, and the least loaded one."""
        running = self.scheduler.running
        found = dict.fromkeys(
            ws for dts in ts.dependencies for ws in dts.who_has or () if ws in running
        )
        least_loaded = self._least_loaded(asked.signature)
        if least_loaded is not None:
            found[least_loaded] = None
        return found

    def _least_loaded(self, signature: int) -> WorkerState | None:
        """Find the worker that would be the least loaded with one more such task."""
        # It is nearly always the first.
        for count in (1, len(self.by_number)):
            for number in self.places.ranked(signature, count):
                ws = self.by_number[number]
                if ws in self.scheduler.running:
                    return ws
        return None

    def _keep_worker(self, signature: int) -> bool:
        """Choose a worker that a request is to get, and is kept from what needs the same."""
        ws = self._least_loaded(signature)
        return self.places.keep(signature, None if ws is None else self.number_of(ws))

    @property
    def kept_worker(self) -> WorkerState | None:
        """The worker that takes nothing more of what a request needs that waited for long."""
        _, number = self.places.kept
        return None if number is None else self.by_number[number]

    def _cheapest(
        self, ts: TaskState, asked: RequestClass, candidates: Iterable[WorkerState]
    ) -> WorkerState | None:
        """Choose, of those with room, the one where the task can begin first."""
        best: tuple[float, float, WorkerState] | None = None
        for ws in candidates:
            load = self.places.load(asked.signature, self.number_of(ws), self._keeps)
            if load is None:
                continue
            begins_s = 0.0
            if ts.dependencies:
                begins_s = self.scheduler.get_comm_cost(ts, ws)
                if load > 1:
                    begins_s += (load - 1) * self.scheduler._get_prefix_duration(ts.prefix)
            if best is None or (begins_s, load) < best[:2]:
                best = begins_s, load, ws
        return None if best is None else best[2]

    def _keep(self, ts: TaskState, asked: RequestClass) -> None:
        """Keep a task that no worker has room for, or ever will."""
        reason = self.places.unmeetable(asked.signature)
        if reason is not None:
            self.warn_unmet(ts.key, asked, reason)
        line = self.line_of(ts, asked)
        line.add(ts)
        if reason is None and not ts.worker_restrictions and not ts.host_restrictions:
            self.places.refused(asked.signature, line.peek().priority)

    def line_of(self, ts: TaskState, asked: RequestClass) -> WaitingLine:
        """Find the line of tasks that ask for the same and may run on the same workers."""
        return self.waiting.setdefault(place_of(ts, asked.signature), WaitingLine())

    def warn_unmet(self, key: Any, asked: RequestClass, reason: str) -> None:
        """Say that no worker can meet what a task asks for; once for each request."""
        if asked.signature in self._warned:
            return
        self._warned.add(asked.signature)
        logger.warning(
            "Task %r asks for %r, which no worker can ever meet: %s. It waits for a worker that "
            "can.",
            key,
            asked.needs,
            reason,
        )

    def drain_soon(self) -> None:
        """Send what waits, once all that happens now has been handled."""
        if not self.drains:
            self.drains = True
            self.scheduler.loop.asyncio_loop.call_soon(self.drain)

    def drain(self) -> None:
        """Send as many of the tasks that wait as workers have room for, the first ones first."""
        self.drains = False
        if self.reads_again:
            self.reads_again = False
            waiting = [ts for ts in self.scheduler.unrunnable if self.asked.asks_for_threads(ts)]
            again = {ts.key: "processing" for ts in waiting}
            self.scheduler.transitions(again, stimulus_id="resources-are-threads-no-more")
        kept, _ = self.places.kept
        if kept is not None and self.kept_worker not in self.scheduler.running:
            self._keep_worker(kept)
        heads: list[Any] = []
        for number, place in enumerate(list(self.waiting)):
            self._push_head(heads, number, place)
        while heads:
            _, number, place = heapq.heappop(heads)
            signature, restrictions, _ = place
            ts = self.waiting[place].peek()
            if any(restrictions):
                if not self._may_go(ts, signature):
                    continue
            elif not self._has_room(signature):
                continue
            self.scheduler.transitions(
                {ts.key: "processing"}, stimulus_id=f"resources-free-{ts.key}"
            )
            if ts.state != "no-worker":
                self._push_head(heads, number, place)

    def _push_head(self, heads: list[Any], number: int, place: Any) -> None:
        """Note which task of a kind is the first that waits, if any still does."""
        heap = self.waiting[place]
        while heap:
            ts = heap.peek()
            if ts.state == "no-worker":
                is_kept = place[0] == self.places.kept[0]
                heapq.heappush(heads, (() if is_kept else ts.priority, number, place))
                return
            # It was sent, just now or when a worker joined, or no client wants it any more.
            heap.discard(ts)
        del self.waiting[place]
        if not any(place[1]):
            self.places.left(place[0])

    def _may_go(self, ts: TaskState, signature: int) -> bool:
        """Tell whether a task bound to some workers may find room; cheaper than to look for it."""
        if ts.loose_restrictions or not self._keeps:
            return True
        if not ts.worker_restrictions and not ts.host_restrictions:
            return True
        running = self.scheduler.running
        return any(
            ws in running and self.places.has_room(signature, self.number_of(ws))
            for ws in named_workers(self.scheduler, ts)
        )

    def _has_room(self, signature: int) -> bool:
        ws = self._least_loaded(signature)
        return ws is not None and bool(self.places.has_room(signature, self.number_of(ws)))

    # Workers by number

    def activate(self, *, books: bool = True) -> None:
        """Take the place of whatever decides, from the first task on that asks for something.

        `books` says whether the tasks that workers have hold what they ask for.
        """
        if self.is_active:
            return
        self.is_active = True
        scheduler = self.scheduler
        # `backhaul.dask.placement.link_placement` may have taken their places meanwhile.
        self._upstream_decide = scheduler.decide_worker_non_rootish
        self._upstream_is_rootish = scheduler.is_rootish
        ours: dict[str, Any] = {
            "remove_resources": self.remove_resources,
            "decide_worker_non_rootish": self.decide_worker,
            "is_rootish": self.is_rootish,
            "is_unoccupied": self.is_unoccupied,
            "acquire_resources": self.acquire,
            "release_resources": self.release,
            "stream_handlers[long-running]": self.handle_long_running,
            "handle_worker_status_change": self.change_status,
            "stream_handlers[worker-status-change]": self.change_status,
        }
        stealing = scheduler.extensions.get("stealing")
        if stealing is not None:
            ratio = stealing.steal_time_ratio

            def steal_time_ratio(ts: TaskState) -> Any:
                # Tasks that wait here go where there is room, before they could be stolen.
                asked = self.asked.by(ts)
                is_kept = asked is not None and (self._keeps or asked.is_beside)
                return (None, None) if is_kept else ratio(ts)

            ours["extensions[stealing].steal_time_ratio"] = steal_time_ratio
        SCHEDULER_SLOTS.install(scheduler, ours)
        self.meet_workers()
        for ws in scheduler.workers.values() if books else ():
            for ts in ws.processing:
                self.book(ts, ws)

    def book(self, ts: TaskState, ws: WorkerState, *, counts: bool = False) -> None:
        """Note that a worker has a task; counts one that takes less than a thread."""
        asked = self.asked.by(ts)
        if asked is not None:
            self.places.book(asked.signature, self.number_of(ws))
            self.booked[ts] = asked, self.number_of(ws)
            if counts and asked.is_beside:
                self.beside[ws] = self.beside.get(ws, 0) + 1

    # While `backhaul.dask.scheduler.core` has the state

    def clear(self) -> None:
        """Clear all that depends on tasks and workers: from now on a core decides."""
        for number in self.by_number:
            self.places.remove_worker(number)
        for members in (self.booked, self.waiting, self.numbers, self.by_number, self.beside):
            members.clear()
        self.places.forget_waiting()
        self.reads_again = False

    def resume(self, kept_worker: str | None, served: Iterable[str], *, drains: bool) -> None:
        """Decide again, with the tasks of a core.

        `kept_worker` is the address of the worker that is kept for a request that waited for long;
        `served` has the addresses of workers that were sent tasks, the one served longest ago
        first. `drains` says whether tasks that wait may be sent.
        """
        workers = self.scheduler.workers
        kept, _ = self.places.kept
        if kept is not None:
            ws = None if kept_worker is None else workers.get(kept_worker)
            self.places.keep(kept, None if ws is None else self.number_of(ws))
        self.places.set_served([self.number_of(workers[address]) for address in served])
        self.reads_again = self.declares_cpu
        if drains or self.reads_again:
            self.drain_soon()

    # Workers by number

    def meet_workers(self) -> None:
        """Give each new worker a number, in the order in which they joined."""
        for ws in by_arrival(self.scheduler):
            if ws not in self.numbers:
                self._set_worker(ws)

    def number_of(self, ws: WorkerState) -> int:
        """Return the number of a worker in the places."""
        number = self.numbers.get(ws)
        return self._set_worker(ws) if number is None else number

    def _set_worker(self, ws: WorkerState) -> int:
        number = self.numbers.get(ws)
        if number is None:
            number = self._next_number
            self._next_number += 1
            self.numbers[ws] = number
            self.by_number[number] = ws
        place_worker(self.places, number, ws, self.beside_max)
        return number
